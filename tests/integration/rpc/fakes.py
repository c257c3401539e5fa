"""What the node puts behind its servers, as small as it can be: commands that record, and a journal in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import trio

from hypervisor.model import (
    Allocation,
    AllocationSpec,
    AttachedProcess,
    DeviceRequest,
    Event,
    ProcessOnGpu,
    Refusal,
    RefusalReason,
    Revision,
    Worker,
    WorkerSpec,
)
from tests import builders


class FakeCommands:
    """Grants everything under the name that is asked for; records every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.allocations: dict[str, Allocation] = {}
        self.hold = trio.Event()
        self.hold.set()
        self.entered = trio.Event()
        self.cancelled = trio.Event()

    async def allocate(self, spec: AllocationSpec, *, dry_run: bool) -> tuple[Allocation, bool, Mapping[str, str]]:
        self.calls.append(("allocate", spec, dry_run))
        await self._pause()
        existing = self.allocations.get(spec.allocation_id)
        if existing is not None and existing.spec != spec:
            raise Refusal(
                RefusalReason.ALLOCATION_EXISTS,
                f"{spec.allocation_id} exists with other figures",
                field="spec.allocation_id",
                remedy="release it first",
            )
        allocation = existing or replace(builders.make_allocation(spec.allocation_id), spec=spec)
        if not dry_run:
            self.allocations[spec.allocation_id] = allocation
        return allocation, existing is not None, {"TF_SHM_PATH": allocation.directory}

    async def update_limits(
        self, allocation_id: str, devices: tuple[DeviceRequest, ...], expected: Revision | None
    ) -> Allocation:
        self.calls.append(("update_limits", allocation_id, devices, expected))
        await self._pause()
        return self._find(allocation_id)

    async def release(self, allocation_id: str) -> tuple[AttachedProcess, ...]:
        self.calls.append(("release", allocation_id))
        await self._pause()
        self._find(allocation_id)
        del self.allocations[allocation_id]
        return builders.make_usage(allocation_id).processes

    async def detach_gpu(self, uuid: str, reason: str) -> tuple[ProcessOnGpu, ...]:
        self.calls.append(("detach_gpu", uuid, reason))
        return (ProcessOnGpu(pid=4711, memory_bytes=None, busy_ratio=None),)

    async def attach_gpu(self, uuid: str) -> None:
        self.calls.append(("attach_gpu", uuid))
        raise ValueError("a defect on purpose")

    worker_grace_seconds = 10.0

    async def snapshot(self, *, allocation_id: str, worker_id: str) -> tuple[tuple[int, ...], int]:
        self.calls.append(("snapshot", allocation_id, worker_id))
        return (4711, 4712), 2**30

    async def resume(self, *, allocation_id: str, worker_id: str) -> tuple[int, ...]:
        self.calls.append(("resume", allocation_id, worker_id))
        return (4711, 4712)

    async def start_worker(self, spec: WorkerSpec) -> Worker:
        self.calls.append(("start_worker", spec))
        return builders.make_worker(spec.worker_id, command=spec.command, allocation_id=spec.allocation_id)

    async def stop_worker(self, worker_id: str, *, grace_seconds: float | None, forget: bool) -> Worker:
        self.calls.append(("stop_worker", worker_id, grace_seconds, forget))
        return builders.make_worker(worker_id)

    def _find(self, allocation_id: str) -> Allocation:
        if allocation_id not in self.allocations:
            raise Refusal(RefusalReason.ALLOCATION_NOT_FOUND, f"there is no allocation {allocation_id}")
        return self.allocations[allocation_id]

    async def _pause(self) -> None:
        self.entered.set()
        try:
            await self.hold.wait()
        except trio.Cancelled:
            self.cancelled.set()
            raise


class FakeJournal:
    """A bounded journal in memory."""

    def __init__(self, events: Sequence[Event] = (), *, kept: int = 1000) -> None:
        self.events = list(events)
        self.kept = kept
        self.lost = 0
        self.callbacks: list[Callable[[Event], None]] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)
        while len(self.events) > self.kept:
            self.events.pop(0)
            self.lost += 1
        for callback in list(self.callbacks):
            callback(event)

    def read(self, after: tuple[int, int], limit: int) -> Sequence[Event]:
        return [event for event in self.events if (event.epoch, event.sequence) > after][:limit]

    def lost_before(self, after: tuple[int, int]) -> int:
        if not self.events:
            return 0
        return max(0, self.events[0].sequence - after[1] - 1) if self.lost else 0

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)
