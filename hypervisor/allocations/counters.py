"""Counters of an allocation over the life and death of its processes, which each count from zero."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypervisor.limits import Slot


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one device, since the daemon knows the allocation: launches, seconds of waiting, refusals, GPU seconds."""

    launches: int = 0
    blocked_ns: int = 0
    denials: int = 0
    charged_ns: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.launches + other.launches,
            self.blocked_ns + other.blocked_ns,
            self.denials + other.denials,
            self.charged_ns + other.charged_ns,
        )


class CounterMemory:
    """Adds up the counters of all slots by device; what a process had counted stays when its slot is given on."""

    def __init__(self, device_count: int, *, fresh: bool) -> None:
        self._retired = [Counts()] * device_count
        self._last: dict[tuple[int, int], tuple[Counts, ...]] = {}
        # Of an allocation that an earlier daemon granted, what is counted already has been told.
        self._announced: tuple[int, ...] | None = (0,) * device_count if fresh else None

    def follow(self, slots: Iterable[Slot]) -> tuple[Counts, ...]:
        """The counts by device after this survey."""
        now: dict[tuple[int, int], tuple[Counts, ...]] = {}
        for slot in slots:
            if slot.devices:
                # The sequence above the phase tells this user of the slot from the one before.
                now[slot.number, slot.state >> 8] = tuple(
                    Counts(device.launches, device.blocked_ns, device.denials, device.charged_ns)
                    for device in slot.devices
                )
        for key, counts in self._last.items():
            if key not in now:
                self._retired = [old + count for old, count in zip(self._retired, counts, strict=True)]
        self._last = now
        totals = list(self._retired)
        for counts in now.values():
            totals = [old + count for old, count in zip(totals, counts, strict=True)]
        return tuple(totals)

    def new_denials(self, totals: tuple[Counts, ...]) -> tuple[int, ...]:
        """By device, refusals since the last call."""
        now = tuple(count.denials for count in totals)
        before = now if self._announced is None else self._announced
        self._announced = now
        return tuple(max(0, new - old) for new, old in zip(now, before, strict=True))
