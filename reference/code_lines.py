"""Lines of the code that is made."""
import textwrap

COLUMNS = 100


def fill(text, **indents):
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False, **indents)


def listed(head, parts, tail, indent):
    """`head`, the parts and `tail`, in lines that begin anew between two parts."""
    whole = head + ", ".join(part.replace(" ", "\0") for part in parts) + tail
    return fill(whole, subsequent_indent=" " * indent).replace("\0", " ")
