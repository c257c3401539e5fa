"""Streams that are open, and the end of those whose caller may no longer be who it was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from hypervisor.model import Refusal

log = structlog.get_logger("guard")

CHECK_SECONDS = 10.0
# When an authority is replaced all are looked at, some at a time: a signature takes a tenth of a millisecond.
_AT_ONCE = 100
_PAUSE_SECONDS = 0.02


@dataclass(eq=False, slots=True)
class OpenStream:
    """One stream. recheck: until when its caller is good, in wall time; raises Refusal when it is not. until: the
    answer of the last time. ended_because: set before its task is cancelled."""

    recheck: Callable[[], float]
    until: float
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    ended_because: Refusal | None = None


class OpenStreams:
    """Only the loop's tasks call it.

    changed: called before each round; true when all callers are to be looked at again, and not only those whose time
    is over.
    """

    def __init__(
        self,
        changed: Callable[[], bool],
        *,
        wall: Callable[[], float] = time.time,
        seconds: float = CHECK_SECONDS,
    ) -> None:
        self._changed = changed
        self._wall = wall
        self._seconds = seconds
        self._open: set[OpenStream] = set()
        self._due: list[OpenStream] = []
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def hold(self, recheck: Callable[[], float]) -> Iterator[OpenStream]:
        """Watch over the stream of the current task. Raises Refusal when its caller is not good even now."""
        stream = OpenStream(recheck, recheck())
        self._open.add(stream)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._round)
        try:
            yield stream
        finally:
            self._open.discard(stream)
            if not self._open and self._timer is not None:
                self._timer.cancel()
                self._timer, self._due = None, []

    def _round(self) -> None:
        if not self._due:
            everybody, now = self._changed(), self._wall()
            self._due = [stream for stream in self._open if everybody or now >= stream.until]
        looked_at, self._due = self._due[:_AT_ONCE], self._due[_AT_ONCE:]
        ended = 0
        for stream in looked_at:
            if stream not in self._open or stream.ended_because is not None:
                continue
            try:
                stream.until = stream.recheck()
            except Refusal as refusal:
                stream.ended_because = refusal
                ended += 1
                if stream.task is not None:
                    stream.task.cancel()
        if ended:
            log.warning("streams end whose caller's certificate is no longer good", count=ended)
        pause = _PAUSE_SECONDS if self._due else self._seconds
        self._timer = asyncio.get_running_loop().call_later(pause, self._round)
