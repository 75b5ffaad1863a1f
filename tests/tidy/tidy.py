#!/usr/bin/env python3
"""Checks every file of the project against the house rules: `tidy.py ROOT`."""
import os
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import rules  # noqa: E402

NO_TEXT = (".png", ".json")
UNCHECKED = {"LICENSE", ".git"}  # the latter is a file in a worktree
CLANG_FORMAT = 14  # Debian 12's
PUBLIC = re.compile(r"(?:common|worker|bindings/c)/include/(.*)")


def project_files(root):
    for directory, below, files in os.walk(root):
        below[:] = [d for d in below
                    if d not in (".git", "__pycache__", "corpus") and not d.startswith("build")]
        for name in files:
            path = os.path.relpath(os.path.join(directory, name), root)
            if path not in UNCHECKED and not name.endswith(NO_TEXT + (".pyc", ".orig", ".rej")):
                yield path


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def included_names(paths):
    """How headers are included: from the root, and public ones also as <sluice/...>."""
    for path in paths:
        yield path
        public = PUBLIC.match(path)
        if public:
            yield public.group(1)


def complaints(root):
    sources = {path: read(root, path) for path in sorted(project_files(root))}
    headers = set(included_names(path for path in sources if path.endswith((".hpp", ".h", ".inc"))))
    for path, text in sources.items():
        yield from rules.check(path, text, headers)
    yield from rules.unused_headers(sources, {path for path in sources if PUBLIC.match(path)})
    formatted = [path for path in sources if path.endswith(rules.CPP + rules.C)]
    yield from format_complaints(root, formatted)


def clang_format():
    """Of the version by which the code is formatted; None if it is not installed."""
    for name in (f"clang-format-{CLANG_FORMAT}", "clang-format"):
        if shutil.which(name):
            said = subprocess.run([name, "--version"], stdout=subprocess.PIPE, text=True,
                                  check=False).stdout
            if f"version {CLANG_FORMAT}." in said:
                return name
    return None


def format_complaints(root, paths):
    """clang-format's own words, two processes' worth; nothing where that version is not installed,
    which is told as a part of the test that is not run."""
    program = clang_format()
    if program is None:
        print(f"skipped: format: needs clang-format {CLANG_FORMAT}; others differ in some lines")
        return
    command = [program, "--dry-run", "--Werror", "--ferror-limit=1"]
    running = [subprocess.Popen([*command, *paths[i::2]], cwd=root, stderr=subprocess.PIPE,
                                text=True) for i in range(2)]
    for process in running:
        errors = process.communicate()[1]
        yield from (line for line in errors.splitlines() if ": error: " in line)


def main():
    root = sys.argv[1] if len(sys.argv) == 2 else sys.exit(f"usage: {sys.argv[0]} ROOT")
    found = list(complaints(root))
    print("\n".join(found))
    print(f"{len(found)} complaints")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
