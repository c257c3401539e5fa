"""The state of a node at one revision: what every consumer reads, and nobody changes."""

from __future__ import annotations

from dataclasses import dataclass

from hypervisor.model.allocation import Allocation
from hypervisor.model.gpu import Gpu
from hypervisor.model.health import Condition
from hypervisor.model.revision import Revision
from hypervisor.model.usage import AllocationUsage
from hypervisor.model.worker import Worker

__all__ = ["NodeIdentity", "NodeSnapshot", "Revision", "SystemInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """Who a node is; boot_id changes with each start of the machine."""

    name: str
    uid: str
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemInfo:
    """Versions, as the driver and the kernel give them; "" when not known."""

    driver_version: str
    nvml_version: str
    cuda_version: str
    kernel_version: str
    host_memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """One immutable state of the node. Ordered: GPUs by index, the rest by id. Times are wall time in seconds."""

    identity: NodeIdentity
    revision: Revision
    version: str
    system: SystemInfo
    started_at: float
    conditions: tuple[Condition, ...]
    gpus: tuple[Gpu, ...]
    allocations: tuple[Allocation, ...]
    usages: tuple[AllocationUsage, ...]
    workers: tuple[Worker, ...]
    simulated: bool
    labels: tuple[tuple[str, str], ...] = ()

    def gpu(self, uuid: str) -> Gpu | None:
        """The device of this UUID, case ignored; None when there is none."""
        wanted = uuid.lower()
        return next((gpu for gpu in self.gpus if gpu.identity.uuid.lower() == wanted), None)
