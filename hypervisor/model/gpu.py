"""A GPU (or a MIG instance): who it is, what it can do, what it last said of itself."""

from __future__ import annotations

from dataclasses import dataclass

from hypervisor.model.allocation import IsolationMode
from hypervisor.model.figure import Figure
from hypervisor.model.health import Condition, HealthState
from hypervisor.model.revision import Revision
from hypervisor.model.topology import GpuTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """MIG: which part of which card a device is."""

    parent_uuid: str
    gpu_instance_id: int
    compute_instance_id: int
    profile: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdentity:
    """What does not change while the driver is loaded. uuid is as NVML spells it and is the only key."""

    uuid: str
    index: int
    minor: int | None
    pci_bus_id: str
    pci_device_id: str
    model: str
    vendor: str
    architecture: str
    compute_capability: str
    sm_count: int | None
    serial: str
    vbios_version: str
    partition: Partition | None
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOnGpu:
    """A process that NVML attributes to a device; pid in the host's PID namespace.

    memory_bytes is None where the driver doesn't say. busy_ratio is the share of time with one of its kernels
    resident in the last window, 0 to 1, None where the driver gives no samples.
    """

    pid: int
    memory_bytes: int | None
    busy_ratio: float | None
    busy_observed_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadings:
    """The last readings of a device."""

    memory_used_bytes: Figure[int]
    memory_free_bytes: Figure[int]
    memory_reserved_bytes: Figure[int]
    utilization_ratio: Figure[float]
    memory_utilization_ratio: Figure[float]
    temperature_celsius: Figure[float]
    power_watts: Figure[float]
    power_limit_watts: Figure[float]
    energy_joules_total: Figure[float]
    sm_clock_hertz: Figure[float]
    memory_clock_hertz: Figure[float]
    processes: tuple[ProcessOnGpu, ...] | None
    processes_absent_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A device of the node, as published.

    requested_* and available_* follow from the allocations: available is capacity x ratio, less the requests,
    less what processes of no allocation hold; None when that can't be said.
    """

    identity: GpuIdentity
    tflops: Figure[float]
    vram_bytes: Figure[int]
    readings: GpuReadings
    topology: GpuTopology | None
    health: HealthState
    conditions: tuple[Condition, ...]
    active_isolation: IsolationMode | None
    used_by: str
    allocation_ids: tuple[str, ...]
    requested_share_ppm: int
    requested_tflops: float
    requested_vram_bytes: int
    available_tflops: Figure[float]
    available_vram_bytes: Figure[int]
    unattributed_bytes: Figure[int]
    tflops_ratio: float
    vram_ratio: float
    allocatable: bool
    revision: Revision
