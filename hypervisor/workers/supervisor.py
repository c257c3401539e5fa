"""The set of workers: started, stopped, adopted after a restart, and ended when their allocation is gone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
import trio

from hypervisor.model import EventType, Refusal, RefusalReason, Revision, Worker, WorkerPhase, WorkerSpec
from hypervisor.workers import records
from hypervisor.workers.broken import GRACE_SECONDS, BrokenWorker
from hypervisor.workers.keepers import end_keeper, keepers
from hypervisor.workers.probing import Look
from hypervisor.workers.records import WORKER_NAME, WorkerRecord
from hypervisor.workers.settings import WorkerSettings
from hypervisor.workers.supervised import Supervised
from hypervisor.workers.surroundings import EmitEvent, Surroundings

log = structlog.get_logger("workers")
MOST_WORKERS = 512
MOST_STOPPED = 128  # older ones are forgotten, logs and all
ATTEMPT_SECONDS = 5.0
STOP_SECONDS = 5.0  # a call waits no longer; the stop goes on
_OVER = frozenset({WorkerPhase.STOPPED, WorkerPhase.FAILED})
ORPHANED = "its allocation is gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStatistics:
    """Workers now, by phase; and since the start: runs that were adopted, ends, starts again, and seconds that the
    adoption took."""

    workers: int
    by_phase: Mapping[str, int]
    adopted: int
    restarts_total: int
    records_damaged: int
    adoption_seconds: float


class Supervisor:
    """All workers of a node. Made by open_supervisor(); for the trio main thread."""

    def __init__(
        self,
        settings: WorkerSettings,
        nursery: trio.Nursery,
        *,
        next_revision: Callable[[], Revision],
        emit: EmitEvent,
        changed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._nursery = nursery
        self._emit = emit
        self._held: dict[str, Supervised] = {}
        self._broken: dict[str, BrokenWorker] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._adopted = self._restarts = 0
        self._adoption_seconds = 0.0
        self._surroundings = Surroundings(
            next_revision=next_revision, emit=emit, changed=changed, moved=self._note_phase
        )

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All of them, ordered by name; also those whose record can't be read."""
        every: dict[str, Supervised | BrokenWorker] = {**self._held, **self._broken}
        return tuple(every[name].worker() for name in sorted(every))

    def find(self, worker_id: str) -> Worker | None:
        """One of them."""
        held = self._held.get(worker_id) or self._broken.get(worker_id)
        return held.worker() if held is not None else None

    async def start(
        self,
        spec: WorkerSpec,
        *,
        looks: Mapping[str, Look] | None = None,
        before_start: Callable[[], None] | None = None,
    ) -> Worker:
        """Have a worker run; the same spec again changes nothing, and one that has ended is started anew.

        looks are probes that only code can describe; before_start is called before each run and may raise OSError.
        Returns when it was first tried to start it. Raises Refusal.
        """
        check(spec)
        try:
            held = await self._wanted(spec)
        except OSError as error:
            raise storage_failed(error) from error
        held.looks, held.before_start = dict(looks or {}), before_start
        if spec.worker_id not in self._scopes:
            self._look_after(held)
        with trio.move_on_after(ATTEMPT_SECONDS):
            await held.attempted.wait()
        return held.worker()

    async def _wanted(self, spec: WorkerSpec) -> Supervised:
        """The worker of a spec, wanted from now on. Raises Refusal and OSError."""
        while True:
            held = self._held.get(spec.worker_id)
            if held is None and spec.worker_id in self._broken:
                await self._mend(self._broken[spec.worker_id], spec)
            elif held is None:
                return self._new(spec)
            elif held.record.wanted:
                if held.spec != spec:
                    raise Refusal(
                        RefusalReason.WORKER_EXISTS,
                        f"the worker '{spec.worker_id}' runs already, by another command or with other limits",
                        field="worker_id",
                        remedy="stop it first, or choose another name",
                    )
                return held
            elif held.stopped.is_set():
                held.want(spec)
                return held
            else:
                # The last run must have ended before the next begins; who else waits for that may be first.
                await held.stopped.wait()

    async def _mend(self, broken: BrokenWorker, spec: WorkerSpec) -> None:
        """Take up a worker whose record can't be read, if it runs as this spec says; else end it, and another follows.
        Raises Refusal and OSError."""
        record = broken.record_for(spec)
        if record is None:
            await broken.end(None)
            record = broken.record_after(spec)
        if self._broken.get(spec.worker_id) is not broken:
            return  # forgotten or taken up meanwhile
        if broken.keeper is not None and record.run == record.accounted:
            raise Refusal(
                RefusalReason.WORKER_EXISTS,
                f"the worker '{spec.worker_id}', whose record can't be read, runs on and could not be ended",
                field="worker_id",
                remedy=f"see what holds it: 'hypervisor describe worker {spec.worker_id}'",
            )
        records.save(broken.directory, record)
        del self._broken[spec.worker_id]
        self._held[spec.worker_id] = Supervised(record, broken.directory, self._settings, self._surroundings)

    async def stop(
        self, worker_id: str, *, grace_seconds: float | None = None, forget: bool = False, why: str = "asked to stop"
    ) -> Worker:
        """Stop a worker; it stays listed unless it is to be forgotten. Returns when it has stopped, or after five
        seconds while the stop goes on. Raises Refusal."""
        if worker_id in self._broken:
            return await self._stop_broken(self._broken[worker_id], grace_seconds, forget=forget)
        held = self._held.get(worker_id)
        if held is None:
            raise Refusal(
                RefusalReason.WORKER_NOT_FOUND,
                f"there is no worker {worker_id[:96]!r}",
                field="worker_id",
                remedy="'hypervisor get workers' lists them",
            )
        try:
            if held.record.wanted:
                held.unwant(why, grace_seconds)
        except OSError as error:
            raise storage_failed(error) from error
        with trio.move_on_after(STOP_SECONDS):
            await held.stopped.wait()
        worker = held.worker()
        if forget and held.phase in _OVER:
            self._forget(held)
        return worker

    async def _stop_broken(self, broken: BrokenWorker, grace_seconds: float | None, *, forget: bool) -> Worker:
        done = trio.Event()

        async def end() -> None:
            try:
                await broken.end(grace_seconds)
            except OSError as error:
                log.warning("its grace can't be written", worker=broken.directory.name, why=error.strerror)
                await broken.end(None)
            done.set()

        self._nursery.start_soon(end)
        with trio.move_on_after(STOP_SECONDS):
            await done.wait()
        worker = broken.worker()
        if forget and broken.keeper is None and self._broken.get(worker.worker_id) is broken:
            try:
                records.forget(broken.directory)
            except OSError as error:
                raise storage_failed(error) from error
            del self._broken[worker.worker_id]
        self._surroundings.changed()
        return worker

    def end_orphans(self, allocation_ids: Collection[str]) -> tuple[str, ...]:
        """Stop the workers whose allocation is not among these; they are forgotten once stopped."""
        ended = []
        for held in tuple(self._held.values()):
            allocation = held.spec.allocation_id
            if not allocation or allocation in allocation_ids:
                continue
            if held.record.wanted:
                try:
                    held.unwant(f"{ORPHANED}: '{allocation}'")
                except OSError as error:
                    log.warning("an orphan can't be stopped", worker=held.spec.worker_id, why=error.strerror)
                    continue
                ended.append(held.spec.worker_id)
            elif held.phase in _OVER:
                self._forget(held)
        return tuple(ended)

    def adopt(self) -> None:
        """Take up the workers of the daemon before. Raises Refusal when their directory can't be used."""
        began = time.monotonic()
        try:
            self._settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found, damaged = records.load_all(self._settings.directory)
        except OSError as error:
            raise storage_failed(error) from error
        for path, why in damaged.items():
            broken = BrokenWorker(path, why, next_revision=self._surroundings.next_revision)
            self._broken[path.name] = broken
            self._nursery.start_soon(broken.watch, self._surroundings.changed)
            told = f"is not looked after: {broken.worker().last_exit_reason}"
            self._surroundings.tell(path.name, EventType.WARNING, "WorkerRecordDamaged", told)
        kept = keepers(self._settings.directory)
        for directory, record in found.items():
            held = Supervised(record, directory, self._settings, self._surroundings, keeper=kept.get(directory))
            self._held[record.spec.worker_id] = held
            self._look_after(held)
        # The directory of a worker was removed under it: nobody can name it any more, and its name may be used again.
        for directory, keeper in kept.items():
            if directory not in found and directory not in damaged:
                self._surroundings.tell(
                    directory.name, EventType.WARNING, "WorkerStopped", f"is ended: its record in {directory} is gone"
                )
                self._nursery.start_soon(end_keeper, keeper, GRACE_SECONDS)
        self._adoption_seconds = time.monotonic() - began

    async def adopted(self) -> None:
        """Until every worker that was there has been taken up, or accounted for."""
        began = time.monotonic()
        for held in tuple(self._held.values()):
            with trio.move_on_after(ATTEMPT_SECONDS):
                await held.attempted.wait()
        self._adopted = sum(held.adopted for held in self._held.values())
        self._adoption_seconds += time.monotonic() - began
        log.info("workers", adopted=self._adopted, known=len(self._held), seconds=round(self._adoption_seconds, 3))

    def give(self, worker_id: str, *, looks: Mapping[str, Look], before_start: Callable[[], None]) -> None:
        """Give a worker that was adopted what only code can describe; one that is not looked after does not need it."""
        held = self._held.get(worker_id)
        if held is not None:
            held.looks, held.before_start = dict(looks), before_start

    def statistics(self) -> SupervisorStatistics:
        """Counts for metrics."""
        phases = Counter(held.phase.value for held in self._held.values())
        return SupervisorStatistics(
            workers=len(self._held) + len(self._broken),
            by_phase={phase.value: phases[phase.value] for phase in WorkerPhase},  # of those that are looked after
            adopted=self._adopted,
            restarts_total=self._restarts,
            records_damaged=len(self._broken),
            adoption_seconds=self._adoption_seconds,
        )

    def _new(self, spec: WorkerSpec) -> Supervised:
        if len(self._held) >= MOST_WORKERS:
            raise Refusal(
                RefusalReason.WORKER_FAILED,
                f"{MOST_WORKERS} workers are the most",
                remedy="stop some of them, with --forget",
            )
        directory = self._settings.directory / spec.worker_id
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = WorkerRecord(spec=spec)
        records.save(directory, record)
        held = self._held[spec.worker_id] = Supervised(record, directory, self._settings, self._surroundings)
        return held

    def _look_after(self, held: Supervised) -> None:
        scope = self._scopes[held.spec.worker_id] = trio.CancelScope()

        async def task() -> None:
            with scope:
                await held.run()

        self._nursery.start_soon(task)

    def _forget(self, held: Supervised) -> None:
        name = held.spec.worker_id
        try:
            records.forget(held.directory)
        except OSError as error:
            log.warning("a worker's directory can't be removed", worker=name, why=error.strerror)
        self._held.pop(name, None)
        scope = self._scopes.pop(name, None)
        if scope is not None:
            scope.cancel()
        self._surroundings.changed()

    def _note_phase(self, worker_id: str, phase: WorkerPhase) -> None:
        if phase is WorkerPhase.BACKING_OFF:
            self._restarts += 1
        if phase in _OVER:
            over = [held for held in self._held.values() if held.phase in _OVER and held.spec.worker_id != worker_id]
            for held in sorted(over, key=lambda held: held.revision)[: max(len(over) + 1 - MOST_STOPPED, 0)]:
                self._forget(held)


@asynccontextmanager
async def open_supervisor(
    settings: WorkerSettings,
    *,
    next_revision: Callable[[], Revision],
    emit: EmitEvent,
    changed: Callable[[], None],
) -> AsyncIterator[Supervisor]:
    """Supervise for as long as the block runs; leaving it leaves the workers running. Raises Refusal."""
    async with trio.open_nursery() as nursery:
        supervisor = Supervisor(settings, nursery, next_revision=next_revision, emit=emit, changed=changed)
        supervisor.adopt()
        yield supervisor
        nursery.cancel_scope.cancel()


def check(spec: WorkerSpec) -> None:
    """Raises Refusal for a spec that can't be supervised."""
    if not WORKER_NAME.fullmatch(spec.worker_id):
        raise Refusal(
            RefusalReason.INVALID_ARGUMENT,
            f"{spec.worker_id[:96]!r} is no name of a worker",
            field="worker_id",
            remedy="use letters, digits, '-', '_' and '.', at most 63, beginning with a letter or digit",
        )
    if not spec.command or not spec.command[0]:
        raise Refusal(
            RefusalReason.INVALID_ARGUMENT, "no command is given", field="command", remedy="say what is to run"
        )
    words = [*spec.command, *(text for pair in spec.environment for text in pair)]
    for probe in filter(None, (spec.readiness, spec.liveness)):
        words += [*probe.command, probe.unix_socket, probe.file]
    if (
        any("\0" in word for word in words)
        or sum(len(word.encode(errors="replace")) for word in words) > 512 * 1024
        or len(words) > 8000
    ):
        raise Refusal(
            RefusalReason.INVALID_ARGUMENT,
            "the command, its environment and its probes hold a character of number 0, or are longer than 512 KiB",
            field="command",
        )


def storage_failed(error: OSError) -> Refusal:
    """The refusal when the directory of workers can't be read or written."""
    return Refusal(
        RefusalReason.STORAGE_FAILED,
        f"the directory of workers can't be used: {error.strerror or error} ({error.filename or 'no file'})",
        remedy="make room in the state directory, or see who may write to it",
    )
