"""Workers of this node: started with what their allocation gives, published as they change, ended with it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import trio

from hypervisor.model import (
    Allocation,
    AllocationPhase,
    IsolationMode,
    NodeSnapshot,
    Refusal,
    RefusalReason,
    Revision,
    Worker,
    WorkerSpec,
)
from hypervisor.model.allocation import SHARE_FULL_PPM
from hypervisor.workers import Supervisor
from hypervisor.workers.mps import OURS

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NodeWorkers:
    """The supervisor as the node uses it. For the trio main thread."""

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        allocations: Callable[[], tuple[Allocation, ...]],
        environment: Callable[[Allocation], Mapping[str, str]],
        bus_id: Callable[[str], str],
        effective: Callable[[Allocation], float | None] = lambda _: None,
    ) -> None:
        """environment: of an allocation's processes. bus_id: the PCI address of a GPU, "" when it is not known.
        effective: the percentage of the SMs that a hard allocation comes to, None for others."""
        self._bus_id = bus_id
        self._effective = effective
        self._supervisor = supervisor
        self._allocations = allocations
        self._environment = environment
        self._changed = trio.Event()

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All of them, ordered by name."""
        return self._supervisor.workers

    async def start(self, spec: WorkerSpec) -> Worker:
        """Start a worker with its allocation's devices, limits and environment. Raises Refusal."""
        if spec.worker_id.startswith(OURS):
            raise Refusal(
                RefusalReason.INVALID_ARGUMENT,
                f"{spec.worker_id[:96]!r} is the name of a card's MPS control daemon, as all that begin with {OURS!r}",
                field="worker_id",
                remedy="choose another name",
            )
        return await self._supervisor.start(self._completed(spec))

    async def stop(self, worker_id: str, *, grace_seconds: float | None, forget: bool) -> Worker:
        """Stop a worker. Raises Refusal."""
        return await self._supervisor.stop(worker_id, grace_seconds=grace_seconds, forget=forget)

    def note_change(self) -> None:
        """A worker looks different now."""
        self._changed.set()

    async def publish_changes(self, publish: Callable[[], object]) -> None:
        """For ever: publish when a worker has changed, several changes at a time. Cancel-safe."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            publish()
            await trio.lowlevel.checkpoint()

    async def end_orphans(self, wait: Callable[[Revision], Awaitable[NodeSnapshot]]) -> None:
        """For ever: end the workers whose allocation is not in force any more. wait: NodeState.wait. Cancel-safe."""
        seen = Revision(0, 0)
        while True:
            seen = (await wait(seen)).revision
            in_force = [each for each in self._allocations() if each.phase is AllocationPhase.ACTIVE]
            self._supervisor.end_orphans({each.spec.allocation_id for each in in_force})

    def _completed(self, spec: WorkerSpec) -> WorkerSpec:
        variables = {"PATH": os.environ.get("PATH", _PATH)} | dict(spec.environment)
        if not spec.allocation_id:
            return replace(spec, environment=tuple(sorted(variables.items())))
        allocation = self._named(spec.allocation_id)
        variables |= self._environment(allocation)
        shares = [grant.limit_share_ppm for grant in allocation.grants]
        memory = [grant.limit_vram_bytes for grant in allocation.grants if grant.limit_vram_bytes is not None]
        limited = allocation.spec.isolation is not IsolationMode.SHARED
        asked = min(shares) * 100 // SHARE_FULL_PPM if limited and shares else None
        effective = self._effective(allocation)
        return replace(
            spec,
            environment=tuple(sorted(variables.items())),
            gpu_uuids=tuple(grant.gpu_uuid for grant in allocation.grants),
            isolation=allocation.spec.isolation,
            gpu_bus_ids=tuple(filter(None, (self._bus_id(grant.gpu_uuid) for grant in allocation.grants))),
            effective_sm_percent=asked if effective is None else round(effective),
            memory_limit_bytes=min(memory) if limited and memory else None,
        )

    def _named(self, allocation_id: str) -> Allocation:
        for allocation in self._allocations():
            if allocation.spec.allocation_id == allocation_id and allocation.phase is AllocationPhase.ACTIVE:
                return allocation
        raise Refusal(
            RefusalReason.ALLOCATION_NOT_FOUND,
            f"there is no allocation {allocation_id[:96]!r} in force",
            field="allocation_id",
            remedy="allocate it first, or leave it out for a worker without a GPU",
        )
