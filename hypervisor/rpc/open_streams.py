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
                self._timer = None

    def _round(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._round)
        everybody, now = self._changed(), self._wall()
        ended = 0
        for stream in tuple(self._open):
            if stream.ended_because is not None or not (everybody or now >= stream.until):
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
