"""The commands in README.md and docs/, for the tests that run them."""
import collections
import functools
import os
import re

from harness import ROOT

SHELL = ("bash", "sh", "")  # languages of blocks that may hold commands

# Blocks of a shell's language or of none are commands. A comment above one, which no reader sees,
# marks its lines:
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


def outside_blocks(path):
    """Numbered lines of a document that are in no fenced block."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        inside = False
        for number, line in enumerate(file, 1):
            if line.startswith("```"):
                inside = not inside
            elif not inside:
                yield number, line


def links(path):
    """Line and target of those that do not lead elsewhere."""
    for number, line in outside_blocks(path):
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if "://" not in target:
                yield number, target


@functools.cache
def headings(path):
    """As links name them: by GitHub's rule, for headings that are different."""
    titles = (re.match("#+ (.*)", line) for _, line in outside_blocks(path))
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", title[1]) for title in titles if title)
    return {re.sub(r"[^\w -]", "", title.strip().lower()).replace(" ", "-") for title in plain}
