"""What the adapters need from the node: who carries out commands, and where events come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hypervisor.model import (
    Allocation,
    AllocationSpec,
    AttachedProcess,
    DeviceRequest,
    Diagnosis,
    Event,
    ProcessOnGpu,
    Revision,
    Worker,
    WorkerSpec,
)


class NodeCommands(Protocol):
    """Changes of the node's state; awaited in trio. Each raises Refusal when it changes nothing."""

    async def allocate(self, spec: AllocationSpec, *, dry_run: bool) -> tuple[Allocation, bool, Mapping[str, str]]:
        """Grant a share: the allocation, whether it existed before, and the environment of its processes."""
        ...

    async def update_limits(
        self, allocation_id: str, devices: tuple[DeviceRequest, ...], expected: Revision | None
    ) -> Allocation:
        """Change requests and limits by device, in the order of the allocation; what is None stays."""
        ...

    async def release(self, allocation_id: str) -> tuple[AttachedProcess, ...]:
        """End an allocation; returns the processes that are still attached."""
        ...

    async def detach_gpu(self, uuid: str, reason: str) -> tuple[ProcessOnGpu, ...]:
        """Let go of a card; returns who else holds it."""
        ...

    async def attach_gpu(self, uuid: str) -> None:
        """Take a detached card back."""
        ...

    async def start_worker(self, spec: WorkerSpec) -> Worker:
        """Have a worker run; the devices, limits and environment of its allocation are added."""
        ...

    async def stop_worker(self, worker_id: str, *, grace_seconds: float | None, forget: bool) -> Worker:
        """Stop a worker, and remove it from the list when forget is set."""
        ...

    async def snapshot(self, *, allocation_id: str, worker_id: str) -> tuple[tuple[int, ...], int]:
        """Move the VRAM of an allocation, or a worker's, to the host: the pids, and the bytes that they held."""
        ...

    async def resume(self, *, allocation_id: str, worker_id: str) -> tuple[int, ...]:
        """Bring it back; returns the pids."""
        ...

    @property
    def worker_grace_seconds(self) -> float:
        """Time between the request to a worker to stop and its kill, where none is given."""
        ...


class Diagnose(Protocol):
    """Runs the doctor's checks; awaited in trio, which goes on meanwhile."""

    async def __call__(self, subject: str) -> Diagnosis:
        """subject: "" for the node, "pod/NAMESPACE/NAME" or "gpu/UUID". Raises Refusal for any other."""
        ...


class EventSource(Protocol):
    """The journal; called in trio only. Positions are (epoch, sequence), and (0, 0) is before the first."""

    def read(self, after: tuple[int, int], limit: int) -> Sequence[Event]:
        """Up to limit events behind a position, the oldest first."""
        ...

    def lost_before(self, after: tuple[int, int]) -> int:
        """Events behind a position that are no longer kept."""
        ...

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call back for each new event, in trio, after it can be read; returns what ends that."""
        ...
