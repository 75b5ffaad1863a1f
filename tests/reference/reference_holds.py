"""What is made of tables: docs/configuration.md, the manual pages, completion; what Python and
Wireshark have of the interface and of the protocol. `reference_holds.py ROOT BUILD [CASES]`."""
import ctypes
import difflib
import glob
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT, BUILD = (os.path.abspath(path) for path in sys.argv[1:3])
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tests", "tidy"))
import tidy  # noqa: E402

MADE = os.path.join(BUILD, "reference")
# What the tree keeps of what is made: by target, where, and where the build makes it.
KEPT = {"configuration-page": ("docs/configuration.md", "reference/configuration.md"),
        "dissector-tables": ("configs/wireshark/sluice.lua", "reference/sluice.lua"),
        "metrics-page": ("docs/metrics.md", "reference/metrics.md"),
        "python-interface": ("bindings/python/sluice/_interface.py",
                             "bindings/python/_interface.py")}

# Completes the words of a command line, the last of which is the one that the cursor is at.
COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
function=$(complete -p "$1"); function=${function#*-F }
${function% *}
printf '%s\\n' "${COMPREPLY[@]}"
"""

# Types a line and a tabulator into zsh; ends when what is shown has a text: DIRECTORY LINE TEXT.
ZSH_COMPLETE = r"""
zmodload zsh/zpty
zpty shell 'zsh -f -i'
zpty -w shell "PS1=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D; print READ''Y"
zpty -r shell shown '*READY*'
zpty -w -n shell "$2"$'\t'
zpty -r shell shown "*$3*"
"""


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def run(*command, cwd=None, **more):
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=False, **more)


def needs(program, what):
    if not shutil.which(program):
        print(f"skipped: {what}: needs {program}")
        raise unittest.SkipTest(program)


def flags_of(program):
    return flags_among(TABLES["programs"][program])


def flags_among(command):
    return [flag for group in command["groups"] for flag in group["flags"]]


TABLES = json.loads(read(MADE, "tables.json"))
PROGRAMS = tuple(TABLES["programs"])
COMMANDS = {program: told["commands"] for program, told in TABLES["programs"].items()
            if told.get("commands")}
SETTINGS = [flag for flag in flags_of("sluice-aggregator") if "allowed" in flag]


class Kept(unittest.TestCase):
    def test_files_are_what_the_tables_say(self):
        for target, (path, made) in KEPT.items():
            with self.subTest(path):
                difference = "\n".join(difflib.unified_diff(
                    read(ROOT, path).splitlines(), read(BUILD, made).splitlines(), path,
                    "the tables", lineterm=""))
                if difference:
                    self.fail(f"{difference}\nrun `ninja -C build {target}`")


class PythonInterface(unittest.TestCase):
    HEADER = os.path.join(ROOT, "bindings/c/include/sluice/sluice.h")

    @classmethod
    def setUpClass(cls):
        path = os.path.join(ROOT, "bindings/python/sluice/_interface.py")
        spec = importlib.util.spec_from_file_location("interface_of_python", path)
        cls.made = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cls.made)

    def test_has_every_function_of_the_header(self):
        header = re.sub(r"/\*.*?\*/", "", read(self.HEADER), flags=re.S)
        self.assertEqual(self.made.FALLIBLE.keys() | self.made.PLAIN.keys(),
                         set(re.findall(r"\b(sluice_\w+)\(", header)))

    def test_has_structs_and_values_as_a_compiler_has(self):
        """And every type of the header but handles."""
        structs = {name: of for name, of in vars(self.made).items()
                   if isinstance(of, type) and issubclass(of, ctypes.Structure)
                   and name.startswith("sluice_")}
        checks = [f"sizeof({name}) == {ctypes.sizeof(of)}" for name, of in structs.items()]
        checks += [f"offsetof({name}, {field}) == {getattr(of, field).offset}"
                   f" && sizeof((({name}*)0)->{field}) == {getattr(of, field).size}"
                   for name, of in structs.items() for field, *_ in of._fields_]
        prefixes = {self.made.Encoding: "SLUICE_ENCODING_"}
        enums = (self.made.Status, self.made.ElementType, self.made.Reduction, self.made.Encoding)
        checks += [f"{prefixes.get(enum, 'SLUICE_')}{value.name} == {int(value)}"
                   for enum in enums for value in enum]
        types = re.findall(r"(?m)^typedef (?:enum|struct) (\w+) \{", read(self.HEADER))
        self.assertEqual(len(types), len(structs) + len(enums))
        source = "#include <sluice/sluice.h>\n" + "".join(
            f'_Static_assert({check}, "");\n' for check in checks)
        done = run("gcc", "-xc", "-fsyntax-only", "-I" + os.path.dirname(os.path.dirname(
            self.HEADER)), "-", input=source)
        self.assertEqual(done.stderr, "")


class Page(unittest.TestCase):
    def test_every_variable_that_the_code_reads_is_named(self):
        page = read(ROOT, "docs", "configuration.md")
        paths = [path for part in ("aggregator", "bindings", "common", "worker")
                 for path in glob.glob(os.path.join(ROOT, part, "**"), recursive=True)
                 if path.endswith((".cpp", ".hpp", ".py"))]
        names = {name for path in paths
                 for name in re.findall(r'"(SLUICE_[A-Z_]*[A-Z])"', read(path))}
        self.assertIn("SLUICE_LIBRARY", names)
        self.assertEqual([name for name in sorted(names) if f"`{name}`" not in page], [])


class KnownVariables(unittest.TestCase):
    """The names that the programs take for spelt right: none else may have a meaning."""
    EXCEPT = {"tests/unit/config.cpp", "tests/unit/environment.cpp",  # misspelt on purpose
              "tests/system/troubleshooting_holds.py",
              "tests/unit/log.cpp"}  # fields of the journal
    WITHOUT_A_TABLE = {"SLUICE_LIBRARY", "SLUICE_AGGREGATOR_SECRET", "SLUICE_AGGREGATOR_CONFIG"}

    def test_are_those_of_the_tables(self):
        tables = {row["name"] for rows in TABLES["variables"].values() for row in rows}
        tables |= {flag["variable"] for flag in SETTINGS}
        known = TABLES["known_variables"]
        self.assertEqual(sorted(known), sorted(tables | self.WITHOUT_A_TABLE))

    def test_are_all_that_the_tree_reads_or_sets(self):
        """In whatever language: getenv("NAME"), environ["NAME"], NAME=, "NAME":, ${NAME, and
        `name: NAME` in YAML."""
        name = r"(SLUICE_[A-Z0-9_]*[A-Z0-9])"
        form = re.compile("|".join((
            rf'(?:get|set)env\(\s*"{name}"', rf"environ\b[^\n]{{0,8}}[\"']{name}[\"']",
            rf"[\"']{name}[\"']:", rf"\$\{{?{name}", rf"name: {name}\b",
            rf"(?:^|[\s\"'`(;=]){name}=(?!=)")), re.MULTILINE)
        found = {}
        for path in sorted(set(tidy.project_files(ROOT)) - self.EXCEPT):
            for groups in form.findall(read(ROOT, path)):
                found.setdefault("".join(groups), path)
        self.assertIn("SLUICE_BLOCK_ELEMENTS", found)
        unknown = {name: path for name, path in found.items()
                   if name not in TABLES["known_variables"]}
        self.assertEqual(unknown, {})


class ManualPages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        needs("groff", "manual pages")

    def rendered(self, page):
        done = run("groff", "-man", "-ww", "-Tascii", "-P-cbou", page, cwd=MADE)
        self.assertEqual((done.returncode, done.stderr), (0, ""), page)
        return done.stdout

    def test_of_programs_name_every_flag_with_its_default(self):
        for program in PROGRAMS:
            page, = (os.path.basename(path) for path in glob.glob(
                os.path.join(MADE, program + ".[18]")))
            text = " ".join(self.rendered(page).split())
            below = [flag for of in COMMANDS.get(program, []) for flag in flags_among(of)]
            for flag in flags_of(program) + below:
                with self.subTest(page=page, flag=flag["name"]):
                    self.assertRegex(text, rf"(^| )--{flag['name']}( |$)")
                    if flag.get("default"):
                        self.assertRegex(text, rf"default {flag['default']}\b")

    def test_of_tools_name_every_command_and_what_it_takes(self):
        for program, commands in COMMANDS.items():
            text = self.rendered(program + ".8")
            for command in commands:
                with self.subTest(program=program, command=command["name"]):
                    self.assertRegex(text, rf"(?m)^ +{program}\b.* {command['name']}\b")
                    section = text.split("COMMANDS")[1].split(f"\n   {command['name']}\n")[1]
                    for row in command["arguments"]:
                        self.assertIn("       " + row["argument"], section)

    def test_of_the_file_names_every_setting(self):
        text = self.rendered("sluice-aggregator.conf.5")
        for setting in SETTINGS:
            self.assertRegex(text, rf"(?m)^ +{setting['name']} = ")

    def test_of_perf_names_every_variable_of_the_library(self):
        text = self.rendered("sluice-perf.1")
        for variable in TABLES["variables"]["library"]:
            self.assertRegex(text, rf"(?m)^ +{variable['name']}$")


class BashCompletion(unittest.TestCase):
    def completed(self, *words, place=None):
        done = run("bash", "-c", COMPLETE, "bash", os.path.join(MADE, words[0]), *words, cwd=place)
        self.assertEqual(done.stderr, "")
        return done.stdout.split("\n")[:-1]

    def test_flags_by_their_beginning(self):
        for program in PROGRAMS:
            names = ["--" + flag["name"] for flag in flags_of(program)]
            self.assertEqual(self.completed(program, "--"), names)
        for tool in ("sluice-ctl", "sluice-nic", "sluice-top"):
            self.assertIn("--version", self.completed(tool, "--v"))
        self.assertEqual(self.completed("sluice-aggregator", "--log-"),
                         ["--log-level", "--log-file", "--log-format",
                          "--log-rate-limit"])
        self.assertEqual(self.completed("sluice-perf", "-b", "1M", "--max"), ["--maxbytes"])
        self.assertEqual(self.completed("sluice-pktgen", "--no-such"), [""])

    def test_commands_and_the_flags_of_the_given_one(self):
        for program, commands in COMMANDS.items():
            for command in commands:
                with self.subTest(program=program, command=command["name"]):
                    self.assertIn(command["name"], self.completed(program, command["name"][:2]))
                    self.assertEqual(self.completed(program, command["name"], "--"),
                                     ["--" + flag["name"] for flag in flags_among(command)])
        self.assertEqual(self.completed("sluice-ctl", "-s", "socket", "d"), ["drain"])
        self.assertEqual(self.completed("sluice-nic", "check", "--way", "bi"), ["bifurcated"])

    def test_values_that_are_a_few_words(self):
        for setting in SETTINGS:
            if setting["words"] and not setting["is_switch"]:
                flag = "--" + setting["name"]
                self.assertEqual(self.completed("sluice-aggregator", flag, ""), setting["words"])
        for words in (("--idle", "b"), ("--idle", "=", "b"), ("--pci", "--idle", "b")):
            self.assertEqual(self.completed("sluice-aggregator", *words), ["busy-spin", "backoff"])
        self.assertEqual(self.completed("sluice-aggregator", "--idle", "="),
                         ["busy-spin", "yield", "backoff"])

    def test_a_switch_needs_no_value(self):
        self.assertEqual(self.completed("sluice-aggregator", "--pci", "o"), ["on", "off"])
        self.assertEqual(self.completed("sluice-aggregator", "--pci", "--hu"), ["--hugepages"])

    def test_a_value_that_nobody_can_guess(self):
        self.assertEqual(self.completed("sluice-aggregator", "--streams", ""), [""])

    def test_files_and_directories(self):
        with tempfile.TemporaryDirectory() as place:
            for name in ("one a.conf", "one.conf", "two.conf"):
                with open(os.path.join(place, name), "w", encoding="ascii"):
                    pass
            os.mkdir(os.path.join(place, "one-directory"))
            for words, expected in (
                    (("sluice-aggregator", "--config", "one"),
                     ["one a.conf", "one-directory", "one.conf"]),
                    (("sluice-aggregator", "--vhost-dir", "o"), ["one-directory"]),
                    (("sluice-perf", "--json", "=", "t"), ["two.conf"]),
                    (("sluice-ctl", "--socket", "t"), ["two.conf"]),
                    (("sluice-ctl", "capture", "--frames", "3", "t"), ["two.conf"]),
            ):
                self.assertEqual(sorted(self.completed(*words, place=place)), expected)


class ZshCompletion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        needs("zsh", "completion for zsh")

    def test_flags_and_values(self):
        for line, expected in (("sluice-aggregator --vhost-d", "--vhost-dir"),
                               ("sluice-aggregator --idle=bu", "--idle=busy-spin"),
                               ("sluice-perf --maxb", "--maxbytes"),
                               ("sluice-pktgen --find", "--find-rate"),
                               ("sluice-top --o", "--once"),
                               ("sluice-nic unb", "unbind"),
                               ("sluice-ctl drain --w", "--wait"),
                               ("sluice-ctl -s /dev/nul", "/dev/null"),
                               ("sluice-nic check --way=bi", "--way=bifurcated")):
            done = run("zsh", "-f", "-c", ZSH_COMPLETE, "zsh", MADE, line, expected, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, ""), line)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
