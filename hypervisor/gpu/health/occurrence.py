"""Things that happened to a card, for the event journal: at most once each, in their order, with their numbers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

import trio

MOST_KEPT = 1000


class OccurrenceKind(Enum):
    """What happened; the values are the reasons of the events."""

    XID = "XidError"
    ECC = "EccErrors"
    SWITCH = "NvSwitchError"
    CIRCUIT_OPENED = "ReadingsHeld"
    CIRCUIT_CLOSED = "ReadingsResumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One thing. gpu_uuid is "" for the node; pid is the host's, of the program that caused it, where that is known.

    blames_owner: it is the fault of a program and none of the card.
    """

    kind: OccurrenceKind
    gpu_uuid: str
    message: str
    warning: bool = True
    pid: int | None = None
    blames_owner: bool = False
    fields: tuple[tuple[str, str], ...] = ()


class Occurrences:
    """A bounded queue with one consumer; when it is full the oldest goes, and is counted. For the trio main thread."""

    def __init__(self) -> None:
        self._kept: deque[Occurrence] = deque(maxlen=MOST_KEPT)
        self._came = trio.Event()
        self.dropped = 0

    def add(self, occurrence: Occurrence) -> None:
        """Tell of something."""
        self.dropped += len(self._kept) == MOST_KEPT
        self._kept.append(occurrence)
        self._came.set()

    async def next(self) -> tuple[Occurrence, ...]:
        """All that has come, as soon as there is something. Cancelling loses nothing."""
        await trio.lowlevel.checkpoint()
        while not self._kept:
            self._came = trio.Event()
            await self._came.wait()
        taken = tuple(self._kept)
        self._kept.clear()
        return taken
