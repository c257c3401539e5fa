"""Lines of the kernel's log that the driver wrote, understood; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bdf>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\): (?P<xid>\d+)\b"
)
_SXID = re.compile(r"nvidia-nvswitch\d*: SXid \(PCI:[^)]+\): (?P<sxid>\d+)\b(?P<rest>.*)")


class XidClass(Enum):
    """What NVIDIA's catalogue asks for at once."""

    IGNORE = "ignore"
    APPLICATION = "application"
    DEGRADED = "degraded"
    RESET = "reset"
    REBOOT = "reboot"
    HARDWARE = "hardware"


def _numbers(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


# NVIDIA's Xid catalogue for Ampere and newer, by immediate action (reference/nvidia-stack.md 3.1).
_CLASSES: tuple[tuple[XidClass, frozenset[int]], ...] = (
    (
        XidClass.APPLICATION,
        _numbers("8,11,13,25,31,32,39-41,60,68-72,75-77,80,82-86,88,89,94,96-105,126-135,139"),
    ),
    (XidClass.IGNORE, _numbers("37,38,43-45,63,66,67,92,93,106,107,121,137,141,152-154,157,160,161")),
    (XidClass.RESET, _numbers("46,48,62,64,95,109,110,119,120,136,140,143,155,156,158")),
    (XidClass.REBOOT, _numbers("79,151")),
    (XidClass.HARDWARE, _numbers("54,78,142,167,169")),
    (XidClass.DEGRADED, _numbers("74,144-150,159,162-166,168,170-172")),
)


@dataclass(frozen=True, slots=True)
class Xid:
    """One Xid of the log. bdf as the log spells it."""

    bdf: str
    number: int
    line: str

    @property
    def severity(self) -> XidClass:
        """By the catalogue; an unknown number is degraded, so that it is seen and takes nothing away."""
        if 144 <= self.number <= 150 and re.search(r"\bFatal\b", self.line):
            return XidClass.RESET
        return next((kind for kind, numbers in _CLASSES if self.number in numbers), XidClass.DEGRADED)


def xids(lines: Iterable[str]) -> list[Xid]:
    """All Xids, the oldest first."""
    found = []
    for line in lines:
        match = _XID.search(line)
        if match is not None:
            found.append(Xid(match["bdf"], int(match["xid"]), line.strip()))
    return found


def contained(found: Iterable[Xid]) -> list[Xid]:
    """Without the double-bit errors that the card says it has contained: 48 with a 94 of the same card."""
    every = list(found)
    with_94 = {each.bdf for each in every if each.number == 94}
    return [each for each in every if not (each.number == 48 and each.bdf in with_94)]


def sxids(lines: Iterable[str]) -> list[str]:
    """Lines that tell of a fault of an NVSwitch."""
    return [line.strip() for line in lines if _SXID.search(line)]


def matching(lines: Iterable[str], *patterns: str) -> list[str]:
    """Lines in which one of the patterns is found, case ignored; the newest five."""
    expressions = [re.compile(pattern, re.IGNORECASE) for pattern in patterns]
    return [line.strip() for line in lines if any(expression.search(line) for expression in expressions)][-5:]
