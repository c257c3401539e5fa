"""Snapshot and resume of what runs under an allocation: on demand, and, where the policy says so, when it is idle."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import trio

from hypervisor.durable import write_atomically
from hypervisor.model import (
    AllocationUsage,
    EventType,
    NodeSnapshot,
    ObjectKind,
    ObjectReference,
    Refusal,
    RefusalReason,
)
from hypervisor.model.quantity import format_bytes
from hypervisor.node.publisher import EmitEvent
from hypervisor.workers.checkpoint import FreezeError, Freezer
from hypervisor.workers.identity import PROC, ProcessIdentity, alive, boot_id, identify

log = structlog.get_logger("freezing")
LOOK_SECONDS = 1.0
_MEMINFO = Path("/proc/meminfo")


class Frozen(msgspec.Struct, frozen=True):
    """What was frozen: pids of the host, the bytes that they held, and when (wall time).

    starts are those of the processes, in a boot: a number that was given to somebody else is not theirs.
    """

    pids: tuple[int, ...]
    bytes: int
    at: float
    starts: tuple[int, ...] = ()
    boot_id: str = ""

    @property
    def living(self) -> tuple[int, ...]:
        """Those that have not ended."""
        if not self.starts:  # written by an earlier version
            return tuple(pid for pid in self.pids if (PROC / str(pid)).exists())
        if self.boot_id != boot_id():
            return ()
        return tuple(
            pid for pid, start in zip(self.pids, self.starts, strict=False) if alive(ProcessIdentity(pid, start))
        )


class Freezing:
    """Knows what is frozen, also after a restart. For the trio main thread."""

    def __init__(
        self,
        freezer: Freezer,
        *,
        path: Path,
        snapshot: Callable[[], NodeSnapshot],
        emit: EmitEvent,
        idle_seconds: Callable[[], float],
    ) -> None:
        """idle_seconds: an allocation that launches nothing for so long is frozen; 0: never."""
        self._freezer = freezer
        self._path = path
        self._snapshot = snapshot
        self._emit = emit
        self._idle_seconds = idle_seconds
        self._turn = trio.Lock()
        self._idle: dict[str, tuple[float, float]] = {}  # allocation -> launches, and since when it has so many
        self._frozen = _load(path)

    @property
    def frozen(self) -> dict[str, Frozen]:
        """By allocation, what is frozen now."""
        return dict(self._frozen)

    async def snapshot(self, *, allocation_id: str, worker_id: str) -> Frozen:
        """Move the VRAM of an allocation's processes to host memory; they wait in their next CUDA call. Raises
        Refusal, and then nothing has changed."""
        name = self._named(allocation_id, worker_id)
        async with self._turn:
            if name in self._frozen:
                return self._frozen[name]
            usage = self._usage(name)
            pids = tuple(sorted({process.host_pid for process in usage.processes if process.host_pid is not None}))
            if not pids or len(pids) != len(usage.processes):
                raise Refusal(
                    RefusalReason.NOT_READY,
                    f"'{name}' has {len(usage.processes)} processes, and of {len(pids)} the host's pid is known",
                    field="allocation_id",
                    remedy="take the snapshot when its processes run",
                )
            held = _held(usage)
            _check_room(held)
            starts = tuple(process.start if (process := identify(pid)) is not None else 0 for pid in pids)
            found = Frozen(pids=pids, bytes=held, at=time.time(), starts=starts, boot_id=boot_id())
            # Before it is done: what is frozen and nobody knows of could not be resumed after a kill.
            self._keep({**self._frozen, name: found})
            try:
                await self._freezer.freeze(pids)
            except FreezeError as error:
                if not error.uncertain:
                    self._drop(name)
                raise self._refused(name, "can't be frozen", error) from error
            self._tell(
                name, "AllocationFrozen", f"{format_bytes(held)} of VRAM of {len(pids)} processes are on the host"
            )
            return found

    async def resume(self, *, allocation_id: str, worker_id: str) -> Frozen:
        """Bring the VRAM back and let the processes go on. Raises Refusal; they stay frozen then."""
        name = self._named(allocation_id, worker_id)
        async with self._turn:
            found = self._frozen.get(name)
            if found is None:
                raise Refusal(
                    RefusalReason.ALLOCATION_NOT_FOUND,
                    f"'{name}' is not frozen",
                    field="allocation_id",
                    remedy="'hypervisor snapshot' freezes it",
                )
            if living := found.living:
                try:
                    await self._freezer.thaw(living)
                except FreezeError as error:
                    raise self._refused(name, "can't be resumed", error) from error
            self._drop(name)
            self._idle.pop(name, None)
            self._tell(name, "AllocationResumed", f"{len(living)} processes have their VRAM back")
            return found

    async def run(self) -> None:
        """For ever: freeze what is idle, where the policy says so, and forget what has ended. Cancel-safe."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            snapshot = self._snapshot()
            # One whose allocation was released waits in its CUDA call all the same, until it is resumed.
            for name in [name for name, found in self._frozen.items() if not found.living]:
                self._drop(name)
            if self._idle_seconds() > 0:
                for usage in snapshot.usages:
                    await self._consider(usage)

    async def _consider(self, usage: AllocationUsage) -> None:
        name, now = usage.allocation_id, trio.current_time()
        launches = [device.launches_total.value for device in usage.devices]
        if name in self._frozen or not usage.processes or any(count is None for count in launches):
            self._idle.pop(name, None)
            return
        total = float(sum(count or 0 for count in launches))
        known, since = self._idle.get(name, (-1.0, now))
        if total != known:
            self._idle[name] = (total, now)
        elif now - since >= self._idle_seconds():
            self._idle[name] = (total, now)  # after a refusal, not again at once
            try:
                await self.snapshot(allocation_id=name, worker_id="")
            except Refusal as refusal:
                log.info("an idle allocation stays", allocation=name, why=str(refusal))

    def _named(self, allocation_id: str, worker_id: str) -> str:
        if not worker_id:
            return allocation_id
        for worker in self._snapshot().workers:
            if worker.worker_id == worker_id and worker.allocation_id:
                return worker.allocation_id
        raise Refusal(
            RefusalReason.WORKER_NOT_FOUND,
            f"there is no worker {worker_id[:96]!r} with an allocation",
            field="worker_id",
            remedy="'hypervisor get workers' lists them",
        )

    def _usage(self, name: str) -> AllocationUsage:
        for usage in self._snapshot().usages:
            if usage.allocation_id == name:
                return usage
        raise Refusal(
            RefusalReason.ALLOCATION_NOT_FOUND,
            f"there is no allocation {name[:96]!r}",
            field="allocation_id",
            remedy="'hypervisor get pods' lists them",
        )

    def _refused(self, name: str, what: str, error: FreezeError) -> Refusal:
        self._tell(name, "CheckpointFailed", f"it {what}: {error}", EventType.WARNING)
        return Refusal(
            RefusalReason.CHECKPOINT_FAILED,
            f"'{name}' {what}: {error}",
            field="allocation_id",
            remedy=(
                f"what was done of it can't be known: 'hypervisor resume {name}' lets all of them go on"
                if error.uncertain
                else "see the driver's requirements in docs/isolation.md"
            ),
        )

    def _drop(self, name: str) -> None:
        self._keep({key: value for key, value in self._frozen.items() if key != name})

    def _keep(self, frozen: dict[str, Frozen]) -> None:
        self._frozen = frozen
        try:
            write_atomically(self._path, msgspec.json.encode(frozen))
        except OSError as error:
            log.warning("what is frozen can't be written down", why=error.strerror)

    def _tell(self, name: str, reason: str, message: str, kind: EventType = EventType.NORMAL) -> None:
        uid = next((each.uid for each in self._snapshot().allocations if each.spec.allocation_id == name), "")
        self._emit(
            kind, reason, ObjectReference(kind=ObjectKind.ALLOCATION, name=name, uid=uid), f"'{name}': {message}"
        )


def _held(usage: AllocationUsage) -> int:
    return sum((device.reserved_bytes.value or 0) + (device.overhead_bytes.value or 0) for device in usage.devices)


def _check_room(wanted: int) -> None:
    """Raises Refusal when the host has no memory for it."""
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if ":" in line)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    if wanted > free:
        raise Refusal(
            RefusalReason.CHECKPOINT_FAILED,
            f"{format_bytes(wanted)} of VRAM don't fit into the host's memory, of which {format_bytes(free)} are free",
            remedy="make room on the host",
        )


def _load(path: Path) -> dict[str, Frozen]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Frozen])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("what is frozen can't be read", path=str(path), why=str(error))
        return {}
