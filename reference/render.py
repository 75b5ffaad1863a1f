#!/usr/bin/env python3
"""Makes texts of the tables of settings and metrics, which `describe` prints:

    render.py TABLES page TEMPLATE      a page of docs/: the template with tables at its marks
    render.py TABLES manual TEMPLATE    a manual page, likewise
    render.py TABLES bash PROGRAM       completion for bash
    render.py TABLES zsh PROGRAM        completion for zsh
    render.py TABLES module NAME        the version and the build, for the tools in Python
"""
import json
import re
import sys

PLACES = {"FILE": "files", "PATH": "files", "DIRECTORY": "directories"}  # what they name


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


def metrics(tables, of, labels):
    """Those in Prometheus's text whose first label is one of `labels`; None: they have none."""
    texts = re.split(r"(?m)^# HELP ", tables["metrics"][of])[1:]
    rows = []
    for text in texts:
        name, told, kind, first = re.match(
            r"(\w+) (.*)\n# TYPE \1 (\w+)\n\w+(?:{(\w+)=)?", text).groups()
        if first in labels:
            rows.append((code(name), kind, cell(told)))
    return "\n".join(table(("metric", "type", "what it tells"), rows))


def page(tables, template):
    return fill(template, {
        "AGGREGATOR": lambda: groups(tables), "LIBRARY": lambda: library(tables),
        "MPI": lambda: mpi(tables),
        "LANES": lambda: metrics(tables, "aggregator", ("lane",)),
        "JOBS": lambda: metrics(tables, "aggregator", ("job_id",)),
        "PORTS": lambda: metrics(tables, "aggregator", ("port", "version", None)),
        "PROCESS": lambda: metrics(tables, "worker", ("version", None)),
        "RANKS": lambda: metrics(tables, "worker", ("job_id",))})


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


def names(row):
    return (["-" + row["short"]] if "short" in row else []) + ["--" + row["name"]]


def rows_of(command):
    return [row for group in command["groups"] for row in group["flags"]]


def synopsis(name, command):
    """A line of a program, or of each of its commands."""
    parts = [rf"\fB{roff(name)}\fR"]
    for row in rows_of(command):
        if row["name"] not in ("help", "version"):
            flag = "|".join(rf"\fB{roff(flag)}\fR" for flag in names(row))
            argument = rf" \fI{roff(row['argument'])}\fR" if row["argument"] else ""
            parts.append(f"[{flag}{argument}]")
    for row in command["arguments"]:
        argument = rf"\fI{roff(row['argument'])}\fR" + " ..." * row["is_list"]
        parts.append(f"[{argument}]" if row["is_optional"] else argument)
    below = [line for of in command["commands"] for line in synopsis(of["name"], of)]
    return [" ".join([*parts, line]) for line in below or [""]]


def arguments(command):
    for row in command["arguments"]:
        yield from (".TP", rf"\fI{roff(row['argument'])}\fR", roff(row["help"]))


def commands(program):
    for command in program["commands"]:
        yield ".SS " + roff(command["name"])
        yield paragraphs(command["about"] or sentence(command["help"]))
        yield from arguments(command)
        for row in rows_of(command):
            if row["name"] != "help":
                yield from flag_entry(row)


def sentence(text):
    return text[0].upper() + text[1:] + "."


def manual(tables, template):
    name = re.search(r"(?m)^\.TH (\S+)", template)[1].lower()
    program = tables["programs"].get(name, {})
    return fill(template, {
        "VERSION": lambda: tables["version"],
        "ABOUT": lambda: paragraphs(program["about"]),
        "SYNOPSIS": lambda: "\n.br\n".join(synopsis(name, program)),
        "ARGUMENTS": lambda: "\n".join(arguments(program)),
        "COMMANDS": lambda: "\n".join(commands(program)),
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
{commands}  case $option in
{cases}
  esac
  mapfile -t COMPREPLY < <(compgen "${{completing[@]}}" -- "$word")
}}
complete -F {function} {program}
"""

# Of a program with commands: by the one that is given.
BASH_COMMANDS = """\
  local given
  for given in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $given in
{cases}
    esac
  done
"""

FILE_NAMES = "compopt -o filenames 2> /dev/null"


def bash_action(row):
    """What completes the value of a flag."""
    if row["argument"] in PLACES:
        kind = "-f" if PLACES[row["argument"]] == "files" else "-d"
        return f"{FILE_NAMES}\n      completing=({kind})"
    words = " ".join(row.get("words", []))
    if not words:
        return "completing=()"  # nobody can guess it
    # A switch needs no value: another flag may follow it.
    more = " $flags" if row.get("is_switch") else ""
    return f'completing=(-W "{words}{more}")'


def bash_words(command):
    """What completes a word that is no flag's value: what `compgen` is called with."""
    flags = [flag for row in rows_of(command) for flag in names(row)]
    return " ".join([*(of["name"] for of in command.get("commands", [])), *flags])


def bash_command(command):
    """The rest of a command line that has this command."""
    places = any(row["argument"] in PLACES for row in command["arguments"])
    files = f"\n      {FILE_NAMES}" if places else ""
    more = " -f" if places else ""
    return (f"    {command['name']})\n      flags='{bash_words(command)}'{files}\n"
            f"      completing=(-W \"$flags\"{more})\n      break\n      ;;")


def all_commands(program):
    """Each with flags of its own."""
    return [program, *program.get("commands", [])]


def bash(tables, name):
    program = tables["programs"][name]
    by_action = {}
    for row in (row for command in all_commands(program) for row in rows_of(command)):
        if row["argument"]:
            flags = by_action.setdefault(bash_action(row), [])
            flags.extend(flag for flag in names(row) if flag not in flags)
    cases = [f"    {' | '.join(of)})\n      {action}\n      ;;" for action, of in by_action.items()]
    given = [bash_command(command) for command in program.get("commands", [])]
    return BASH.format(program=name, function="_" + name.replace("-", "_"), cases="\n".join(cases),
                       commands=BASH_COMMANDS.format(cases="\n".join(given)) if given else "",
                       flags=bash_words(program))


def zsh_quoted(text):
    return text.translate(str.maketrans(
        {"'": "'\\''", "[": "\\[", "]": "\\]", ":": "\\:", "\\": "\\\\"}))


def zsh_word(text):
    """One word of an action, which zsh evaluates."""
    return '"' + re.sub(r"([`$\"])", r"\\\1", zsh_quoted(text)) + '"'


def zsh_value(row):
    actions = {"files": "_files", "directories": "_files -/"}
    words = f"({' '.join(row['words'])})" if row.get("words") else " "
    argument = zsh_quoted(row["argument"].lower())
    return f"{argument}:{actions.get(PLACES.get(row['argument']), words)}"


def zsh_specs(command):
    """The arguments of _arguments: flags and values."""
    for row in rows_of(command):
        value = ""
        if row["argument"]:
            value = ("::" if row.get("is_switch") else ":") + zsh_value(row)
        again = "*" if row.get("is_list") else ""
        for flag in names(row):
            equals = "=" if value and flag.startswith("--") else ""
            yield f"'{again}{flag}{equals}[{zsh_quoted(row['help'])}]{value}'"
    for row in command.get("arguments", []):
        yield f"'{'*' if row['is_list'] else ':' * row['is_optional']}:{zsh_value(row)}'"


def zsh_call(before, specs, indent=""):
    return f" \\\n{indent}  ".join([f"{indent}_arguments{before}", *specs])


def zsh_command(command):
    return "\n".join([f"  {command['name']})", zsh_call("", zsh_specs(command), "    "), "    ;;"])


def zsh(tables, name):
    program = tables["programs"][name]
    below = program.get("commands", [])
    if not below:
        return f"#compdef {name}\n{zsh_call('', zsh_specs(program))}\n"
    told = " ".join(rf"{of['name']}\:{zsh_word(of['help'])}" for of in below)
    specs = [*zsh_specs(program), f"'1:command:(({told}))'", "'*::argument:->argument'"]
    return "\n".join([
        f"#compdef {name}", "local context state state_descr line", "typeset -A opt_args",
        zsh_call(" -C", specs) + " && return", "case $words[1] in",
        *map(zsh_command, below), "esac", ""])


def module(tables, _):
    return (f"# Made by the build.\nVERSION = {tables['version']!r}\n"
            f"BUILD = {tables['build']!r}\n")


def main():
    path, kind, of = sys.argv[1:]
    tables = json.loads(read(path))
    if kind in ("page", "manual"):
        of = read(of)
    make = {"page": page, "manual": manual, "bash": bash, "zsh": zsh, "module": module}[kind]
    sys.stdout.write(make(tables, of))


if __name__ == "__main__":
    main()
