#!/usr/bin/env python3
"""docs/protocol.md as a table: its kinds, structs and names of values, and what is made of them:

    protocol.py PAGE dissector SCRIPT    the script for Wireshark, with the tables of the page
    protocol.py PAGE c++                 for the tests: fields, and numbers of values, beside those
                                         of wire.hpp
"""
import dataclasses
import re
import sys

sys.dont_write_bytecode = True
import code_lines  # noqa: E402

BEGIN = ("-- Made of docs/protocol.md: change nothing here, but run"
         " `ninja -C build dissector-tables`.")
END = "-- The end of what is made."


@dataclasses.dataclass
class Field:
    name: str
    offset: int
    size: int
    meaning: str
    struct: str = ""  # if it is one


@dataclasses.dataclass
class Page:
    kinds: list  # (code, name, struct), by their codes
    structs: dict  # fields by name
    enums: dict  # names by numbers, by name


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def read_page(path):
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", read(path))  # without links
    kinds = sorted((code, name, struct) for name, code, struct in
                   re.findall(r"^#### ([A-Z_]+) (0x[0-9a-f]{2}): `(\w+)`$", text, re.M))
    structs = {}
    for name, section in re.findall(r"^#+ [^\n]*`(\w+)`\n(.*?)(?=^#|\Z)", text, re.M | re.S):
        structs[name] = [
            Field(field, int(offset), int(size), meaning) for offset, size, field, meaning in
            re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \| ?([^|]*?) ?\|", section, re.M)]
    for fields in structs.values():
        for field in fields:
            field.struct = next((name for name, of in structs.items() if is_one(field, name, of)),
                                "")
    meanings = {f"{struct}.{field.name}": field.meaning
                for struct, fields in structs.items() for field in fields}
    types = names_in(re.search(r"^Element types: (.*?)\.$", text, re.M | re.S)[1])
    return Page(kinds, structs, {
        "collectives": names_in(meanings["Descriptor.collective"]),
        "element_types": types,
        "wire_types": types | names_in(meanings["Shape.wire_type"]),
        "reductions": names_in(meanings["Descriptor.reduction"]),
        "abort_reasons": {int(number): name for number, name in
                          re.findall(r"^\| (\d+) \| ([a-z ]+) \| [^|]*\|$", text, re.M)},
        "abort_fields": names_in(re.search(r"^Fields: (.*?)\.$", text, re.M | re.S)[1]),
    })


def is_one(field, name, fields):
    """`member` of 32 bytes is a MemberHeader."""
    return (name in (field.name.capitalize(), field.name.capitalize() + "Header")
            and field.size == sum(of.size for of in fields))


def names_in(text):
    """{1: "sum", 2: "min"} of "1 sum, 2 min"."""
    return {int(number): " ".join(name.split()) for number, name in
            re.findall(r"\b(\d+) ([a-z][\w\s]*?)(?=[,;.]|$)", text)}


def bits_of(field):
    """Names from bit 0 on: of "bit 0, *part*: ..." or "1, *present*: ..."."""
    return [name.replace(" ", "_") for _, name in
            re.findall(r"\b(bit \d|[124]), \*([\w ]+)\*:", field.meaning)]


# --- Lua

def lua_field(field):
    of = f'"{field.struct}"' if field.struct else str(field.size)
    bits = ", ".join(f'"{name}"' for name in bits_of(field))
    return f'{{"{field.name}", {of}' + (f", {{{bits}}}" if bits else "") + "}"


def lua_tables(page):
    yield BEGIN
    names = {"kind_names": [(code, name) for code, name, _ in page.kinds],
             "kind_structs": [(code, struct) for code, _, struct in page.kinds],
             **{name: sorted(values.items()) for name, values in page.enums.items()}}
    for name, values in names.items():
        rows = [f'[{value}] = "{text}"' for value, text in values]
        yield code_lines.listed(f"local {name} = {{", rows, "}", 4)
    yield "--- By struct its fields: name, bytes or the struct that it is, names of its bits."
    yield "local layouts = {"
    for name, fields in page.structs.items():
        yield code_lines.listed(f"  {name} = {{", map(lua_field, fields), "},", 4)
    yield "}"
    yield END


def dissector(page, path):
    before, rest = read(path).split(BEGIN)
    return before + "\n".join(lua_tables(page)) + rest.split(END)[1]


# --- C++

def enumerator(name):
    return "k" + "".join(word.capitalize() for word in re.split("[ _]", name))


def cpp(page):
    lines = ["// Made of docs/protocol.md by reference/protocol.py.",
             "#include <cstddef>", "", '#include "common/protocol/wire.hpp"',
             '#include "tests/unit/wire_layout.hpp"', "",
             "namespace sluice::test {", "",
             "#define ROW(T, field, offset, size) \\",
             "  {#T, #field, offset, size, offsetof(wire::T, field), sizeof(wire::T::field), "
             "sizeof(wire::T)}",
             "std::vector<FieldRow> layout() {", "  return {"]
    lines += [f"      ROW({struct}, {field.name}, {field.offset}, {field.size}),"
              for struct, fields in page.structs.items() for field in fields]
    lines += ["  };", "}", ""]
    for enum, values in (("Collective", page.enums["collectives"]),
                         ("Field", page.enums["abort_fields"])):
        lines += [f"static_assert(wire::{enum}::{enumerator(name)} == wire::{enum}{{{number}}});"
                  for number, name in values.items()]
    lines += [f"static_assert(wire::kLastField == {max(page.enums['abort_fields'])});",
              f"static_assert(wire::kLastAbortReason == {max(page.enums['abort_reasons'])});"]
    return "\n".join([*lines, "", "}  // namespace sluice::test", ""])


def main():
    page, language, *of = sys.argv[1:]
    sys.stdout.write({"dissector": dissector, "c++": cpp}[language](read_page(page), *of))


if __name__ == "__main__":
    main()
