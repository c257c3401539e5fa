"""Lines of the kernel's log that the driver wrote, for the checks; pure. They are understood as the daemon does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypervisor.gpu.health.kernel_log import LogFinding, LogKind, parse
from hypervisor.gpu.health.machine import CONTAINED, PAIR_SECONDS, UNCONTAINED
from hypervisor.gpu.health.policy import XidClass, XidPolicy, tells_fatal

_LOADED = "nvidia-nvlink: Nvlink Core is being initialized"


@dataclass(frozen=True, slots=True)
class Xid:
    """One Xid of the log."""

    told: LogFinding
    line: str
    severity: XidClass


def xids(lines: Iterable[str], policy: XidPolicy) -> list[Xid]:
    """All Xids, the oldest first; a link's that the log calls fatal counts as one that takes a reset."""
    found = []
    for line, told in _told(lines, LogKind.XID):
        severity = policy.class_of(told.number)
        if severity is XidClass.LINK:
            severity = XidClass.RESET if tells_fatal(told.text) else XidClass.DEGRADED
        found.append(Xid(told, line, severity))
    return found


def contained(found: Iterable[Xid]) -> list[Xid]:
    """Without the double-bit errors that the card says, at the same moment, it has contained."""
    every = list(found)
    contained_ones = [each.told for each in every if each.told.number == CONTAINED]
    return [
        each
        for each in every
        if each.told.number != UNCONTAINED or not any(_pair(each.told, other) for other in contained_ones)
    ]


def _pair(one: LogFinding, other: LogFinding) -> bool:
    together = one.at is None or other.at is None or abs(one.at - other.at) <= PAIR_SECONDS
    return one.bus_id == other.bus_id and together


def off_bus(lines: Iterable[str]) -> list[str]:
    """Lines that tell of a card that has fallen off the bus, with an Xid or without."""
    every = list(lines)
    found = [line for line, told in _told(every, LogKind.XID) if told.number == 79]
    return [*found, *(line for line, _ in _told(every, LogKind.OFF_BUS))][-5:]


def switch_faults(lines: Iterable[str]) -> list[str]:
    """Lines that tell of a fault of an NVSwitch."""
    return [line for line, _ in _told(lines, LogKind.SWITCH)]


def _told(lines: Iterable[str], kind: LogKind) -> Iterable[tuple[str, LogFinding]]:
    for line in lines:
        told = parse(line)
        if told is not None and told.kind is kind:
            yield line.strip(), told


def since_load(lines: Sequence[str]) -> Sequence[str]:
    """Lines since the module was loaded last, which it begins with; all where that is not told. What it said before of
    starting a card says nothing of it now."""
    loaded = max((at for at, line in enumerate(lines) if _LOADED in line), default=0)
    return lines[loaded:]


def matching(lines: Iterable[str], *patterns: str) -> list[str]:
    """Lines in which one of the patterns is found, case ignored; the newest five."""
    expressions = [re.compile(pattern, re.IGNORECASE) for pattern in patterns]
    return [line.strip() for line in lines if any(expression.search(line) for expression in expressions)][-5:]
