"""A gpu-reader that is started and asked nothing: it takes over at once when a call about one card hangs.

Starting an interpreter takes a fifth of a second of a core, and much longer on a machine that is busy: too long for the
cards that have nothing to do with the hang. It has not touched the driver, so it holds no card.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog
import trio

from hypervisor.gpu.pipe import END_SECONDS, start_process

log = structlog.get_logger("gpu-reader")


class Spare:
    """At most one process. For the trio main thread; run() owns it until it is taken."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._process: trio.Process | None = None
        self._wanted, self._taken = trio.Event(), trio.Event()

    def prepare(self) -> None:
        """Have one ready from soon on."""
        if self._process is None:
            self._wanted.set()

    def take(self) -> trio.Process | None:
        """The process, for the caller to end; None when there is none, or it has ended."""
        process, self._process = self._process, None
        self._taken.set()
        return process if process is not None and process.returncode is None else None

    async def run(self) -> None:
        """For ever. Cancelling ends the process, if it was not taken."""
        while True:
            await self._wanted.wait()
            self._wanted, self._taken = trio.Event(), trio.Event()
            try:
                self._process = process = await start_process(self._environment)
            except OSError as error:
                log.warning("a spare gpu-reader can't be started", reason=error.strerror or str(error))
                continue
            try:
                await self._taken.wait()
            finally:
                if self._process is process:
                    self._process = None
                    process.kill()
                    with trio.move_on_after(END_SECONDS, shield=True):
                        await process.wait()
