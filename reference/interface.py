#!/usr/bin/env python3
"""sluice.h as a table: its enums, structs and functions, and what other languages have of them:

    interface.py HEADER python    bindings/python/sluice/_interface.py: all of it for ctypes
    interface.py HEADER c++       to_c.cpp: values and statistics of sluice.hpp as sluice.h has them
"""
import dataclasses
import re
import sys

sys.dont_write_bytecode = True
import code_lines  # noqa: E402

NUMBERS = ("int", "int32_t", "int64_t", "uint16_t", "uint32_t", "uint64_t", "size_t", "float",
           "double", "char")
LIMITS = {"INT64_MAX": "2**63 - 1"}
MEMBER = re.compile(r"/\*(.*?)\*/|([\w ]+?\**) *(\w+)(?:\[(\d+)\])?;", re.S)
VALUE = re.compile(r"/\*(.*?)\*/|(\w+) = (\d+)", re.S)


@dataclasses.dataclass
class Row:
    """A member of a struct, or a value of an enum."""
    name: str
    type: str = ""
    count: str = ""  # of an array
    number: int = 0
    comment: str = ""


@dataclasses.dataclass
class Type:
    kind: str  # "enum" or "struct"
    name: str
    comment: str
    rows: list


@dataclasses.dataclass
class Function:
    name: str
    result: str
    arguments: list  # types


@dataclasses.dataclass
class Interface:
    types: list
    functions: list
    constants: dict

    def of(self, kind):
        return {of.name: of for of in self.types if of.kind == kind}


def sentence(comment):
    return " ".join(re.sub(r"\n\s*\*", " ", comment).split())


def rows_of(kind, body):
    """A comment belongs to the row before it in its line; else it has none."""
    rows, end = [], 0
    for found in (VALUE if kind == "enum" else MEMBER).finditer(body):
        if found[1] is not None:
            if rows and "\n" not in body[end:found.start()]:
                rows[-1].comment = sentence(found[1])
            continue
        rows.append(Row(found[2], number=int(found[3])) if kind == "enum" else
                    Row(found[3], found[2].strip(), found[4] or ""))
        end = found.end()
    return rows


def read(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    types = [Type(kind, name, sentence(comment), rows_of(kind, body))
             for comment, kind, name, body in re.findall(
                 r"/\*((?:(?!\*/).)*)\*/\ntypedef (enum|struct) (\w+) \{\n(.*?)\n\} \3;", text,
                 re.S)]
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    functions = [Function(name, result.strip(), types_of(arguments))
                 for result, name, arguments in re.findall(
                     r"^([a-z][\w ]*?\**) *(sluice_\w+)\(([^)]*)\);", code, re.M)]
    constants = dict(re.findall(r"^#define (SLUICE_\w+) (INT64_MAX)$", code, re.M))
    return Interface(types, functions, constants)


def types_of(arguments):
    """Without the names; an array is a pointer."""
    texts = [" ".join(text.split()) for text in arguments.split(",")]
    return [re.sub(r" ?(\w+)$", "", re.sub(r"(\w+)\[\d+\]$", r"* \1", text))
            for text in texts if text != "void"]


# --- Python

HEAD = '''\
# Made of sluice.h: change nothing here, but run `ninja -C build python-interface`.
"""sluice.h for ctypes: its values, its structs, and the types of its functions. Statistics are here
twice: as the library writes them, and as users read them."""
from __future__ import annotations

import dataclasses
import enum
'''


def camel(name):
    """"JobStatistics" of "sluice_job_statistics"."""
    return "".join(word.capitalize() for word in name.split("_")[1:])


def value_name(of, row):
    """"OK" of SLUICE_OK, "INT8" of SLUICE_ENCODING_INT8."""
    return re.sub(rf"^({of.name.upper()}|SLUICE)_", "", row.name)


def plain(type_name):
    return type_name.replace("const ", "").rstrip("* ")


def for_ctypes(interface, type_name, is_member=False):
    """Addresses of arrays are numbers; what is one of something is a pointer to it."""
    base, stars = plain(type_name), type_name.count("*")
    number = "c_int" if base in interface.of("enum") else "c_" + base.removesuffix("_t") + (
        "_t" if base == "size_t" else "")
    if stars == 0:
        return base if base in interface.of("struct") else number
    if stars == 1 and base == "char":
        return "c_char_p"
    if stars == 1 and base in interface.of("struct"):
        return f"POINTER({base})"
    if stars == 2 and base not in NUMBERS:
        return "POINTER(c_void_p)"
    if stars == 1 and base in NUMBERS and base != "float" and "const" not in type_name \
            and not is_member:
        return f"POINTER({number})"
    return "c_void_p"


def wrapped(head, parts, tail):
    """The next lines as far in as the first part."""
    return code_lines.listed(head, parts, tail, len(head))


def docstring(comment):
    return code_lines.fill(f'"""{comment}"""', initial_indent="    ", subsequent_indent="    ")


def commented(line, comment):
    """With its comment behind it, or above, if it is too long."""
    if not comment:
        return [line]
    whole = f"{line}  #: {comment}"
    if len(whole) <= code_lines.COLUMNS:
        return [whole]
    return [code_lines.fill(comment, initial_indent="    #: ", subsequent_indent="    #: "), line]


def python_enum(of):
    name = "Status" if of.name == "sluice_status" else camel(of.name)
    lines = [f"class {name}(enum.IntEnum):", docstring(of.comment)]
    for row in of.rows:
        lines += commented(f"    {value_name(of, row)} = {row.number}", row.comment)
    return "\n".join(lines)


def python_struct(interface, of):
    members = [f'("{row.name}", {for_ctypes(interface, row.type, is_member=True)}'
               + (f" * {row.count})" if row.count else ")") for row in of.rows]
    return f"class {of.name}(Structure):\n" + wrapped("    _fields_ = [", members, "]")


def python_statistics(of):
    lines = ["@dataclasses.dataclass(frozen=True)", f"class {camel(of.name)}:",
             docstring(of.comment)]
    for row in of.rows:
        lines += commented(f"    {row.name}: int", row.comment)
    return "\n".join(lines)


def python_functions(interface):
    """Two tables: of those that may fail, without the error, which comes last; and the others."""
    fallible, others = [], []
    for function in interface.functions:
        types = [for_ctypes(interface, of) for of in function.arguments]
        if function.result == "sluice_status" and types[-1:] == ["POINTER(sluice_error)"]:
            fallible.append(wrapped(f'    "{function.name}": [', types[:-1], "],"))
        else:
            result = "None" if function.result == "void" else for_ctypes(interface, function.result)
            others.append(wrapped(f'    "{function.name}": ({result}, [', types, "]),"))
    yield "\n".join(["#: Of the functions that may fail: the arguments but the last, the error.",
                     "FALLIBLE: dict[str, list[Any]] = {", *fallible, "}"])
    yield "\n".join(["#: Of the others: what they return, and the arguments.",
                     "PLAIN: dict[str, tuple[Any, list[Any]]] = {", *others, "}"])


def python(interface):
    structs = interface.of("struct").values()
    parts = [python_enum(of) for of in interface.of("enum").values()]
    parts += [python_struct(interface, of) for of in structs]
    parts += [python_statistics(of) for of in structs if of.name.endswith("_statistics")]
    parts += ["\n".join([*(f"{name.removeprefix('SLUICE_')} = {LIMITS[value]}"
                           for name, value in interface.constants.items()),
                         *python_functions(interface)])]
    body = "\n\n\n".join(parts)
    used = sorted(set(re.findall(r"\b(POINTER|Structure|c_\w+)\b", body)))
    return HEAD + wrapped("from ctypes import (", used, ")") + (
        "\nfrom typing import Any\n\n\n" + body + "\n")


# --- C++

SPELT = {"Bfloat16": "BFloat16", "Uint8": "UInt8"}


def enumerator(of, row):
    name = "".join(word.capitalize() for word in value_name(of, row).split("_"))
    return "k" + SPELT.get(name, name)


def to_c_of_enum(of):
    """A switch, so that the compiler finds what sluice.h lacks."""
    kind = "ErrorCode" if of.name == "sluice_status" else camel(of.name)
    rows = [row for row in of.rows if kind != "ErrorCode" or row.number != 0]  # no error is OK
    yield f"{of.name} to_c({kind} value) {{"
    yield "  switch (value) {"
    for row in rows:
        yield f"    case {kind}::{enumerator(of, row)}:"
        yield f"      return {row.name};"
    yield "  }"
    yield f"  return static_cast<{of.name}>(value);"
    yield "}"
    for row in rows:
        yield f"static_assert(static_cast<int>({kind}::{enumerator(of, row)}) == {row.name});"


def to_c_of_statistics(of):
    """A member in nanoseconds is a std::chrono::nanoseconds there, whose name has no unit."""
    yield f"static_assert(sizeof({camel(of.name)}) == sizeof({of.name}));"
    yield f"{of.name} to_c(const {camel(of.name)}& from) {{"
    yield "  return {"
    for row in of.rows:
        name = row.name.removesuffix("_ns")
        value = f"from.{name}" if name == row.name else (
            f"static_cast<{row.type}>(from.{name}.count())")
        yield f"      .{row.name} = {value},"
    yield "  };"
    yield "}"


def cpp(interface):
    lines = ["// Made of sluice.h by interface.py.", '#include "bindings/c/to_c.hpp"', "",
             "namespace sluice::c {", ""]
    for of in interface.types:
        if of.kind == "enum":
            lines += [*to_c_of_enum(of), ""]
        elif of.name.endswith("_statistics"):
            lines += [*to_c_of_statistics(of), ""]
    return "\n".join([*lines, "}  // namespace sluice::c", ""])


def main():
    path, language = sys.argv[1:]
    sys.stdout.write({"python": python, "c++": cpp}[language](read(path)))


if __name__ == "__main__":
    main()
