"""What of a device's time is lent to allocations that may use more than their limit while others don't use theirs.

Pure. Shares are of GPU time, 1 is the whole device. What is lent expires by itself unless it is lent again, so a daemon
that dies lends nothing; an owner that comes back is seen at the next step, and then nothing of its share is lent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EXPIRY_MS = 200
LEAST_SHARE = 0.005  # not worth a word in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One allocation on the device. active: it has launched a moment ago; borrows: its policy lets it."""

    limit: float
    weight: int
    active: bool
    borrows: bool


def lend(demands: Sequence[Demand], *, foreign: float = 0.0) -> tuple[float, ...]:
    """For each allocation the share on top of its limit.

    Whoever is active has all of its limit; what is left is divided by weight among the active ones that may borrow,
    none of which gets more than the rest of the device. foreign is the share that others' processes use.
    """
    left = 1.0 - sum(demand.limit for demand in demands if demand.active) - min(max(foreign, 0.0), 1.0)
    lent = [0.0] * len(demands)
    open_to = [at for at, demand in enumerate(demands) if demand.active and demand.borrows and demand.limit < 1]
    while open_to and left > LEAST_SHARE:
        weights = sum(max(demands[at].weight, 1) for at in open_to)
        parts = {at: left * max(demands[at].weight, 1) / weights for at in open_to}
        room = {at: 1.0 - demands[at].limit - lent[at] for at in open_to}
        full = [at for at in open_to if parts[at] >= room[at]]
        for at in full or open_to:
            given = min(parts[at], room[at])
            lent[at] += given
            left -= given
        if not full:
            break
        open_to = [at for at in open_to if at not in full]
    return tuple(share if share >= LEAST_SHARE else 0.0 for share in lent)
