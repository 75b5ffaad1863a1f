#!/usr/bin/env python3
"""Adds the tools in Python to what `describe` prints of the programs in C++:

    arguments.py DESCRIBED [PROGRAM=FILE...]

Each file has make_parser(), whose parser of the command line is described.
"""
import argparse
import importlib.machinery
import importlib.util
import json
import sys

sys.dont_write_bytecode = True
OPTIONAL, ANY = "?", "*"


def parser_of(program, path):
    sys.argv[0] = program  # as if it were called so
    loader = importlib.machinery.SourceFileLoader(program.replace("-", "_"), path)
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    loader.exec_module(module)
    return module.make_parser()


def described(action):
    if not action.help:
        sys.exit(f"{sys.argv[0]}: {action.dest} has no help")
    name = action.metavar or action.dest.upper().replace("_", "-")
    return {"argument": "" if action.nargs == 0 else name, "help": action.help,
            "words": list(action.choices or ())}


def flag(action):
    row = described(action)
    for name in action.option_strings:
        row["name" if name.startswith("--") else "short"] = name.lstrip("-")
    return row


def positional(action):
    return described(action) | {"is_optional": action.nargs in (OPTIONAL, ANY),
                                "is_list": action.nargs == ANY}


def command_line(parser):
    """Of a program, or of one of its commands."""
    actions = [a for a in parser._actions if a.help != argparse.SUPPRESS]
    several = [a for a in actions if isinstance(a, argparse._SubParsersAction)]
    return {
        "about": parser.description or "", "notes": parser.epilog or "",
        "groups": [{"title": "Flags", "flags": [flag(a) for a in actions if a.option_strings]}],
        "arguments": [positional(a) for a in actions
                      if not a.option_strings and a not in several],
        "commands": [{"name": told.dest, "help": told.help, **command_line(of.choices[told.dest])}
                     for of in several for told in of._choices_actions],
    }


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        tables = json.load(file)
    for program, path in (argument.split("=") for argument in sys.argv[2:]):
        tables["programs"][program] = command_line(parser_of(program, path))
    json.dump(tables, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
