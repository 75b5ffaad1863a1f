#!/usr/bin/env python3
"""Makes texts of the tables of settings, which `describe` prints:

    render.py TABLES page TEMPLATE      docs/configuration.md: the template with tables at its marks
    render.py TABLES manual TEMPLATE    a manual page, likewise
    render.py TABLES bash PROGRAM       completion for bash
    render.py TABLES zsh PROGRAM        completion for zsh
"""
import json
import re
import sys

def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def fill(template, marks):
    """The template with what the functions return at its marks: @NAME@."""
    return re.sub("@([A-Z]+)@", lambda mark: marks[mark[1]](), template)


# --- Markdown

def cell(text):
    return re.sub(r"([|*])", r"\\\1", text)


def code(text):
    return f"`{text}`".replace("|", r"\|") if text else ""


def table(columns, rows):
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield re.sub(" +", " ", "| " + " | ".join(row) + " |")


def values(row):
    unit = row.get("unit")
    return cell(row["allowed"]) + (" " + unit if unit else "")


def settings(tables):
    """The groups of the daemon's settings: (title, rows)."""
    for group in tables["programs"]["sluice-aggregator"]["groups"]:
        rows = [row for row in group["flags"] if "allowed" in row]
        if rows:
            yield group["title"], rows


def groups(tables):
    texts = []
    for title, rows in settings(tables):
        texts.append("\n".join([f"### {title}", "", *table(
            ("setting", "variable", "values", "default", "reload", "meaning"),
            ((code(row["name"]), code(row["variable"]), values(row), code(row["default"]),
              "reload" if row["reloadable"] else "", cell(row["help"])) for row in rows))]))
    return "\n\n".join(texts)


def library(tables):
    return "\n".join(table(
        ("variable", "option", "values", "default", "meaning"),
        ((code(row["name"]), code(row["option"]), values(row), code(row["default"]),
          cell(row["help"])) for row in tables["variables"]["library"])))


def mpi(tables):
    return "\n".join(table(
        ("variable", "values", "default", "meaning"),
        ((code(row["name"]), values(row), code(row["default"]), cell(row["help"]))
         for row in tables["variables"]["mpi"])))


def page(tables, template):
    return fill(template, {"AGGREGATOR": lambda: groups(tables), "LIBRARY": lambda: library(tables),
                           "MPI": lambda: mpi(tables)})


# --- manual pages

def roff(text):
    for plain, escaped in (("\\", r"\e"), ("-", r"\-"), ("'", r"\(aq"), ("`", r"\(ga"),
                           ("^", r"\(ha"), ("~", r"\(ti")):
        text = text.replace(plain, escaped)
    return re.sub(r"(?m)^\.", r"\&.", text)


def paragraphs(text):
    return roff(text.strip()).replace("\n\n", "\n.PP\n")


def facts(row):
    """What --help has in brackets."""
    unit = " " + row["unit"] if row.get("unit") else ""
    parts = [row["allowed"] + unit] if "allowed" in row else []
    if "default" in row:
        parts.append("default " + (row["default"] or "none"))
    if row.get("reloadable"):
        parts.append("reloadable")
    return f" [{', '.join(parts)}]" if parts else ""


def flag_entry(row):
    names = [r"\fB\-" + row["short"] + r"\fR"] if "short" in row else []
    names.append(r"\fB\-\-" + roff(row["name"]) + r"\fR")
    argument = rf" \fI{row['argument']}\fR" if row["argument"] else ""
    if row.get("is_switch"):
        argument = f" [{argument.strip()}]"
    return [".TP", ", ".join(names) + argument, roff(row["help"] + facts(row))]


def flags(program):
    for group in program["groups"]:
        yield ".SS " + roff(group["title"])
        for row in group["flags"]:
            yield from flag_entry(row)


def lines_of_file(tables):
    for title, rows in settings(tables):
        yield ".SS " + roff(title)
        for row in rows:
            yield from (".TP", rf"\fB{roff(row['name'])}\fR = \fI{row['argument']}\fR",
                        roff(row["help"] + facts(row)))


def variables(rows):
    for row in rows:
        yield from (".TP", rf"\fB{row['name']}\fR", roff(row["help"] + facts(row)))


def manual(tables, template):
    program = tables["programs"].get(re.search(r"(?m)^\.TH (\S+)", template)[1].lower(), {})
    return fill(template, {
        "VERSION": lambda: tables["version"],
        "ABOUT": lambda: paragraphs(program["about"]),
        "FLAGS": lambda: "\n".join(flags(program)),
        "NOTES": lambda: paragraphs(program["notes"]),
        "SETTINGS": lambda: "\n".join(lines_of_file(tables)),
        "VARIABLES": lambda: "\n".join(variables(tables["variables"]["library"])),
    })


# --- completion

BASH = """\
# Completion of {program} for bash.
{function}() {{
  local option=${{COMP_WORDS[COMP_CWORD - 1]}} word=${{COMP_WORDS[COMP_CWORD]}}
  local flags='{flags}'
  # bash makes three words of --FLAG=VALUE.
  if [[ $word == = ]]; then
    word=
  elif [[ $option == = ]]; then
    option=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  local completing=(-W "$flags")
  case $option in
{cases}
  esac
  mapfile -t COMPREPLY < <(compgen "${{completing[@]}}" -- "$word")
}}
complete -F {function} {program}
"""


def names(row):
    return (["-" + row["short"]] if "short" in row else []) + ["--" + row["name"]]


def bash_action(row):
    """What completes the value of a flag."""
    if row["argument"] in ("FILE", "DIRECTORY"):
        kind = "-f" if row["argument"] == "FILE" else "-d"
        return f"compopt -o filenames 2> /dev/null\n      completing=({kind})"
    words = " ".join(row.get("words", []))
    if not words:
        return "completing=()"  # nobody can guess it
    # A switch needs no value: another flag may follow it.
    more = " $flags" if row.get("is_switch") else ""
    return f'completing=(-W "{words}{more}")'


def bash(tables, name):
    rows = [row for group in tables["programs"][name]["groups"] for row in group["flags"]]
    by_action = {}
    for row in rows:
        if row["argument"]:
            by_action.setdefault(bash_action(row), []).extend(names(row))
    cases = [f"    {' | '.join(of)})\n      {action}\n      ;;" for action, of in by_action.items()]
    return BASH.format(program=name, function="_" + name.replace("-", "_"), cases="\n".join(cases),
                       flags=" ".join(flag for row in rows for flag in names(row)))


def zsh(tables, name):
    quoted = str.maketrans({"'": "'\\''", "[": "\\[", "]": "\\]", ":": "\\:", "\\": "\\\\"})
    specs = []
    for row in (row for group in tables["programs"][name]["groups"] for row in group["flags"]):
        value = ""
        if row["argument"]:
            actions = {"FILE": "_files", "DIRECTORY": "_files -/"}
            words = f"({' '.join(row['words'])})" if row.get("words") else " "
            colons = "::" if row.get("is_switch") else ":"
            value = f"{colons}{row['argument'].lower()}:{actions.get(row['argument'], words)}"
        again = "*" if row.get("is_list") else ""
        for flag in names(row):
            equals = "=" if value and flag.startswith("--") else ""
            specs.append(f"  '{again}{flag}{equals}[{row['help'].translate(quoted)}]{value}'")
    return f"#compdef {name}\n_arguments \\\n" + " \\\n".join(specs) + "\n"


def main():
    path, kind, of = sys.argv[1:]
    tables = json.loads(read(path))
    if kind in ("page", "manual"):
        of = read(of)
    make = {"page": page, "manual": manual, "bash": bash, "zsh": zsh}[kind]
    sys.stdout.write(make(tables, of))


if __name__ == "__main__":
    main()
