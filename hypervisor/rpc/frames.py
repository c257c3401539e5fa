"""Frames of the owner socket: a length, a kind, a message. Pure.

One request a connection: an AllocateRequest in, an AllocateResponse or a google.rpc.Status out. gRPC is not used here,
because it doesn't say which process has called.
"""

from __future__ import annotations

import struct
from enum import Enum

MAX_FRAME_BYTES = 64 * 1024
HEADER_BYTES = 5
_HEADER = struct.Struct(">Ic")


class FrameKind(Enum):
    """What a frame holds."""

    ALLOCATE = b"A"
    RESPONSE = b"R"
    STATUS = b"S"


class FrameError(ValueError):
    """A frame that can't be read; the text says why."""


def encode(kind: FrameKind, payload: bytes) -> bytes:
    """The bytes of a frame. Raises FrameError when the payload is too large for the other side."""
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(payload)} bytes is above the {MAX_FRAME_BYTES} of a frame")
    return _HEADER.pack(len(payload), kind.value) + payload


def decode_header(header: bytes) -> tuple[FrameKind, int]:
    """Kind and length of the payload that follows. Raises FrameError."""
    length, kind = _HEADER.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {length} bytes is above the {MAX_FRAME_BYTES} of a frame")
    try:
        return FrameKind(kind), length
    except ValueError:
        raise FrameError(f"{kind!r} is not a kind of frame") from None
