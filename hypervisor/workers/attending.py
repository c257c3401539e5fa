"""One run of a worker while it lasts: the request to stop it, its probes, and a shim that hangs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Protocol

import structlog
import trio

from hypervisor.model import EventType, Probe, WorkerSpec
from hypervisor.workers import shim_files
from hypervisor.workers.identity import ended, open_process, send
from hypervisor.workers.probing import Look, Strikes, look_of, once
from hypervisor.workers.shim_files import ShimStatus

log = structlog.get_logger("workers")
SHIM_LATE_SECONDS = 5.0  # a shim that takes so much longer than its grace hangs, and is killed itself
READINESS, LIVENESS = "readiness", "liveness"


class Attended(Protocol):
    """The worker whose run it is."""

    looks: dict[str, Look]

    @property
    def directory(self) -> Path: ...

    @property
    def spec(self) -> WorkerSpec: ...

    async def until_unwanted(self) -> None:
        """Until it is to be stopped, which is noted by then."""
        ...

    async def limit_again(self) -> None:
        """Set anew what bounds an adopted run, where that is due."""
        ...

    def set_unready(self, why: str) -> None:
        """What its readiness probe says; "" for ready."""
        ...

    def emit(self, kind: EventType, reason: str, message: str) -> None: ...


async def attend(worker: Attended, status: ShimStatus) -> str:
    """Until the run has ended: the words of a liveness probe that has condemned it, or "". Cancelling leaves it as it
    is."""
    shim = open_process(status.shim)
    if shim is None:
        return ""
    try:
        run = _Run(worker, status, shim)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.watch_wanted)
            nursery.start_soon(run.watch_child)
            nursery.start_soon(worker.limit_again)
            if probed(worker, READINESS):
                nursery.start_soon(run.watch_readiness)
            if probed(worker, LIVENESS):
                nursery.start_soon(run.watch_liveness)
            await ended(shim)
            nursery.cancel_scope.cancel()
        return run.condemned
    finally:
        os.close(shim)


def probed(worker: Attended, name: str) -> bool:
    """Whether a worker has the probe of this name."""
    return name in worker.looks or getattr(worker.spec, name) is not None


class _Run:
    """shim: a pidfd of the run's shim."""

    def __init__(self, worker: Attended, status: ShimStatus, shim: int) -> None:
        self.condemned = ""
        self._worker = worker
        self._status = status
        self._shim = shim

    async def watch_wanted(self) -> None:
        await self._worker.until_unwanted()
        await self._end()

    async def watch_child(self) -> None:
        """A shim that was stopped, or hangs, tells nobody that its worker has ended: then it is ended too."""
        child = open_process(self._status.child)
        if child is not None:
            try:
                await ended(child)
            finally:
                os.close(child)
        await trio.sleep(SHIM_LATE_SECONDS)
        log.warning("a shim hangs", worker=self._worker.spec.worker_id, shim=self._status.shim.pid)
        send(self._shim, signal.SIGKILL)

    async def watch_readiness(self) -> None:
        probe = self._probe(READINESS)
        strikes, unready = Strikes(probe.failure_threshold), True
        await trio.sleep(probe.initial_delay_seconds)
        while True:
            wrong = await once(self._look(READINESS), probe.timeout_seconds)
            unready = strikes.note(wrong) or (unready and bool(wrong))
            if not wrong or unready:
                self._worker.set_unready(f"readiness probe: {wrong}" if wrong else "")
            await trio.sleep(probe.period_seconds)

    async def watch_liveness(self) -> None:
        probe = self._probe(LIVENESS)
        strikes = Strikes(probe.failure_threshold)
        await trio.sleep(probe.initial_delay_seconds)
        while True:
            if strikes.note(await once(self._look(LIVENESS), probe.timeout_seconds)):
                break
            await trio.sleep(probe.period_seconds)
        self.condemned = strikes.words(LIVENESS)
        self._worker.emit(EventType.WARNING, "WorkerUnhealthy", self.condemned)
        await self._end()

    async def _end(self) -> None:
        """SIGTERM to the group, after the grace SIGKILL, both by the shim; at last SIGKILL to the shim."""
        send(self._shim, signal.SIGTERM)
        grace = self._worker.spec.grace_seconds
        try:
            grace = shim_files.read_grace(self._worker.directory, grace)
        except (OSError, ValueError) as error:
            log.warning("the grace of a stop can't be read", worker=self._worker.spec.worker_id, why=str(error))
        await trio.sleep(grace + SHIM_LATE_SECONDS)
        send(self._shim, signal.SIGKILL)
        await trio.sleep_forever()

    def _probe(self, name: str) -> Probe:
        """When to look, and how often."""
        described: Probe | None = getattr(self._worker.spec, name)
        return described or Probe(file="/", period_seconds=1.0, timeout_seconds=2.0)

    def _look(self, name: str) -> Look:
        """How to look; asked anew each time, for a worker that was adopted is given its own looks a little later."""
        return self._worker.looks.get(name) or look_of(self._probe(name), dict(self._worker.spec.environment))
