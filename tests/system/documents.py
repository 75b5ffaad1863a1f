"""The commands that README.md and docs/ show, for the tests that type them."""
import collections
import os
import re

from harness import ROOT

SHELL = ("bash", "sh", "")  # languages of blocks that may hold commands

# Blocks of a shell's language or of none are commands. A comment above one, which no reader sees,
# says of its lines:
#   <!-- run by TEST -->               tests/system/TEST.py takes them by commands() and runs them
#   <!-- not run: BEGIN : REASON -->   but not those that begin so; * is all of them
RUN = re.compile(r"<!-- run by (\w+) -->")
NOT_RUN = re.compile(r"<!-- not run: (.+?) : (.+?) -->")

Block = collections.namedtuple("Block", "path line language lines marks")


def paths():
    docs = sorted(name for name in os.listdir(os.path.join(ROOT, "docs")) if name.endswith(".md"))
    return ["README.md", *(os.path.join("docs", name) for name in docs)]


def blocks(path):
    """The fenced blocks of a document, with the marks above each."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        lines = file.read().splitlines()
    marks, begin = [], None
    for number, line in enumerate(lines, 1):
        if line.startswith("```") and begin is None:
            begin = number
        elif line.startswith("```"):
            yield Block(path, begin, lines[begin - 1][3:], lines[begin:number - 1], marks)
            marks, begin = [], None
        elif begin is None and line.startswith("<!--"):
            marks = [*marks, line]
        elif begin is None and line:
            marks = []


def is_excused(line, block):
    excuses = (NOT_RUN.fullmatch(mark) for mark in block.marks)
    return any(e and (e[1] == "*" or line.startswith(e[1])) for e in excuses)


def tests_of(block):
    return [found[1] for found in map(RUN.fullmatch, block.marks) if found]


def commands(path, first):
    """The lines to be run, without comments, of the first block that begins with these words."""
    block = next(block for block in blocks(path)
                 if block.lines and (block.lines[0] + " ").startswith(first + " "))
    return [re.sub(r"\s+# .*", "", line) for line in block.lines if not is_excused(line, block)]
