"""NVML's return codes, what they mean for the daemon, and words for people."""

from __future__ import annotations

from enum import Enum

SUCCESS = 0
UNINITIALIZED = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
IN_USE = 19
INSUFFICIENT_RESOURCES = 23
GPU_NOT_FOUND = 28
UNKNOWN = 999

# A type of event, as NVML numbers them.
EVENT_XID = 0x8
# A virtualization mode.
VGPU_GUEST = 2

# Ours, where the driver gave SUCCESS and something that can't be an answer. Negative: NVML will never use them.
UNREADABLE = -1
NOT_ASKED = -2


class ErrorClass(Enum):
    """How a code is treated."""

    GOOD = "good"
    ABSENT = "absent"  # the GPU or the driver has no such thing: publish nothing, ask no more
    TRANSIENT = "transient"  # ask again next time, the last good value stands
    DEAD = "dead"  # the GPU is gone or needs a reset
    UNUSABLE = "unusable"  # listed by the driver, which can't start it
    LIBRARY = "library"  # about the node, not about one GPU
    PERMISSION = "permission"
    VAGUE = "vague"


_CLASSES = {
    ErrorClass.GOOD: (0,),
    ErrorClass.ABSENT: (3, 13, 25, 26),
    ErrorClass.TRANSIENT: (7, 10, 20, 21, 27, UNREADABLE, NOT_ASKED),
    ErrorClass.DEAD: (15, 16),
    ErrorClass.UNUSABLE: (8, 11, 14),
    ErrorClass.LIBRARY: (1, 9, 12, 18, 28),
    ErrorClass.PERMISSION: (4,),
}
_CLASS_OF = {code: kind for kind, members in _CLASSES.items() for code in members}

_WORDS = {
    0: "success",
    1: "NVML is not initialised",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    7: "the answer did not fit",
    8: "the external power cables are not attached properly",
    9: "the NVIDIA driver is not loaded",
    10: "the driver timed out",
    11: "interrupts of the GPU do not arrive",
    12: "libnvidia-ml.so.1 is not found",
    13: "this driver has no such function",
    14: "the infoROM of the GPU is corrupted",
    15: "the GPU is lost (fallen off the bus)",
    16: "the GPU needs a reset",
    17: "the operating system refused it",
    18: "library and kernel module of the driver are of different versions",
    19: "in use by another client",
    20: "the driver is out of memory",
    21: "no data",
    23: "there is not enough room for it",
    25: "this driver does not know this version of the call",
    26: "this driver no longer has the call",
    27: "the driver is not ready",
    28: "the driver finds no GPU",
    29: "the GPU is in a state that does not allow it",
    999: "unknown error",
    UNREADABLE: "the answer can't be read",
    NOT_ASKED: "not asked",
}


def classify(code: int) -> ErrorClass:
    """The class of a code; one that is not known counts as vague."""
    return _CLASS_OF.get(code, ErrorClass.VAGUE)


def words(code: int) -> str:
    """What a code means, with the code: "the driver timed out (NVML 10)"."""
    return f"{_WORDS.get(code, 'an error without a name')} (NVML {code})" if code >= 0 else _WORDS[code]
