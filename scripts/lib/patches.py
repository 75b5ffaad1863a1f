"""The patches of tests/mutations, each of which breaks one rule of the protocol."""
import pathlib

import checkout

DIRECTORY = pathlib.Path(checkout.ROOT) / "tests" / "mutations"


class Failure(Exception):
    """A patch that does not fit the sources."""


def title_of(patch):
    return " ".join(patch.read_text().split("\n\n", 1)[0].split())


def hunks_of(patch):
    """(file, lines before, lines after) of each hunk of a unified diff."""
    file = None
    hunks = []
    for line in patch.read_text().splitlines(keepends=True):
        if line.startswith("+++ b/"):
            file = line[6:].strip()
        elif line.startswith("@@"):
            hunks.append((file, [], []))
        elif hunks and line[0] in " -+" and not line.startswith("--- "):
            if line[0] != "+":
                hunks[-1][1].append(line[1:])
            if line[0] != "-":
                hunks[-1][2].append(line[1:])
    return hunks


def apply(patch, tree):
    """Line numbers do not matter, but the lines must be there, once. Returns the files changed."""
    changed = set()
    for file, before, after in hunks_of(patch):
        path = tree / file
        text = path.read_text() if path.exists() else ""
        if text.count("".join(before)) != 1:
            raise Failure(f"{patch.name} does not apply to {file} any more")
        path.write_text(text.replace("".join(before), "".join(after)))
        changed.add(file)
    if not changed:
        raise Failure(f"{patch.name} has no hunks")
    return changed
