"""Messages of the API as the figures that the view shows; pure. None: not known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hypervisor.v1 import cluster_pb2
from hypervisor.v1 import types_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One GPU. Ratios are 0 to 1."""

    key: str
    node: str
    index: int
    model: str
    busy: float | None
    memory_used: int | None
    memory_total: int | None
    temperature_celsius: float | None
    power_watts: float | None
    power_limit_watts: float | None
    requested_share: float
    allocations: int
    health: str
    # Why no grant is made on it; "" where grants are made.
    closed: str
    mode: str
    stale: bool
    message: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """One device of one allocation. Shares are of the device's GPU time, 0 to 1."""

    # Allocation id and UUID: an allocation may have several devices.
    key: str
    name: str
    owner: str
    gpu_index: int
    gpu_uuid: str
    limit_share: float
    achieved: float | None
    throttled_seconds_total: float | None
    vram_used: int | None
    vram_limit: int
    over: bool
    denials: float | None
    processes: int
    enforcement: str
    phase: str
    message: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node of a cluster."""

    key: str
    name: str
    liveness: str
    heard_seconds_ago: float
    gpus: int
    tflops: float | None
    vram: int | None
    driver: str
    version: str
    ready: str
    message: Any


def _word(enum: Any, number: int, prefix: str) -> str:
    if number == 0 or number not in enum.values():
        return "" if number == 0 else str(number)
    return str(enum.Name(number)).removeprefix(prefix).lower().replace("_", "-")


def _value(figure: pb.Figure) -> float | None:
    return figure.value if figure.HasField("value") else None


def _bytes(figure: pb.ByteFigure) -> int | None:
    return figure.bytes if figure.HasField("bytes") else None


def gpu_row(message: pb.Gpu | cluster_pb2.ClusterGpu, node: str = "") -> GpuRow:
    """A GPU of a node, or of a cluster."""
    outer = message if isinstance(message, cluster_pb2.ClusterGpu) else None
    gpu = message if isinstance(message, pb.Gpu) else message.gpu
    readings = gpu.readings
    health = _word(pb.HealthState, gpu.health, "HEALTH_STATE_")
    if outer is not None:
        node = outer.node_name
        liveness = _word(cluster_pb2.Liveness, outer.node_liveness, "LIVENESS_")
        health = health if liveness in ("", "fresh") else f"{health} (node {liveness})"
    return GpuRow(
        key=gpu.uuid.lower(),
        node=node,
        index=gpu.index,
        model=("sim " if gpu.simulated else "") + gpu.model.removeprefix("NVIDIA "),
        busy=_value(readings.utilization_ratio),
        memory_used=_bytes(readings.memory_used),
        memory_total=_bytes(gpu.capacity.vram),
        temperature_celsius=_value(readings.temperature_celsius),
        power_watts=_value(readings.power_watts),
        power_limit_watts=_value(readings.power_limit_watts),
        requested_share=gpu.capacity.requested_share_ppm / 1e6,
        allocations=len(gpu.allocation_ids),
        health=health,
        closed="" if gpu.allocatable else _reason(gpu.conditions),
        mode=_word(pb.IsolationMode, gpu.active_isolation, "ISOLATION_MODE_"),
        stale=readings.utilization_ratio.stale,
        message=message,
    )


def _reason(conditions: Iterable[pb.Condition]) -> str:
    return next((each.reason for each in conditions if each.status != "True"), "closed")


def pod_rows(allocation: pb.Allocation) -> tuple[PodRow, ...]:
    """A row for each device of an allocation."""
    return tuple(_pod_row(allocation, device) for device in allocation.devices)


def _pod_row(allocation: pb.Allocation, device: pb.AllocatedDevice) -> PodRow:
    usage = device.usage
    reserved = _bytes(usage.reserved)
    return PodRow(
        key=f"{allocation.spec.allocation_id}@{device.gpu_uuid}",
        name=allocation.spec.allocation_id,
        owner=_owner(allocation.spec.owner),
        gpu_index=device.gpu_index,
        gpu_uuid=device.gpu_uuid,
        limit_share=device.limit_share_ppm / 1e6,
        achieved=_achieved(usage),
        throttled_seconds_total=_value(usage.throttled_seconds_total),
        vram_used=None if reserved is None else reserved + usage.overhead.bytes,
        vram_limit=device.limit_vram_bytes,
        over=usage.over,
        denials=_value(usage.denials_total),
        processes=len(allocation.processes),
        enforcement=_word(pb.Enforcement, allocation.enforcement, "ENFORCEMENT_"),
        phase=_word(pb.AllocationPhase, allocation.phase, "ALLOCATION_PHASE_"),
        message=allocation,
    )


def _achieved(usage: pb.DeviceUsage) -> float | None:
    """The driver's figure over ten seconds where there is one, else the limiter's over the last window."""
    measured = _value(usage.pacing.achieved_ratio)
    return _value(usage.busy_ratio) if measured is None else measured


def _owner(owner: pb.Owner) -> str:
    match owner.WhichOneof("kind"):
        case "process":
            return f"{owner.process.command or 'process'}[{owner.process.pid}]"
        case "pod":
            return f"{owner.pod.namespace}/{owner.pod.name}"
        case "declared_in":
            return owner.declared_in
    return ""


def node_row(message: cluster_pb2.ClusterNode) -> NodeRow:
    """A node of a cluster."""
    node = message.node
    ready = next((each for each in node.conditions if each.type == "Ready"), None)
    return NodeRow(
        key=node.identity.uid,
        name=node.identity.name,
        liveness=_word(cluster_pb2.Liveness, message.liveness, "LIVENESS_"),
        heard_seconds_ago=message.last_seen_age_seconds,
        gpus=node.gpu_count,
        tflops=_value(node.tflops),
        vram=_bytes(node.vram),
        driver=node.driver_version,
        version=node.hypervisor_version,
        ready="unknown" if ready is None else "ready" if ready.status == "True" else ready.reason,
        message=message,
    )
