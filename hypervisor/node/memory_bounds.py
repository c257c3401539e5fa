"""VRAM limits of cgroups for what is no worker: containers of Pods, and processes of other allocations.

A container has a cgroup of its own, and the limit is set there. Any other process is moved, when it becomes known and
before it has allocated anything, into a cgroup that is made for its allocation. Where neither driver nor kernel limit
cgroups nothing is done.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog
import trio

from hypervisor.kube.cgroups import residence
from hypervisor.model import (
    Allocation,
    AllocationPhase,
    AllocationUsage,
    EventType,
    IsolationMode,
    NodeSnapshot,
    ObjectKind,
    ObjectReference,
    OwnerKind,
    Revision,
)
from hypervisor.node.publisher import EmitEvent
from hypervisor.workers.cgroup import MemoryControl, MemoryControlError

log = structlog.get_logger("memory-bounds")
_LIMITED = frozenset({IsolationMode.SOFT, IsolationMode.HARD})  # a MIG instance has its memory to itself
_CONTAINER = re.compile(r"(?:^|[-:])[0-9a-f]{64}(?![0-9a-f])")
_FOLDER = "_allocations"  # no worker can have that name


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit that is in force: of a cgroup, on a card by its bus id, in bytes."""

    cgroup: Path
    bus_id: str
    hard_bytes: int


class MemoryBounds:
    """For the trio main thread; one limit after another."""

    def __init__(
        self,
        control: MemoryControl,
        *,
        home: Path | None,
        bus_id: Callable[[str], str],
        emit: EmitEvent,
        proc: Path = Path("/proc"),
    ) -> None:
        """home: the cgroup below which workers live, and cgroups of allocations are made; None: none are made.
        bus_id: PCI address of a GPU by its UUID."""
        self._control = control
        self._home = home
        self._bus_id = bus_id
        self._emit = emit
        self._proc = proc
        self._bounds: dict[str, set[Bound]] = {}  # by the allocation's uid
        self._told: set[tuple[str, str]] = set()
        self._turn = trio.Lock()

    @property
    def bounds(self) -> frozenset[Bound]:
        """The limits that were set and read back."""
        return frozenset(bound for found in self._bounds.values() for bound in found)

    async def take(self, allocation: Allocation) -> None:
        """Bound the process that an allocation was made for, before it learns of the grant. Cancel-safe."""
        owner = allocation.spec.owner
        if owner.kind is OwnerKind.PROCESS:
            async with self._turn:
                await self._bind(allocation, [(owner.pid, owner.start_time_ticks)])

    async def step(self, allocations: Collection[Allocation], usages: Iterable[AllocationUsage]) -> None:
        """Bound what has attached meanwhile, by the limits that are in force now; let go of what was released.
        Cancel-safe."""
        if not self._bounds and not self._control.present:
            return
        async with self._turn:
            await self._step(allocations, usages)

    async def _step(self, allocations: Collection[Allocation], usages: Iterable[AllocationUsage]) -> None:
        by_id = {usage.allocation_id: usage for usage in usages}
        for allocation in allocations:
            usage = by_id.get(allocation.spec.allocation_id)
            if usage is not None:
                pids = [(each.host_pid, each.start_time_ticks) for each in usage.processes if each.host_pid is not None]
                await self._bind(allocation, pids)
        held = {allocation.uid for allocation in allocations}
        for uid in [uid for uid in self._bounds if uid not in held]:
            await self._let_go(uid)

    async def follow(
        self,
        wait: Callable[[Revision], Awaitable[NodeSnapshot]],
        allocations: Callable[[], Collection[Allocation]],
        usages: Callable[[], Iterable[AllocationUsage]],
    ) -> None:
        """For ever: a step with each change of the node's state. wait: NodeState.wait. Cancel-safe."""
        seen = Revision(0, 0)
        while True:
            seen = (await wait(seen)).revision
            await self.step(allocations(), usages())

    async def _bind(self, allocation: Allocation, pids: Iterable[tuple[int, int]]) -> None:
        if allocation.spec.isolation not in _LIMITED or allocation.phase is not AllocationPhase.ACTIVE:
            return
        limits = tuple(self._limits(allocation))
        if not limits:
            return
        for pid, start in pids:
            try:
                cgroup = await self._cgroup(allocation, pid, start)
                if cgroup is not None:
                    await self._set(allocation.uid, cgroup, limits)
            except (MemoryControlError, OSError) as error:
                self._tell(allocation, f"process {pid} is not bound by the driver: {error}")

    def _limits(self, allocation: Allocation) -> Iterator[tuple[str, int]]:
        for grant in allocation.grants:
            bus_id = self._bus_id(grant.gpu_uuid)
            if grant.limit_vram_bytes is not None and self._control.covers(bus_id):
                yield bus_id, grant.limit_vram_bytes

    async def _set(self, uid: str, cgroup: Path, limits: Iterable[tuple[str, int]]) -> None:
        bounds = self._bounds.setdefault(uid, set())
        for bus_id, amount in limits:
            bound = Bound(cgroup, bus_id, amount)
            if bound not in bounds and await self._control.limit(cgroup, bus_id, amount):
                bounds -= {old for old in bounds if (old.cgroup, old.bus_id) == (cgroup, bus_id)}
                bounds.add(bound)

    async def _cgroup(self, allocation: Allocation, pid: int, start: int) -> Path | None:
        """Where the limit is to be set; None where that is not ours, or the process has gone."""
        text = self._read(pid, "cgroup")
        path = _unified(text)
        if path is None or self._started(pid) != start:
            return None
        lives, owner, path = residence(text), allocation.spec.owner, self._control.at(path)
        if owner.kind is OwnerKind.POD:
            return self._control.root / container_path(path) if lives.pod_uid == owner.pod_uid else None
        if self._home is None or lives.container_id:
            return None
        now = self._control.root / path
        own = self._home / _FOLDER / allocation.uid
        if self._home in now.parents:
            return own if now == own else None  # a worker has the limit where it lives
        own.mkdir(parents=True, exist_ok=True)
        # Bound before anything is charged to it.
        await self._set(allocation.uid, own, tuple(self._limits(allocation)))
        if self._started(pid) != start:
            return None  # it ended meanwhile, and its pid may be another's
        (own / "cgroup.procs").write_text(str(pid))
        return own

    async def _let_go(self, uid: str) -> None:
        for bound in self._bounds.pop(uid):
            if self._home is not None and self._home in bound.cgroup.parents:
                continue  # what still runs there keeps its last limit
            try:
                await self._control.limit(bound.cgroup, bound.bus_id, None)
            except (MemoryControlError, OSError) as error:
                log.info("a cgroup has gone with its limit", why=str(error))
        if self._home is not None:
            try:
                (self._home / _FOLDER / uid).rmdir()
                (self._home / _FOLDER).rmdir()
            except OSError as error:
                log.debug("a cgroup stays", uid=uid, why=error.strerror)

    def _tell(self, allocation: Allocation, why: str) -> None:
        name = allocation.spec.allocation_id
        if (allocation.uid, why) in self._told:
            return
        if len(self._told) > 1000:
            self._told.clear()
        self._told.add((allocation.uid, why))
        about = ObjectReference(kind=ObjectKind.ALLOCATION, name=name, uid=allocation.uid)
        self._emit(EventType.WARNING, "MemoryLimitNotSet", about, why)

    def _read(self, pid: int, name: str) -> str:
        try:
            return (self._proc / str(pid) / name).read_text(errors="replace")
        except OSError:
            return ""

    def _started(self, pid: int) -> int:
        fields = self._read(pid, "stat").rpartition(")")[2].split()
        return int(fields[19]) if len(fields) > 19 else 0


def _unified(text: str) -> str | None:
    """The path in the cgroup-v2 tree that /proc/PID/cgroup tells; None where there is none."""
    return next((line[3:] for line in text.splitlines() if line.startswith("0::/")), None)


def container_path(path: str) -> str:
    """The part of a cgroup's path that is a container's own, without what it has made below it itself; relative."""
    parts = path.strip("/").split("/")
    containers = [at for at, part in enumerate(parts) if _CONTAINER.search(part)]
    return "/".join(parts[: containers[-1] + 1] if containers else parts)
