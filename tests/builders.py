"""Model objects for tests: a small simulated node with plausible figures; each part can be replaced by keyword."""

from __future__ import annotations

from dataclasses import fields, replace
from decimal import Decimal
from typing import Any

from hypervisor.model import (
    Allocation,
    AllocationPhase,
    AllocationSpec,
    AllocationUsage,
    AttachedProcess,
    Compute,
    DeviceGrant,
    DeviceRequest,
    DeviceUsage,
    Enforcement,
    Event,
    EventType,
    Figure,
    FigureSource,
    Gpu,
    GpuIdentity,
    GpuReadings,
    GpuTopology,
    HealthState,
    LearnedCost,
    NodeIdentity,
    NodeSnapshot,
    ObjectKind,
    ObjectReference,
    Owner,
    OwnerKind,
    Pacing,
    PcieLevel,
    Resources,
    RestartPolicy,
    Revision,
    SystemInfo,
    TopologyLink,
    Worker,
    WorkerPhase,
)
from hypervisor.model.allocation import IsolationMode

GIB = 2**30
VRAM = 80 * GIB
OBSERVED_AT = 1000.0  # CLOCK_MONOTONIC
CREATED_AT = 1_800_000_000.0  # wall time


def uuid(index: int) -> str:
    return f"GPU-{index:08x}-0000-4000-8000-{index:012x}"


def revision(number: int = 1, epoch: int = 1) -> Revision:
    return Revision(epoch, number)


def driver(value: Any, observed_at: float = OBSERVED_AT) -> Figure[Any]:
    """A figure that the driver gave."""
    return Figure(value, FigureSource.DRIVER, observed_at)


def limiter(value: Any, observed_at: float = OBSERVED_AT) -> Figure[Any]:
    """A figure from a usage file."""
    return Figure(value, FigureSource.LIMITER, observed_at)


def make_identity(index: int = 0, **parts: Any) -> GpuIdentity:
    base = GpuIdentity(
        uuid=uuid(index),
        index=index,
        minor=index,
        pci_bus_id=f"00000000:{0x18 + index:02X}:00.0",
        pci_device_id="2330:10de",
        model="NVIDIA H100 80GB HBM3",
        vendor="NVIDIA",
        architecture="Hopper",
        compute_capability="9.0",
        sm_count=132,
        serial=f"165{index:010d}",
        vbios_version="96.00.74.00.01",
        partition=None,
        simulated=True,
    )
    return replace(base, **parts)


def make_readings(**parts: Any) -> GpuReadings:
    base = GpuReadings(
        memory_used_bytes=driver(GIB),
        memory_free_bytes=driver(VRAM - GIB),
        memory_reserved_bytes=driver(512 * 2**20),
        utilization_ratio=driver(0.25),
        memory_utilization_ratio=driver(0.1),
        temperature_celsius=driver(41.0),
        power_watts=driver(121.5),
        power_limit_watts=driver(700.0),
        energy_joules_total=driver(123456.0),
        sm_clock_hertz=driver(1.98e9),
        memory_clock_hertz=driver(2.619e9),
        processes=(),
    )
    return replace(base, **parts)


def make_unread(**parts: Any) -> GpuReadings:
    """Readings of a card of which nothing is known but what is given."""
    names = (each.name for each in fields(GpuReadings) if each.name not in ("processes", "processes_absent_reason"))
    absent: Figure[Any] = Figure.absent("not read")
    return GpuReadings(**(dict.fromkeys(names, absent) | {"processes": ()} | parts))


def make_topology(index: int = 0, count: int = 8) -> GpuTopology:
    return GpuTopology(
        gpu_uuid=uuid(index),
        numa_node=index * 2 // max(count, 2),
        cpu_affinity="0-47",
        links=tuple(
            TopologyLink(
                peer_uuid=uuid(peer),
                tier=0,
                pcie_level=PcieLevel.SYS,
                nvlink_count=18,
                nvlink_switched=True,
                nvlink_version="4.0",
                bandwidth_bytes_per_second=450_000_000_000,
                peer_access=True,
            )
            for peer in range(count)
            if peer != index
        ),
    )


def make_gpu(index: int = 0, *, count: int = 8, **parts: Any) -> Gpu:
    base = Gpu(
        identity=make_identity(index),
        tflops=Figure(989.0, FigureSource.CATALOGUE),
        vram_bytes=driver(VRAM),
        readings=make_readings(),
        topology=make_topology(index, count),
        health=HealthState.HEALTHY,
        conditions=(),
        active_isolation=None,
        used_by="",
        allocation_ids=(),
        requested_share_ppm=0,
        requested_tflops=0.0,
        requested_vram_bytes=0,
        available_tflops=Figure(989.0, FigureSource.CATALOGUE),
        available_vram_bytes=driver(VRAM),
        unattributed_bytes=driver(0),
        tflops_ratio=1.0,
        vram_ratio=1.0,
        allocatable=True,
        revision=revision(),
    )
    return replace(base, **parts)


def make_spec(name: str = "trainer", **parts: Any) -> AllocationSpec:
    base = AllocationSpec(
        allocation_id=name,
        owner=Owner(kind=OwnerKind.NAMED, name=name),
        devices=(DeviceRequest(gpu="0", limits=Resources(compute=Compute(percent=Decimal(40)), vram_bytes=8 * GIB)),),
    )
    return replace(base, **parts)


def make_grant(index: int = 0, **parts: Any) -> DeviceGrant:
    base = DeviceGrant(
        gpu_uuid=uuid(index),
        gpu_index=index,
        request_share_ppm=400_000,
        limit_share_ppm=400_000,
        request_vram_bytes=8 * GIB,
        limit_vram_bytes=8 * GIB,
    )
    return replace(base, **parts)


def make_allocation(name: str = "trainer", **parts: Any) -> Allocation:
    base = Allocation(
        spec=make_spec(name),
        uid=f"uid-of-{name}",
        phase=AllocationPhase.ACTIVE,
        grants=(make_grant(),),
        created_at=CREATED_AT,
        revision=revision(),
        directory=f"/run/tensor-fusion/shm/by-uid/uid-of-{name}",
        simulated=True,
    )
    return replace(base, **parts)


def make_device_usage(index: int = 0, **parts: Any) -> DeviceUsage:
    base = DeviceUsage(
        gpu_uuid=uuid(index),
        reserved_bytes=limiter(2 * GIB),
        overhead_bytes=driver(300 * 2**20),
        busy_ratio=driver(0.39),
        throttled_seconds_total=limiter(1.5),
        launches_total=limiter(1000),
        denials_total=limiter(0),
        over=False,
    )
    return replace(base, **parts)


def make_pacing(**parts: Any) -> Pacing:
    base = Pacing(
        achieved_ratio=driver(0.395),
        balance_seconds=limiter(-0.35),
        correction=1.1,
        correction_frozen="",
        lent_ratio=0.0,
        costs=(make_cost(), make_cost("copy_kernel", seconds=20e-6, launches=5)),
    )
    return replace(base, **parts)


def make_cost(name: str = "sgemm", **parts: Any) -> LearnedCost:
    return replace(LearnedCost(name=name, seconds=0.0012, launches=100, samples=32, graph=False), **parts)


def make_usage(name: str = "trainer", **parts: Any) -> AllocationUsage:
    base = AllocationUsage(
        allocation_id=name,
        devices=(make_device_usage(),),
        processes=(
            AttachedProcess(
                slot=0,
                pid=7,
                pid_namespace=4026531836,
                start_time_ticks=12345,
                host_pid=4711,
                reserved_bytes=(2 * GIB,),
            ),
        ),
        enforcement=Enforcement.VERIFIED,
    )
    return replace(base, **parts)


def make_worker(name: str = "mps-0", **parts: Any) -> Worker:
    base = Worker(
        worker_id=name,
        allocation_id="trainer",
        command=("nvidia-cuda-mps-control", "-f"),
        gpu_uuids=(uuid(0),),
        phase=WorkerPhase.RUNNING,
        pid=4712,
        restarts=0,
        last_exit_reason="",
        last_output_lines=(),
        started_at=CREATED_AT,
        isolation=IsolationMode.HARD,
        effective_sm_percent=40,
        memory_limit_bytes=8 * GIB,
        restart_policy=RestartPolicy.ALWAYS,
        revision=revision(),
        ready=True,
    )
    return replace(base, **parts)


def make_node_identity(**parts: Any) -> NodeIdentity:
    return replace(
        NodeIdentity(
            name="gpu-node-1",
            uid="8b8f1b0e-8a57-4a6e-9f0e-000000000001",
            boot_id="5d6f4b4e-13a5-4b8e-8a53-000000000001",
        ),
        **parts,
    )


def make_snapshot(
    *,
    gpus: int | tuple[Gpu, ...] = 8,
    allocations: int | tuple[Allocation, ...] = 0,
    number: int = 1,
    epoch: int = 1,
    **parts: Any,
) -> NodeSnapshot:
    """A node with so many H100 and so many allocations named pod-0, pod-1 and on, or with these."""
    if isinstance(gpus, int):
        gpus = tuple(make_gpu(index, count=gpus) for index in range(gpus))
    if isinstance(allocations, int):
        allocations = tuple(make_allocation(f"pod-{index}") for index in range(allocations))
    base = NodeSnapshot(
        identity=make_node_identity(),
        revision=revision(number, epoch),
        version="0.1.0",
        system=SystemInfo(
            driver_version="580.65.06",
            nvml_version="13.580.65.06",
            cuda_version="13.0",
            kernel_version="6.1.0",
            host_memory_bytes=2**40,
        ),
        started_at=CREATED_AT,
        conditions=(),
        gpus=gpus,
        allocations=allocations,
        usages=tuple(make_usage(allocation.spec.allocation_id) for allocation in allocations),
        workers=(),
        simulated=True,
    )
    return replace(base, **parts)


def make_event(sequence: int = 1, *, epoch: int = 1, **parts: Any) -> Event:
    identity = make_node_identity()
    base = Event(
        node_uid=identity.uid,
        node_name=identity.name,
        epoch=epoch,
        sequence=sequence,
        type=EventType.NORMAL,
        reason="Allocated",
        regarding=ObjectReference(kind=ObjectKind.ALLOCATION, name=f"pod-{sequence}", uid=f"uid-of-pod-{sequence}"),
        message=f"pod-{sequence} got 40% and 8Gi of GPU 0",
        fields=(("vram_bytes", str(8 * GIB)),),
        first_at=CREATED_AT + sequence,
        last_at=CREATED_AT + sequence,
        simulated=True,
    )
    return replace(base, **parts)
