"""Workers whose record can't be read: shown as they are, ended when somebody asks for it, and never looked after."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import trio

from hypervisor.model import IsolationMode, RestartPolicy, Revision, Worker, WorkerPhase, WorkerSpec
from hypervisor.workers import shim_files
from hypervisor.workers.attending import SHIM_LATE_SECONDS
from hypervisor.workers.identity import ProcessIdentity, alive, boot_id, ended, open_process
from hypervisor.workers.keepers import end_keeper, keepers
from hypervisor.workers.records import WorkerRecord
from hypervisor.workers.shim_files import ShimStatus

GRACE_SECONDS = 30.0  # for the end of a worker whose own grace nobody knows any more


class BrokenWorker:
    """One of them. What it was asked to be is not known, nor whose allocation it has; whether it runs is."""

    def __init__(self, directory: Path, why: str, *, next_revision: Callable[[], Revision]) -> None:
        self.directory = directory
        self.why = why
        self._next_revision = next_revision
        self._revision = next_revision()
        self._kept_by = self.keeper  # as it is shown until its end is told

    @property
    def keeper(self) -> ProcessIdentity | None:
        """Its shim, while that runs."""
        status = self._running()
        if status is not None:
            return status.shim
        return keepers(self.directory.parent).get(self.directory) if shim_files.locked(self.directory) else None

    def worker(self) -> Worker:
        """As others see it."""
        status = self._running()
        name = self.directory.name
        still = (
            f"; it runs on, and nobody starts it again: 'hypervisor worker stop {name}' ends it"
            if status is not None or shim_files.locked(self.directory)
            else f"; 'hypervisor worker stop --forget {name}' removes what is left of it"
        )
        started = shim_files.read_start(self.directory)
        return Worker(
            worker_id=name,
            allocation_id="",
            command=started[0] if started is not None else (),
            gpu_uuids=(),
            phase=WorkerPhase.FAILED,
            pid=status.child.pid if status is not None else None,
            restarts=0,
            last_exit_reason=f"its record can't be read: {self.why}{still}",
            last_output_lines=(),
            started_at=status.started_at if status is not None else 0.0,
            isolation=IsolationMode.SHARED,
            effective_sm_percent=None,
            memory_limit_bytes=None,
            restart_policy=RestartPolicy.NEVER,
            revision=self._revision,
            ready=False,
            unready_reason="its record can't be read",
            log_path=str(self.directory / "log"),
        )

    async def watch(self, changed: Callable[[], None]) -> None:
        """Tell when it has ended. Cancel-safe."""
        if self._kept_by is None:
            return
        descriptor = open_process(self._kept_by)
        if descriptor is not None:  # else it has ended since it was found
            try:
                await ended(descriptor)
            finally:
                os.close(descriptor)
        self._revision = self._next_revision()
        changed()

    async def end(self, grace_seconds: float | None) -> None:
        """Have its shim end it. Cancelling only ends the wait. Raises OSError when the grace can't be written."""
        if grace_seconds is not None:
            shim_files.write_grace(self.directory, grace_seconds)
        keeper = self.keeper
        if keeper is not None:
            await end_keeper(keeper, GRACE_SECONDS if grace_seconds is None else grace_seconds + SHIM_LATE_SECONDS)
        await trio.lowlevel.checkpoint()

    def record_for(self, spec: WorkerSpec) -> WorkerRecord | None:
        """The record with which its run can be taken up as one of this spec; None when it does not run, or was started
        by another command or in another environment."""
        status = self._running()
        if status is None or shim_files.read_start(self.directory) != (spec.command, spec.environment):
            return None
        return WorkerRecord(
            spec=spec, run=status.run, accounted=status.run - 1, boot_id=boot_id(), started_at=status.started_at
        )

    def record_after(self, spec: WorkerSpec) -> WorkerRecord:
        """The record of a new worker in its directory, whose runs are counted on."""
        status = shim_files.read_status(self.directory)
        run = status.run if status is not None else 0
        return WorkerRecord(spec=spec, run=run, accounted=run)

    def _running(self) -> ShimStatus | None:
        status = shim_files.read_status(self.directory)
        kept = status is not None and status.state == "running" and shim_files.locked(self.directory)
        return status if status is not None and kept and alive(status.shim) else None
