"""Lines of the kernel's log that the driver wrote, understood; pure. The policy of Xids is the daemon's own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hypervisor.gpu.health.kernel_log import LogKind, parse
from hypervisor.gpu.health.policy import XidClass, XidPolicy

_SXID = re.compile(r"nvidia-nvswitch\d*: SXid \(PCI:[^)]+\): \d+\b")


@dataclass(frozen=True, slots=True)
class Xid:
    """One Xid of the log; bus_id as sysfs writes it."""

    bus_id: str
    number: int
    line: str
    severity: XidClass


def xids(lines: Iterable[str], policy: XidPolicy) -> list[Xid]:
    """All Xids, the oldest first; a link's that the log calls fatal counts as one that takes a reset."""
    found = []
    for line in lines:
        told = parse(line)
        if told is None or told.kind is not LogKind.XID:
            continue
        severity = policy.class_of(told.number)
        if severity is XidClass.LINK:
            severity = XidClass.RESET if re.search(r"\bFatal\b", told.text) else XidClass.DEGRADED
        found.append(Xid(told.bus_id, told.number, line.strip(), severity))
    return found


def contained(found: Iterable[Xid]) -> list[Xid]:
    """Without the double-bit errors that the card says it has contained: 48 with a 94 of the same card."""
    every = list(found)
    with_94 = {each.bus_id for each in every if each.number == 94}
    return [each for each in every if not (each.number == 48 and each.bus_id in with_94)]


def sxids(lines: Iterable[str]) -> list[str]:
    """Lines that tell of a fault of an NVSwitch."""
    return [line.strip() for line in lines if _SXID.search(line)]


def matching(lines: Iterable[str], *patterns: str) -> list[str]:
    """Lines in which one of the patterns is found, case ignored; the newest five."""
    expressions = [re.compile(pattern, re.IGNORECASE) for pattern in patterns]
    return [line.strip() for line in lines if any(expression.search(line) for expression in expressions)][-5:]
