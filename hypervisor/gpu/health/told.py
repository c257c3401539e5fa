"""Xids are told by the events of each reader and by the kernel's log: each error by several of them, counted once."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from hypervisor.gpu.health.machine import Xid

# Two sources are about the same error when they tell of it this close to each other.
SAME_SECONDS = 2.0
MOST_REMEMBERED = 64
MOST_SERIES = 512  # of Xid numbers by card: the driver could make up any number of them


@dataclass(frozen=True, slots=True)
class _Error:
    """One error, and who has told of it."""

    uuid: str
    number: int
    at: float
    sources: set[str]


class ToldXids:
    """What was told in the last seconds, and counts since the start."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self.last_at: dict[tuple[str, int], float] = {}  # wall time
        self._recent: deque[_Error] = deque(maxlen=MOST_REMEMBERED)

    def is_news(self, uuid: str, xid: Xid, source: str, *, interval: float) -> bool:
        """Whether no other source has told of it; each source tells once of each error, within `interval` seconds."""
        for error in self._recent:
            same = (error.uuid, error.number) == (uuid, xid.number) and abs(
                error.at - xid.at
            ) <= SAME_SECONDS + interval
            if same and source not in error.sources:
                error.sources.add(source)
                return False
        self._recent.append(_Error(uuid, xid.number, xid.at, {source}))
        return True

    def count(self, uuid: str, number: int, *, wall_at: float) -> None:
        """One error more."""
        key = (uuid, number)
        if key in self.counts or len(self.counts) < MOST_SERIES:
            self.counts[key] += 1
            self.last_at[key] = wall_at
