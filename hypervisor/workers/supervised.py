"""One worker: the task that starts it, watches it, starts it again and stops it, over restarts of the daemon too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import trio

from hypervisor.model import EventType, Revision, Worker, WorkerPhase, WorkerSpec
from hypervisor.workers import launching, records, shim_files
from hypervisor.workers.attending import READINESS, SHIM_LATE_SECONDS, attend, probed
from hypervisor.workers.decisions import Verdict, after_end
from hypervisor.workers.identity import ProcessIdentity, age, boot_id, end_session, pid_namespace
from hypervisor.workers.keepers import end_keeper, keepers
from hypervisor.workers.probing import Look
from hypervisor.workers.records import WorkerRecord
from hypervisor.workers.settings import WorkerSettings
from hypervisor.workers.shim_files import ShimStatus
from hypervisor.workers.surroundings import Surroundings

log = structlog.get_logger("workers")
ADOPT_SECONDS = 3.0  # a shim that holds the lock has written its status by then
_ADOPT_PAUSE = 0.02
_SAME_START_SECONDS = 10.0  # the record has the time before the launch; nothing is written for the difference


class Supervised:
    """A worker. Everything is for the trio main thread; run() is its one task."""

    def __init__(
        self,
        record: WorkerRecord,
        directory: Path,
        settings: WorkerSettings,
        surroundings: Surroundings,
        *,
        keeper: ProcessIdentity | None = None,
    ) -> None:
        """keeper: its shim, as it was found among the machine's processes when we started."""
        self.record = record
        self._keeper = keeper
        self.directory = directory
        self.adopted = False
        self._limit_due = False  # set again what bounds the VRAM of a run that was adopted
        self.looks: dict[str, Look] = {}  # probes that are no description: "readiness", "liveness"
        self.before_start: Callable[[], None] | None = None  # cleans up after a run that was killed
        self.stopped = trio.Event()
        self.attempted = trio.Event()  # the first start has been tried, or a run was adopted
        self._settings = settings
        self._surroundings = surroundings
        self._status: ShimStatus | None = None
        self._phase = WorkerPhase.STARTING
        self._unready = "it has not started yet"
        self._nudge = trio.Event()
        self._next_start = 0.0  # trio's clock
        self._revision = surroundings.next_revision()

    @property
    def spec(self) -> WorkerSpec:
        """What was asked for."""
        return self.record.spec

    @property
    def phase(self) -> WorkerPhase:
        """Where it is in its life."""
        return self._phase

    @property
    def revision(self) -> Revision:
        """Of its last change."""
        return self._revision

    def worker(self) -> Worker:
        """As others see it."""
        spec, record, status = self.record.spec, self.record, self._status
        return Worker(
            worker_id=spec.worker_id,
            allocation_id=spec.allocation_id,
            command=spec.command,
            gpu_uuids=spec.gpu_uuids,
            phase=self._phase,
            pid=status.child.pid if status is not None else None,
            restarts=record.restarts,
            last_exit_reason=record.last_exit_reason,
            last_output_lines=record.last_output_lines,
            started_at=record.started_at,
            isolation=spec.isolation,
            effective_sm_percent=spec.effective_sm_percent,
            memory_limit_bytes=spec.memory_limit_bytes,
            restart_policy=spec.restart_policy,
            revision=self._revision,
            ready=self._phase is WorkerPhase.RUNNING and not self._unready,
            unready_reason=self._unready if self._phase is WorkerPhase.RUNNING else "",
            log_path=str(self.directory / "log"),
        )

    def want(self, spec: WorkerSpec) -> None:
        """Let it run by this spec. Raises OSError, and nothing has changed."""
        self._save(spec=spec, wanted=True, stop_reason="", given_up=False, failures=0)
        self.stopped = trio.Event()
        self.attempted = trio.Event()
        self._next_start = 0.0
        self._tell_change()

    def unwant(self, why: str, grace_seconds: float | None = None) -> None:
        """Let it stop. Raises OSError when that can't be kept, and then it is not stopped."""
        if grace_seconds is not None:
            shim_files.write_grace(self.directory, grace_seconds)
        self._save(wanted=False, stop_reason=why)
        self._tell_change()

    async def run(self) -> None:
        """For ever. Cancelling leaves the worker as it is, running or not."""
        await self._adopt()
        while True:
            if self._status is not None:
                status = self._status
                condemned = await attend(self, status)
                await self._account(shim_files.read_status(self.directory) or status, condemned)
            elif not self.record.wanted:
                await self._end_unread()
                self._enter(WorkerPhase.FAILED if self.record.given_up else WorkerPhase.STOPPED)
                self.attempted.set()
                self.stopped.set()
                await self._nudged()
            elif trio.current_time() < self._next_start:
                self._enter(WorkerPhase.BACKING_OFF)
                with trio.move_on_at(self._next_start):
                    await self._nudged()
            else:
                await self._start()

    # -- starting and adopting

    async def _adopt(self) -> None:
        """Take over a run that is there; account for one that ended while nobody watched."""
        give_up_at = trio.current_time() + ADOPT_SECONDS
        while True:
            status = shim_files.read_status(self.directory)
            held = shim_files.locked(self.directory)
            if not held or (status is not None and status.run == self.record.run and status.state == "running"):
                break
            if trio.current_time() > give_up_at:
                break
            await trio.sleep(_ADOPT_PAUSE)  # the shim is about to write what it does
        if status is None and self._keeper is not None:
            await self._end_unread()
        self._keeper = None
        if status is None or self.record.run == 0 or self.record.boot_id != boot_id():
            return  # it never ran, or not since the machine was started: nothing is to be taken over
        if status.run == self.record.accounted:
            return  # all that follows from its end has been done
        if status.run != self.record.run:
            return  # the start that the record announces never came about
        if status.state == "running":
            if status.pid_namespace != pid_namespace():
                await self._wait_for_foreign_shim(status)
            else:
                self.adopted = self._limit_due = held
                self._running(status)
                return
        await self._account(shim_files.read_status(self.directory) or status)

    async def _wait_for_foreign_shim(self, status: ShimStatus) -> None:
        """A shim in a PID namespace that we don't see: it can only be waited for. Never started twice."""
        self._unready = "it runs in another PID namespace; give the daemon the host's (hostPID)"
        self._enter(WorkerPhase.RUNNING)
        log.warning("a worker can't be supervised", worker=self.spec.worker_id, shim=status.shim.pid)
        while shim_files.locked(self.directory):  # noqa: ASYNC110 - a lock of another namespace has no event
            await trio.sleep(1)

    async def _start(self) -> None:
        self._enter(WorkerPhase.STARTING)
        run, settings = self.record.run + 1, self._settings
        try:
            if self.before_start is not None:
                self.before_start()
            self._save(run=run, boot_id=boot_id(), started_at=time.time())
            cgroup = None
            if settings.cgroup is not None:
                cgroup = launching.prepare_cgroup(settings.cgroup, self.spec.worker_id)
                launching.limit_processes(settings.cgroup_root, cgroup, settings.most_processes)
                await launching.limit_memory(settings.memory, cgroup, self.spec)
            shim_files.write_start(
                self.directory,
                self.spec,
                run=run,
                log_bytes=settings.log_bytes,
                log_files=settings.log_files,
                cgroup=cgroup,
            )
            ours = await launching.launch(settings, self.directory)
        except (OSError, ValueError, launching.LaunchError) as error:
            self._failed_start(str(error))
            return
        status = shim_files.read_status(self.directory)
        if not ours or status is None or status.run != run:
            await self._adopt_other(run)
            return
        if status.cgroup_failure:
            why = f"could not be moved into its cgroup: {os.strerror(status.cgroup_failure)}"
            log.warning("not moved", worker=self.spec.worker_id, why=why)
            if self.spec.memory_limit_bytes is not None:
                self.emit(EventType.WARNING, "MemoryLimitNotSet", why)
        if status.state != "running":
            await self._account(status)
            return
        self._running(status)
        self.emit(EventType.NORMAL, "WorkerStarted", f"run {run}: {_short(self.spec.command)}, pid {status.child.pid}")

    async def _adopt_other(self, run: int) -> None:
        """Another shim keeps this worker, or ours left no word: whatever runs is taken over, and never doubled."""
        status = shim_files.read_status(self.directory)
        if status is not None and status.state == "running" and shim_files.locked(self.directory):
            self._keep(run=status.run)
            self._running(status)
            return
        was = await self._end_unread()
        self._failed_start(f"run {run} left no status in {self.directory}{'; its shim was ended' if was else ''}")

    async def _end_unread(self) -> bool:
        """End a shim that keeps this worker and whose status is damaged, so that nobody can follow it: another is
        started after it, and none beside it. Returns whether there was one."""
        keeper = self._keeper  # also of one that has lost its lock
        if keeper is None and shim_files.locked(self.directory):
            keeper = keepers(self.directory.parent).get(self.directory)
        if keeper is not None:
            self._enter(WorkerPhase.STOPPING)
            await end_keeper(keeper, self.spec.grace_seconds + SHIM_LATE_SECONDS)
        return keeper is not None

    def _failed_start(self, why: str) -> None:
        verdict = self._decide(clean=False, ran_seconds=0.0)
        self._keep(last_exit_reason=why, failures=verdict.failures)
        self._next_start = trio.current_time() + verdict.delay_seconds
        self.attempted.set()
        self.emit(EventType.WARNING, "WorkerStartFailed", why)

    def _running(self, status: ShimStatus) -> None:
        self._status = status
        self._unready = "" if not probed(self, READINESS) else "its readiness probe has not passed yet"
        if abs(self.record.started_at - status.started_at) > _SAME_START_SECONDS:
            self._keep(started_at=status.started_at)
        self._enter(WorkerPhase.RUNNING)
        self.attempted.set()

    # -- while it runs: what attending.py needs of us

    async def until_unwanted(self) -> None:
        """Until it is to be stopped. Cancel-safe."""
        while self.record.wanted:
            await self._nudged()
        self._enter(WorkerPhase.STOPPING)

    async def limit_again(self) -> None:
        """What the daemon before has set may have been changed while nobody watched; this run goes on in any case."""
        if not self._limit_due or self._settings.cgroup is None:
            return
        self._limit_due = False
        try:
            await launching.limit_memory(self._settings.memory, self._settings.cgroup / self.spec.worker_id, self.spec)
        except launching.LaunchError as error:
            self.emit(EventType.WARNING, "MemoryLimitNotSet", f"is not bound by the driver: {error}")

    def set_unready(self, why: str) -> None:
        """What the readiness probe says; "" for ready."""
        if why != self._unready:
            was, self._unready = self._unready, why
            if why and not was:
                self.emit(EventType.WARNING, "WorkerNotReady", why)
            self._tell_change()

    # -- when it has ended

    async def _account(self, status: ShimStatus, condemned: str = "") -> None:
        """The end of a run: why, and what follows. condemned: what a liveness probe had to say."""
        if status.state == "running":
            # The shim is gone and has not said how it ended: it was killed, and its worker with it.
            left = end_session(status.child.pid, status.child.start)
            why = "its shim was killed" + (f"; {left} processes of it were ended" if left else "")
            clean, ran = False, age(status.child)
        else:
            why, clean, ran = shim_files.reason(status), status.clean, status.ran_seconds
        if self._settings.cgroup is not None:
            await launching.end_cgroup(self._settings.cgroup, self.spec.worker_id)
        if condemned:
            why, clean = f"{condemned} ({why})", False
        lines = shim_files.last_lines(self.directory, since=status.started_at, begun=status.logs_begun)
        verdict = self._decide(clean=clean, ran_seconds=ran)
        self._status = None
        wanted, stopping = self.record.wanted, not self.record.wanted
        self._keep(
            accounted=status.run,
            last_exit_reason=why,
            last_output_lines=lines,
            failures=verdict.failures,
            restarts=self.record.restarts + verdict.again,
            wanted=wanted and verdict.again,
            given_up=verdict.given_up,
        )
        self._next_start = trio.current_time() + verdict.delay_seconds
        if self._settings.cgroup is not None and not verdict.again:
            launching.remove_cgroup(self._settings.cgroup, self.spec.worker_id)
        follows = (
            f"; starts again in {verdict.delay_seconds:g} s"
            if verdict.again
            else f" ({self.record.stop_reason})"
            if stopping
            else ""
        )
        last = f"; last line: {lines[-1]}" if lines and not clean and not stopping else ""
        self.emit(
            EventType.NORMAL if clean or stopping else EventType.WARNING,
            "WorkerStopped" if stopping else "WorkerExited",
            f"{why}{follows}{last}",
            exit=why,
            run=str(status.run),
        )
        self.attempted.set()
        self._enter(WorkerPhase.BACKING_OFF if verdict.again else WorkerPhase.STOPPED)
        await trio.lowlevel.checkpoint()

    def _decide(self, *, clean: bool, ran_seconds: float) -> Verdict:
        return after_end(
            self.spec.restart_policy,
            wanted=self.record.wanted,
            clean=clean,
            ran_seconds=ran_seconds,
            failures=self.record.failures,
            backoff=self._settings.backoff,
        )

    # -- telling

    def _enter(self, phase: WorkerPhase) -> None:
        if phase is not self._phase:
            self._phase = phase
            self._surroundings.moved(self.spec.worker_id, phase)
            self._tell_change(nudge=False)

    def _tell_change(self, *, nudge: bool = True) -> None:
        self._revision = self._surroundings.next_revision()
        if nudge:
            self._nudge.set()
            self._nudge = trio.Event()
        self._surroundings.changed()

    async def _nudged(self) -> None:
        await self._nudge.wait()

    def _save(self, **parts: object) -> None:
        record = msgspec.structs.replace(self.record, **parts)
        records.save(self.directory, record)
        self.record = record

    def _keep(self, **parts: object) -> None:
        """As _save(), where a disk that is full must not keep the worker from being looked after."""
        try:
            self._save(**parts)
        except OSError as error:
            self.record = msgspec.structs.replace(self.record, **parts)
            log.warning("a worker's record can't be written", worker=self.spec.worker_id, why=error.strerror)

    def emit(self, kind: EventType, reason: str, message: str, **fields: str) -> None:
        """An event about it."""
        self._surroundings.tell(self.spec.worker_id, kind, reason, message, **fields)


def _short(command: tuple[str, ...]) -> str:
    text = " ".join(command)
    return text if len(text) <= 120 else text[:117] + "..."
