"""How a program is linked, from the first bytes of its file: whether the loader reads /etc/ld.so.preload at all."""

from __future__ import annotations

import struct
from enum import Enum

from hypervisor.doctor.root import Root, UnreadableError

_HEADER = struct.Struct("<4sBBBB8xHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_INTERPRETER = 3  # PT_INTERP
_MOST = 4096


class Linkage(Enum):
    """What loads a program."""

    GLIBC = "linked against glibc"
    MUSL = "linked against musl"
    STATIC = "linked statically"
    UNKNOWN = "not known how it is linked"


def linkage(root: Root, pid: int) -> Linkage:
    """Of the program that a process runs; UNKNOWN where its file can't be read, or is no 64-bit ELF file."""
    try:
        head = root.head(f"/proc/{pid}/exe", _MOST)
    except UnreadableError:
        return Linkage.UNKNOWN
    return linkage_of(head)


def linkage_of(head: bytes) -> Linkage:
    """By the first 4 KiB of the file, in which linkers put the program headers and the interpreter's name."""
    if len(head) < _HEADER.size or head[:4] != b"\x7fELF" or head[4] != 2:
        return Linkage.UNKNOWN
    fields = _HEADER.unpack_from(head)
    offset, size, count = fields[9], fields[13], fields[14]
    for number in range(min(count, 64)):
        start = offset + number * size
        if start + _PROGRAM.size > len(head):
            return Linkage.UNKNOWN
        kind, _, place, _, _, length, _, _ = _PROGRAM.unpack_from(head, start)
        if kind == _INTERPRETER:
            name = head[place : place + length].rstrip(b"\0")
            return Linkage.MUSL if b"ld-musl" in name else Linkage.GLIBC
    return Linkage.STATIC
