"""A stop that ends in time: by a signal or by a failure, the process is gone before its deadline."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

Arguments = TypeVarTuple("Arguments")


class Deadline:
    """Ends the process hard when an orderly stop takes too long. The kernel then frees locks and sockets, and limits
    hold without us, so that nothing is lost that a restart needs."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: threading.Timer | None = None

    def start(self, why: str, *, status: int) -> None:
        """Begin to count; the first call decides. status: the exit status after the deadline."""
        if self._timer is None:
            self._timer = threading.Timer(self._seconds, self._end, (why, status))
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        """The stop is over in time."""
        if self._timer is not None:
            self._timer.cancel()

    def guard(self, task: Callable[[*Arguments], Awaitable[None]]) -> Callable[[*Arguments], Awaitable[None]]:
        """The task, made to start the deadline when it fails, so that the others' stop can't hang."""

        async def guarded(*arguments: *Arguments) -> None:
            try:
                await task(*arguments)
            except Exception as error:
                self.start(f"{type(error).__name__}: {error}", status=1)
                raise

        return guarded

    def _end(self, why: str, status: int) -> None:
        sys.stderr.write(f"hypervisor: the stop ({why}) took longer than {self._seconds:g} s and is cut short\n")
        sys.stderr.flush()
        os._exit(status)
