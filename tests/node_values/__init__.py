"""Plain values that the tests of the node room are made of."""

from __future__ import annotations

from decimal import Decimal

from hypervisor.model import (
    Allocation,
    AllocationPhase,
    AllocationSpec,
    AllocationUsage,
    AttachedProcess,
    Compute,
    DeviceGrant,
    DeviceObservation,
    DeviceRequest,
    DeviceUsage,
    Enforcement,
    Figure,
    FigureSource,
    GpuIdentity,
    GpuReadings,
    GpuTopology,
    HealthState,
    Inventory,
    Owner,
    OwnerKind,
    ProcessOnGpu,
    Resources,
    Revision,
    SystemInfo,
    TopologyLink,
)
from tests.builders import make_identity

GIB = 2**30
VRAM = 80 * GIB


def read(value: float, at: float = 100.0) -> Figure:
    return Figure(value=value, source=FigureSource.DRIVER, observed_at=at)


def uuid(index: int) -> str:
    return f"GPU-{index:08d}-0000-0000-0000-000000000000"


def identity(index: int = 0) -> GpuIdentity:
    return make_identity(index, uuid=uuid(index), pci_bus_id=f"00000000:{index + 1:02X}:00.0", vbios_version="96.00")


def readings(
    *, used: Figure | None = None, processes: tuple[ProcessOnGpu, ...] | None = (), reason: str = ""
) -> GpuReadings:
    return GpuReadings(
        memory_used_bytes=used or read(0),
        memory_free_bytes=read(VRAM),
        memory_reserved_bytes=read(GIB),
        utilization_ratio=read(0.5),
        memory_utilization_ratio=Figure.absent("not supported"),
        temperature_celsius=read(41.0),
        power_watts=read(120.0),
        power_limit_watts=read(700.0),
        energy_joules_total=read(1234.0),
        sm_clock_hertz=read(1.98e9),
        memory_clock_hertz=read(2.6e9),
        processes=processes,
        processes_absent_reason=reason,
    )


def device(index: int = 0, *, health: HealthState = HealthState.HEALTHY, **changes: object) -> DeviceObservation:
    values: dict = {
        "identity": identity(index),
        "tflops": Figure(value=989.0, source=FigureSource.CATALOGUE, observed_at=1.0),
        "vram_bytes": read(VRAM),
        "readings": readings(),
        "topology": GpuTopology(
            gpu_uuid=uuid(index),
            numa_node=0,
            cpu_affinity="0-7",
            links=(
                TopologyLink(
                    peer_uuid=uuid(index ^ 1),
                    tier=0,
                    pcie_level=None,
                    nvlink_count=18,
                    bandwidth_bytes_per_second=450_000_000_000,
                ),
            ),
        ),
        "health": health,
        "conditions": (),
    }
    return DeviceObservation(**(values | changes))


def inventory(*devices: DeviceObservation, conditions: tuple = (), sequence: int = 1) -> Inventory:
    return Inventory(
        sequence=sequence,
        observed_at=100.0,
        system=SystemInfo(
            driver_version="580.65.06",
            nvml_version="13.580.65.06",
            cuda_version="13.0",
            kernel_version="6.1.0",
            host_memory_bytes=2**40,
        ),
        devices=devices,
        conditions=conditions,
        simulated=True,
    )


def allocation(
    name: str = "a",
    *,
    index: int = 0,
    share_ppm: int = 250_000,
    vram_bytes: int = 8 * GIB,
    owner: Owner | None = None,
    revision: Revision | None = None,
) -> Allocation:
    limits = Resources(compute=Compute(percent=Decimal(share_ppm) / 10_000), vram_bytes=vram_bytes)
    spec = AllocationSpec(
        allocation_id=name,
        owner=owner or Owner(kind=OwnerKind.NAMED, name=name),
        devices=(DeviceRequest(gpu=uuid(index), requests=limits, limits=limits),),
    )
    grant = DeviceGrant(
        gpu_uuid=uuid(index),
        gpu_index=index,
        request_share_ppm=share_ppm,
        limit_share_ppm=share_ppm,
        request_vram_bytes=vram_bytes,
        limit_vram_bytes=vram_bytes,
    )
    return Allocation(
        spec=spec,
        uid=f"uid-{name}",
        phase=AllocationPhase.ACTIVE,
        grants=(grant,),
        created_at=1.0,
        revision=revision or Revision(1, 1),
        directory=f"/base/by-uid/uid-{name}",
        simulated=True,
    )


def pod(name: str, container: str = "main") -> Owner:
    return Owner(kind=OwnerKind.POD, name=name, namespace="default", pod_uid=f"pod-{name}", container=container)


def usage(name: str = "a", *, index: int = 0, pids: tuple[int, ...] = (), reserved: int = GIB) -> AllocationUsage:
    return AllocationUsage(
        allocation_id=name,
        devices=(
            DeviceUsage(
                gpu_uuid=uuid(index),
                reserved_bytes=read(reserved),
                overhead_bytes=Figure.absent("no process has attached"),
                busy_ratio=read(0.24),
                throttled_seconds_total=read(1.5),
                launches_total=read(1000),
                denials_total=read(2),
                over=False,
            ),
        ),
        processes=tuple(
            AttachedProcess(
                slot=slot, pid=1, pid_namespace=1, start_time_ticks=1, host_pid=pid, reserved_bytes=(reserved,)
            )
            for slot, pid in enumerate(pids)
        ),
        enforcement=Enforcement.UNVERIFIED,
    )
