"""What changes something, one at a time: grants, limits, releases, and letting go of a card.

Refusals are counted here by reason; of grants the allocations tell themselves, with what they know.

A change of grants that waits for its turn may be cancelled and has then done nothing; one that has its turn is done as
a whole. Turns are given in order, and other tasks run between two of them, so that a flood of commands delays nobody's
heartbeat. Letting go of a card takes no turn: it may wait for a driver that hangs, and others must not wait with it.
What a command changed is published before its answer is given, so that who asks next reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import trio

from hypervisor.model import (
    Allocation,
    AllocationSpec,
    AttachedProcess,
    DeviceGrant,
    DeviceRequest,
    EventType,
    Gpu,
    Inventory,
    IsolationMode,
    ObjectKind,
    ObjectReference,
    Owner,
    ProcessOnGpu,
    Refusal,
    RefusalReason,
    Revision,
    Worker,
    WorkerSpec,
)
from hypervisor.node.changes import gpu_reference
from hypervisor.node.freezing import Freezing
from hypervisor.node.partitioning import Placed
from hypervisor.node.publisher import EmitEvent, Publisher

MOST_WAITING = 256


class Grants(Protocol):
    """What the commands need of the allocations."""

    def allocate(
        self,
        spec: AllocationSpec,
        inventory: Inventory,
        *,
        dry_run: bool = False,
        reserved: str = "",
        beside: tuple[Allocation, ...] = (),
        placed: tuple[DeviceRequest, ...] = (),
    ) -> tuple[Allocation, bool]: ...

    def update_limits(
        self,
        allocation_id: str,
        devices: tuple[DeviceRequest, ...],
        inventory: Inventory,
        *,
        expected: Revision | None,
    ) -> Allocation: ...

    def release(self, allocation_id: str) -> tuple[AttachedProcess, ...]: ...

    def tell_refused(self, spec: AllocationSpec, refusal: Refusal) -> None: ...

    def environment(self, allocation: Allocation) -> Mapping[str, str]: ...


class Placing(Protocol):
    """What the commands need of those who divide cards; see hypervisor.node.partitioning."""

    async def place(self, spec: AllocationSpec, *, dry_run: bool) -> Placed | None: ...

    def provided(self, allocation_id: str) -> None: ...


class Cards(Protocol):
    """What the commands need of the gpu-reader."""

    @property
    def inventory(self) -> Inventory: ...

    async def detach(self, uuid: str) -> None: ...

    async def attach(self, uuid: str) -> None: ...

    async def holders(self, uuid: str) -> tuple[int, ...]: ...


class Workers(Protocol):
    """What the commands need of the supervised workers."""

    async def start(self, spec: WorkerSpec) -> Worker: ...

    async def stop(self, worker_id: str, *, grace_seconds: float | None, forget: bool) -> Worker: ...


class HardPreparing(Protocol):
    """Has a card's limits in force before a grant on it is answered."""

    async def prepare(self, grant: DeviceGrant, owner: Owner) -> None: ...


class Bounding(Protocol):
    """Has driver or kernel bound the VRAM of the process that asks."""

    async def take(self, allocation: Allocation) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandStatistics:
    """Commands since the start: done, refused (dry runs included), and waiting for their turn now."""

    done_total: int
    refused_total: int
    waiting: int


class Commands:
    """The commands of the API. Awaited in trio."""

    def __init__(
        self,
        *,
        grants: Grants,
        cards: Cards,
        publisher: Publisher,
        emit: EmitEvent,
        environment: Mapping[str, str] | None = None,
        worker_grace: Callable[[], float] = lambda: 10.0,
        placing: Placing | None = None,
    ) -> None:
        """environment: what a workload needs besides what its allocation says, on a simulated machine.
        worker_grace: seconds between the request to a worker to stop and its kill."""
        self.workers: Workers | None = None  # set once they are supervised
        self.freezing: Freezing | None = None
        self.hard: HardPreparing | None = None  # set once MPS servers are kept
        self.bounds: Bounding | None = None  # set where cgroups can be written to
        self._worker_grace = worker_grace
        self._grants = grants
        self._cards = cards
        self._publisher = publisher
        self._emit = emit
        self._environment = dict(environment or {})
        self._placing = placing
        self._turn = trio.Lock()
        self._done = self._refused = 0
        self._refusals: Counter[RefusalReason] = Counter()

    async def allocate(
        self, spec: AllocationSpec, *, dry_run: bool, reserved: str = "", publish: bool = True
    ) -> tuple[Allocation, bool, Mapping[str, str]]:
        """Grant a share; the bool says that it existed. reserved names limit files that were made before. With publish
        False the caller publishes, once for many. Raises Refusal."""
        async with self._placed(spec, dry_run=dry_run) as placed, self._turn_for(counted=not dry_run):
            allocation, existed = self._grants.allocate(
                spec,
                placed.inventory if placed else self._cards.inventory,
                dry_run=dry_run,
                reserved=reserved,
                placed=placed.devices if placed else (),
            )
            if publish and not dry_run:
                self._publisher.publish()
        if self.bounds is not None and not dry_run:
            await self.bounds.take(allocation)
        if spec.isolation is IsolationMode.HARD and not dry_run:
            await self._prepare(allocation, existed=existed)
        return allocation, existed, self.environment_of(allocation)

    async def promise(
        self,
        spec: AllocationSpec,
        *,
        beside: Callable[[], tuple[Allocation, ...]],
        keep: Callable[[Allocation], None],
    ) -> None:
        """Make what a partitioned share needs before it is known whose it is; nothing is granted. beside: drafts that
        count as granted. keep is told the draft of the share, and has to keep what was made for it from then on, by
        Partitioning.promised. Raises Refusal."""
        async with self._placed(spec, dry_run=False) as placed:
            if placed is None:
                raise Refusal(RefusalReason.NOT_READY, "no card can be divided yet", remedy="try again soon")
            draft, _ = self._grants.allocate(
                spec, placed.inventory, dry_run=True, beside=beside(), placed=placed.devices
            )
            keep(draft)

    async def prepare(self, draft: Allocation) -> None:
        """Have the limits of a hard share in force before it is known whose it is. Raises Refusal."""
        await self._prepare(draft, existed=True)

    async def _prepare(self, allocation: Allocation, *, existed: bool) -> None:
        """Nobody learns of a hard grant before its limits were read back. Takes no turn: a server must start."""
        if self.hard is None:
            return
        try:
            await self.hard.prepare(allocation.grants[0], allocation.spec.owner)
        except BaseException as error:
            if not existed:
                with trio.CancelScope(shield=True):
                    await self.release(allocation.spec.allocation_id)
            if isinstance(error, Refusal):
                self._refused += 1
                self._refusals[error.reason] += 1
            raise

    @asynccontextmanager
    async def _placed(self, spec: AllocationSpec, *, dry_run: bool) -> AsyncIterator[Placed | None]:
        """Instances for a partitioned allocation. Made before its turn: others do not wait for a slow driver."""
        if self._placing is None or spec.isolation is not IsolationMode.PARTITIONED:
            yield None
            return
        try:
            with self._refusals_counted(counted=not dry_run):
                placed = await self._place(self._placing, spec, dry_run=dry_run)
            yield placed
        finally:
            if not dry_run:
                self._placing.provided(spec.allocation_id)

    async def _place(self, placing: Placing, spec: AllocationSpec, *, dry_run: bool) -> Placed | None:
        try:
            return await placing.place(spec, dry_run=dry_run)
        except Refusal as refusal:
            if not dry_run:
                self._grants.tell_refused(spec, refusal)
            raise

    async def update_limits(
        self, allocation_id: str, devices: tuple[DeviceRequest, ...], expected: Revision | None
    ) -> Allocation:
        """Change requests and limits. Raises Refusal."""
        async with self._turn_for():
            try:
                allocation = self._grants.update_limits(
                    allocation_id, devices, self._cards.inventory, expected=expected
                )
            except Refusal as refusal:
                self._tell_refused(allocation_id, refusal)
                raise
            self._publisher.publish()
            return allocation

    async def release(self, allocation_id: str) -> tuple[AttachedProcess, ...]:
        """End an allocation; returns the processes that keep their last limits. Raises Refusal."""
        async with self._turn_for():
            remaining = self._grants.release(allocation_id)
            self._publisher.publish()
            return remaining

    async def detach_gpu(self, uuid: str, reason: str) -> tuple[ProcessOnGpu, ...]:
        """Let go of a card; returns who else holds it open or was last seen on it.

        Cancelled, it may have let go. Raises Refusal.
        """
        with self._counting():
            gpu = self._gpu(uuid)
            await self._cards.detach(gpu.identity.uuid)
            self._publisher.publish()
            remaining = _remaining(gpu, await self._cards.holders(gpu.identity.uuid))
            self._emit(
                EventType.NORMAL,
                "GPUDetached",
                gpu_reference(gpu),
                f"let go of the card: {reason or 'no reason given'}; {len(remaining)} other processes hold it",
                holders=str(len(remaining)),
            )
            return remaining

    async def attach_gpu(self, uuid: str) -> None:
        """Take a card back. Raises Refusal."""
        with self._counting():
            gpu = self._gpu(uuid)
            await self._cards.attach(gpu.identity.uuid)
            self._publisher.publish()
            self._emit(EventType.NORMAL, "GPUAttached", gpu_reference(gpu), "the card is in use again")

    @property
    def worker_grace_seconds(self) -> float:
        """Time between the request to a worker to stop and its kill, where none is given."""
        return self._worker_grace()

    async def start_worker(self, spec: WorkerSpec) -> Worker:
        """Have a worker run. Takes no turn: it may wait for a program. Raises Refusal."""
        with self._counting():
            worker = await self._supervised().start(spec)
            self._publisher.publish()
            return worker

    async def stop_worker(self, worker_id: str, *, grace_seconds: float | None, forget: bool) -> Worker:
        """Stop a worker. Takes no turn. Raises Refusal."""
        with self._counting():
            worker = await self._supervised().stop(worker_id, grace_seconds=grace_seconds, forget=forget)
            self._publisher.publish()
            return worker

    async def snapshot(self, *, allocation_id: str, worker_id: str) -> tuple[tuple[int, ...], int]:
        """Freeze an allocation's processes; their pids, and the bytes that they held. Raises Refusal."""
        with self._counting():
            found = await self._checkpoints().snapshot(allocation_id=allocation_id, worker_id=worker_id)
            return found.pids, found.bytes

    async def resume(self, *, allocation_id: str, worker_id: str) -> tuple[int, ...]:
        """Thaw an allocation's processes; their pids. Raises Refusal."""
        with self._counting():
            return (await self._checkpoints().resume(allocation_id=allocation_id, worker_id=worker_id)).pids

    def _checkpoints(self) -> Freezing:
        if self.freezing is None:
            raise Refusal(RefusalReason.NOT_READY, "snapshots are not looked after yet", remedy="try again soon")
        return self.freezing

    def environment_of(self, allocation: Allocation) -> Mapping[str, str]:
        """What a process of an allocation needs in its environment, here."""
        return {**self._grants.environment(allocation), **self._environment}

    def _supervised(self) -> Workers:
        if self.workers is None:
            raise Refusal(RefusalReason.NOT_READY, "workers are not supervised yet", remedy="try again soon")
        return self.workers

    @property
    def refusals(self) -> Mapping[RefusalReason, int]:
        """Refusals by reason since the start, dry runs left out."""
        return dict(self._refusals)

    def statistics(self) -> CommandStatistics:
        """Counters since the start."""
        return CommandStatistics(
            done_total=self._done,
            refused_total=self._refused,
            waiting=self._turn.statistics().tasks_waiting,
        )

    def _gpu(self, uuid: str) -> Gpu:
        snapshot = self._publisher.snapshot
        gpu = snapshot.gpu(uuid)
        if gpu is None:
            known = ", ".join(known.identity.uuid for known in snapshot.gpus) or "none yet"
            raise Refusal(
                RefusalReason.GPU_NOT_FOUND,
                f"no GPU of this node has the UUID {uuid!r}",
                field="gpu_uuid",
                remedy=f"the node has {known}",
            )
        return gpu

    @asynccontextmanager
    async def _turn_for(self, *, counted: bool = True) -> AsyncIterator[None]:
        """The turn of one change of grants."""
        with self._counting(counted=counted):
            if self._turn.statistics().tasks_waiting >= MOST_WAITING:
                raise Refusal(RefusalReason.NOT_READY, f"{MOST_WAITING} commands wait already", remedy="try again soon")
            async with self._turn:
                yield

    @contextmanager
    def _counting(self, *, counted: bool = True) -> Iterator[None]:
        """Counts a command; a refusal by its reason, unless nothing was to be changed."""
        with self._refusals_counted(counted=counted):
            yield
        self._done += 1

    @contextmanager
    def _refusals_counted(self, *, counted: bool) -> Iterator[None]:
        try:
            yield
        except Refusal as refusal:
            self._refused += 1
            if counted:
                self._refusals[refusal.reason] += 1
            raise

    def _tell_refused(self, allocation_id: str, refusal: Refusal) -> None:
        known = next(
            (each for each in self._publisher.snapshot.allocations if each.spec.allocation_id == allocation_id), None
        )
        if known is None:
            return  # an event is about an object, and there is none
        self._emit(
            EventType.WARNING,
            "LimitsRefused",
            ObjectReference(kind=ObjectKind.ALLOCATION, name=allocation_id, uid=known.uid),
            str(refusal),
            refusal=refusal.reason.value,
            field=refusal.field,
        )


def _remaining(gpu: Gpu, holders: tuple[int, ...]) -> tuple[ProcessOnGpu, ...]:
    """Who is on a card: as the driver last listed them, and who has only opened it."""
    listed = gpu.readings.processes or ()
    known = {process.pid for process in listed}
    opened = (ProcessOnGpu(pid=pid, memory_bytes=None, busy_ratio=None) for pid in holders if pid not in known)
    return (*listed, *opened)
