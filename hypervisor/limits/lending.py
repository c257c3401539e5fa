"""Who may have how much of a device's time now: what is lent on top of limits, and what they are contracted to.

Limits may sum up to more than the device, requests not: where all ask for more than there is, each has what it
requested, and of the rest a part by its weight. Where some leave their time unused, those whose policy lets them borrow
it. Pure. Shares are of GPU time, 1 is the whole device. Both expire by themselves unless they are renewed, so with a
daemon that dies the limits hold; an owner that comes back is seen at the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EXPIRY_MS = 200
LEAST_SHARE = 0.005  # not worth a word in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One allocation on the device. request: its guaranteed share, at most the limit. active: it has launched a moment
    ago; borrows: its policy lets it."""

    limit: float
    request: float = 0.0
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


def contract(demands: Sequence[Demand], *, foreign: float = 0.0) -> tuple[float | None, ...]:
    """For each allocation the share in force instead of its limit; None: the limit.

    Only where the limits of those that are active sum up to more than there is. foreign is the share that others'
    processes use.
    """
    there_is = 1.0 - min(max(foreign, 0.0), 1.0)
    active = [at for at, demand in enumerate(demands) if demand.active]
    contracted: list[float | None] = [None] * len(demands)
    if sum(demands[at].limit for at in active) <= there_is + LEAST_SHARE:
        return tuple(contracted)
    guaranteed = {at: min(demands[at].request, demands[at].limit) for at in active}
    promised = sum(guaranteed.values())
    shrunk = min(there_is / promised, 1.0) if promised else 1.0  # others took what was promised
    given = {at: share * shrunk for at, share in guaranteed.items()}
    left, open_to = there_is - sum(given.values()), list(active)
    while open_to and left > 1e-9:
        weights = sum(max(demands[at].weight, 1) for at in open_to)
        parts = {at: left * max(demands[at].weight, 1) / weights for at in open_to}
        full = [at for at in open_to if parts[at] >= demands[at].limit - given[at]]
        for at in full or open_to:
            more = min(parts[at], demands[at].limit - given[at])
            given[at] += more
            left -= more
        if not full:
            break
        open_to = [at for at in open_to if at not in full]
    for at, share in given.items():
        if share < demands[at].limit:
            contracted[at] = max(share, LEAST_SHARE)
    return tuple(contracted)
