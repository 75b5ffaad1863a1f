"""Tables in Markdown."""


def row(cells):
    return "| " + " | ".join(map(str, cells)) + " |"


def head(names):
    """The two lines that a table begins with."""
    return row(names) + "\n" + row(["---"] * len(names))


def markdown(names, rows):
    """A whole table."""
    return "\n".join([head(names), *map(row, rows)])
