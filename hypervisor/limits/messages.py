"""The message ring of a usage file: what the limiter says in a Pod's processes. Tenants can write anything there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum

from hypervisor.limits._abi import ffi, lib

_RING_BYTES = int(ffi.sizeof("struct hv_message_ring"))


class MessageCode(IntEnum):
    """enum hv_message_code."""

    DENIED = 1
    SLOTS_EXHAUSTED = 2
    ABI_MISMATCH = 3
    UNKNOWN_POINTER = 4
    LEDGER_HEALED = 5
    EXPORT_TABLE = 6
    INTERNAL = 7
    REFUSED = 8
    NODES_LOST = 9


@dataclass(frozen=True, slots=True)
class Message:
    """One message; pid as its writer sees itself, text in printable ASCII."""

    sequence: int
    code: MessageCode
    pid: int
    text: str


def newest_message(descriptor: int, offset: int) -> int:
    """The sequence that the next message will have; 0 where the ring can't be read. Cheap: one word."""
    data = _read(descriptor, 8, offset)
    return int.from_bytes(data, "little") if len(data) == 8 else 0


def read_messages(descriptor: int, offset: int, *, after: int) -> tuple[Message, ...]:
    """All whole messages with a later sequence than `after`, in order: at most as many as the ring holds. What is not
    a message, or is being written, is left out."""
    data = _read(descriptor, _RING_BYTES, offset)
    if len(data) != _RING_BYTES:
        return ()
    ring = ffi.from_buffer("struct hv_message_ring *", data)
    known = {int(code) for code in MessageCode}
    found = [
        Message(
            sequence=int(entry.sequence),
            code=MessageCode(int(entry.code)),
            pid=int(entry.pid),
            text=_printable(bytes(ffi.buffer(entry.text))),
        )
        for place, entry in enumerate(ring.messages)
        if entry.sequence > after and entry.sequence % lib.HV_MESSAGES == place and int(entry.code) in known
    ]
    return tuple(sorted(found, key=lambda message: message.sequence))


def _read(descriptor: int, length: int, offset: int) -> bytes:
    try:
        return os.pread(descriptor, length, offset)
    except OSError:
        return b""


def _printable(text: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "?" for byte in text.split(b"\0", 1)[0])
