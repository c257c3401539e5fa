"""The layouts of the limit files that there were: a text for each version, made from the C header.

    python -m tests.unit.limits.layouts

writes the text of the header's version, tests/golden/limit_files_MAJOR.MINOR.txt, after the version was raised. The
text of a version that was released is never made anew.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).parents[3]
HEADER = ROOT / "limiter/include/hypervisor_limits.h"
GOLDEN = ROOT / "tests/golden"
# What a later version may make a field of: words that no process of an earlier version reads or writes.
_SPARE = re.compile(r"(reserved|line)\d+")
_RETIRED = re.compile(r"retired\d+")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct; bytes of the whole field, with all its elements."""

    offset: int
    bytes: int
    type: str


@dataclass(slots=True)
class Layout:
    """Everything that two programs have to agree on."""

    constants: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    fields: dict[str, dict[str, Field]] = field(default_factory=dict)

    @property
    def version(self) -> str:
        return f"{self.constants['HV_ABI_MAJOR']}.{self.constants['HV_ABI_MINOR']}"

    def text(self) -> str:
        """The layout as it is kept: a line for each constant, struct and field."""
        lines = [f"constant {name} {value}" for name, value in sorted(self.constants.items())]
        for struct, size in sorted(self.sizes.items()):
            lines.append(f"struct {struct} {size}")
            lines += [
                f"field {struct} {name} {found.offset} {found.bytes} {found.type}"
                for name, found in sorted(self.fields[struct].items(), key=lambda each: each[1].offset)
            ]
        return "\n".join(lines) + "\n"


def declared(header: str) -> Layout:
    """The layout that the text of a header declares between its marks."""
    ffi = FFI()
    ffi.cdef(header.partition("/* CFFI BEGIN */")[2].partition("/* CFFI END */")[0])
    lib = ffi.dlopen(None)
    found = Layout(constants={name: int(getattr(lib, name)) for name in dir(lib)})
    for struct in ffi.list_types()[1]:
        kind = ffi.typeof(f"struct {struct}")
        found.sizes[struct] = ffi.sizeof(kind)
        found.fields[struct] = {
            name: Field(each.offset, ffi.sizeof(each.type), each.type.cname) for name, each in kind.fields
        }
    return found


def parsed(text: str) -> Layout:
    """The layout of a text that was kept."""
    found = Layout()
    for line in text.splitlines():
        word, rest = line.split(" ", 1)
        if word == "constant":
            name, value = rest.split(" ")
            found.constants[name] = int(value)
        elif word == "struct":
            name, value = rest.split(" ")
            found.sizes[name], found.fields[name] = int(value), {}
        else:
            struct, name, offset, size, kind = rest.split(" ", 4)
            found.fields[struct][name] = Field(int(offset), int(size), kind)
    return found


def kept() -> dict[str, Layout]:
    """By version, the layouts that were kept, the earliest first."""
    found = [parsed(path.read_text()) for path in GOLDEN.glob("limit_files_*.txt")]
    return {each.version: each for each in sorted(found, key=lambda each: tuple(map(int, each.version.split("."))))}


def breaks(older: Layout, newer: Layout) -> list[str]:
    """What of a newer layout a program that knows the older one would misread, or be misread in."""
    found = [
        f"{name} was {value} and is {newer.constants.get(name)}"
        for name, value in older.constants.items()
        if newer.constants.get(name) != value and name != "HV_ABI_MINOR"
    ]
    for struct, size in older.sizes.items():
        if newer.sizes.get(struct, 0) < size:
            found.append(f"struct {struct} had {size} bytes and has {newer.sizes.get(struct, 0)}")
            continue
        fields = newer.fields[struct]
        retired = {(each.offset, each.bytes) for name, each in fields.items() if _RETIRED.fullmatch(name)}
        for name, before in older.fields[struct].items():
            if _SPARE.fullmatch(name) or fields.get(name) == before or (before.offset, before.bytes) in retired:
                continue
            found.append(f"{struct}.{name} was {before} and is {fields.get(name)}")
    return found


if __name__ == "__main__":
    current = declared(HEADER.read_text())
    (GOLDEN / f"limit_files_{current.version}.txt").write_text(current.text())
