"""What the driver and the daemon say of a node, as plain values that a bundle can hold as JSON.

They come from the messages of the API, or from one inventory of the gpu-reader where no daemon runs. A figure that is
not known is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hypervisor.model import Condition, DeviceObservation, Inventory
from hypervisor.v1 import types_pb2 as pb

FROM_DAEMON = "the daemon"
FROM_READER = "the driver, read once"


class Base(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all facts share."""


class ConditionFacts(Base, frozen=True, kw_only=True):
    """A condition that holds. status as Kubernetes has it."""

    type: str
    code: str
    message: str
    status: str = "True"


class GpuFacts(Base, frozen=True, kw_only=True):
    """A GPU or MIG device. Bytes; tflops dense FP16; tflops_source as the API names it in lower case."""

    uuid: str
    index: int = 0
    minor: int | None = None
    pci_bus_id: str = ""
    pci_device_id: str = ""
    model: str = ""
    compute_capability: str = ""
    parent_uuid: str = ""
    health: str = "unknown"
    conditions: tuple[ConditionFacts, ...] = ()
    tflops: float | None = None
    tflops_source: str = ""
    vram_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    unattributed_bytes: int | None = None
    available_vram_bytes: int | None = None
    available_tflops: float | None = None
    requested_vram_bytes: int = 0
    used_by: str = ""
    allocatable: bool = True
    node: str = ""
    phase: str = ""


class GrantFacts(Base, frozen=True, kw_only=True):
    """One device of an allocation."""

    gpu_uuid: str
    limit_share_ppm: int = 0
    request_vram_bytes: int = 0
    limit_vram_bytes: int | None = None
    reserved_bytes: int | None = None
    overhead_bytes: int | None = None
    denials: int | None = None
    over: bool = False


class AllocationFacts(Base, frozen=True, kw_only=True):
    """An allocation; pids are those of the host."""

    allocation_id: str
    uid: str = ""
    directory: str = ""
    isolation: str = ""
    phase: str = ""
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    container: str = ""
    enforcement: str = ""
    pids: tuple[int, ...] = ()
    grants: tuple[GrantFacts, ...] = ()
    conditions: tuple[ConditionFacts, ...] = ()


class EventFacts(Base, frozen=True, kw_only=True):
    """An event; times are wall time in seconds."""

    reason: str
    type: str = "Normal"
    kind: str = ""
    namespace: str = ""
    name: str = ""
    message: str = ""
    count: int = 1
    last_at: float = 0.0


class NodeFacts(Base, frozen=True, kw_only=True):
    """A node. liveness only from an aggregator: fresh, late or lost."""

    source: str = FROM_DAEMON
    name: str = ""
    liveness: str = ""
    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: str = ""
    kernel_version: str = ""
    hypervisor_version: str = ""
    started_at: float = 0.0
    simulated: bool = False
    conditions: tuple[ConditionFacts, ...] = ()
    gpus: tuple[GpuFacts, ...] = ()
    allocations: tuple[AllocationFacts, ...] = ()
    events: tuple[EventFacts, ...] = ()


class ClusterFacts(Base, frozen=True, kw_only=True):
    """What an aggregator knows."""

    nodes: tuple[NodeFacts, ...] = ()
    gpus: tuple[GpuFacts, ...] = ()
    events: tuple[EventFacts, ...] = ()


def node_facts(
    node: pb.Node,
    *,
    gpus: Iterable[pb.Gpu] = (),
    allocations: Iterable[pb.Allocation] = (),
    events: Iterable[pb.Event] = (),
    liveness: str = "",
) -> NodeFacts:
    """From the messages of NodeService, or those of one node of ClusterService."""
    return NodeFacts(
        name=node.identity.name,
        liveness=liveness,
        driver_version=node.driver_version,
        nvml_version=node.nvml_version,
        cuda_version=node.cuda_version,
        kernel_version=node.kernel_version,
        hypervisor_version=node.hypervisor_version,
        started_at=node.started_at.ToSeconds(),
        simulated=node.simulated,
        conditions=_conditions(node.conditions),
        gpus=tuple(gpu_facts(gpu) for gpu in gpus),
        allocations=tuple(_allocation(allocation) for allocation in allocations),
        events=tuple(event_facts(event) for event in events),
    )


def gpu_facts(gpu: pb.Gpu, *, node: str = "", phase: str = "") -> GpuFacts:
    """One GPU of the API."""
    capacity, readings = gpu.capacity, gpu.readings
    return GpuFacts(
        uuid=gpu.uuid,
        index=gpu.index,
        minor=gpu.minor if gpu.HasField("minor") else None,
        pci_bus_id=gpu.pci_bus_id,
        pci_device_id=gpu.pci_device_id,
        model=gpu.model,
        compute_capability=gpu.compute_capability,
        parent_uuid=gpu.partition.parent_uuid,
        health=_word(pb.HealthState, gpu.health, "HEALTH_STATE_"),
        conditions=_conditions(gpu.conditions),
        tflops=_value(capacity.tflops),
        tflops_source=_word(pb.FigureSource, capacity.tflops.source, "FIGURE_SOURCE_"),
        vram_bytes=_bytes(capacity.vram),
        memory_used_bytes=_bytes(readings.memory_used),
        memory_reserved_bytes=_bytes(readings.memory_reserved),
        unattributed_bytes=_bytes(capacity.unattributed),
        available_vram_bytes=_bytes(capacity.available_vram),
        available_tflops=_value(capacity.available_tflops),
        requested_vram_bytes=capacity.requested_vram_bytes,
        used_by=gpu.used_by,
        allocatable=gpu.allocatable,
        node=node,
        phase=phase,
    )


def event_facts(event: pb.Event) -> EventFacts:
    """One event of the API."""
    return EventFacts(
        reason=event.reason,
        type="Warning" if event.type == pb.EVENT_TYPE_WARNING else "Normal",
        kind=event.regarding.kind,
        namespace=event.regarding.namespace,
        name=event.regarding.name,
        message=event.message,
        count=max(1, event.count),
        last_at=event.last_at.ToSeconds(),
    )


def inventory_facts(inventory: Inventory, *, name: str) -> NodeFacts:
    """From one round of the gpu-reader: no allocations, and nothing granted."""
    system = inventory.system
    return NodeFacts(
        source=FROM_READER,
        name=name,
        driver_version=system.driver_version,
        nvml_version=system.nvml_version,
        cuda_version=system.cuda_version,
        kernel_version=system.kernel_version,
        simulated=inventory.simulated,
        conditions=tuple(_condition(condition) for condition in inventory.conditions),
        gpus=tuple(_observed(device) for device in inventory.devices),
    )


def _observed(device: DeviceObservation) -> GpuFacts:
    identity, readings = device.identity, device.readings
    return GpuFacts(
        uuid=identity.uuid,
        index=identity.index,
        minor=identity.minor,
        pci_bus_id=identity.pci_bus_id,
        pci_device_id=identity.pci_device_id,
        model=identity.model,
        compute_capability=identity.compute_capability,
        parent_uuid=identity.partition.parent_uuid if identity.partition else "",
        health=device.health.value,
        conditions=tuple(_condition(condition) for condition in device.conditions),
        tflops=device.tflops.value,
        tflops_source=device.tflops.source.value if device.tflops.source else "",
        vram_bytes=device.vram_bytes.value,
        memory_used_bytes=readings.memory_used_bytes.value,
        memory_reserved_bytes=readings.memory_reserved_bytes.value,
    )


def _allocation(allocation: pb.Allocation) -> AllocationFacts:
    spec = allocation.spec
    pod = spec.owner.pod
    return AllocationFacts(
        allocation_id=spec.allocation_id,
        uid=allocation.uid,
        directory=allocation.directory,
        isolation=_word(pb.IsolationMode, spec.isolation, "ISOLATION_MODE_"),
        phase=_word(pb.AllocationPhase, allocation.phase, "ALLOCATION_PHASE_"),
        namespace=pod.namespace,
        pod=pod.name,
        pod_uid=pod.uid,
        container=pod.container,
        enforcement=_word(pb.Enforcement, allocation.enforcement, "ENFORCEMENT_"),
        pids=tuple(process.host_pid for process in allocation.processes if process.HasField("host_pid")),
        grants=tuple(_grant(device) for device in allocation.devices),
        conditions=_conditions(allocation.conditions),
    )


def _grant(device: pb.AllocatedDevice) -> GrantFacts:
    denials = _value(device.usage.denials_total)
    return GrantFacts(
        gpu_uuid=device.gpu_uuid,
        limit_share_ppm=device.limit_share_ppm,
        request_vram_bytes=device.request_vram_bytes,
        limit_vram_bytes=device.limit_vram_bytes or None,
        reserved_bytes=_bytes(device.usage.reserved),
        overhead_bytes=_bytes(device.usage.overhead),
        denials=None if denials is None else int(denials),
        over=device.usage.over,
    )


def _conditions(conditions: Iterable[pb.Condition]) -> tuple[ConditionFacts, ...]:
    return tuple(
        ConditionFacts(type=each.type, code=each.reason, message=each.message, status=each.status)
        for each in conditions
    )


def _condition(condition: Condition) -> ConditionFacts:
    return ConditionFacts(
        type=condition.type,
        code=condition.code.value,
        message=condition.message,
        status=condition.status.value,
    )


def _value(figure: pb.Figure) -> float | None:
    return figure.value if figure.HasField("value") else None


def _bytes(figure: pb.ByteFigure) -> int | None:
    return figure.bytes if figure.HasField("bytes") else None


def _word(enumeration: Any, number: int, prefix: str) -> str:
    name: str = enumeration.Name(number)
    word = name.removeprefix(prefix).lower()
    return "" if word == "unspecified" else word


def mapping(facts: NodeFacts | ClusterFacts) -> Mapping[str, Any]:
    """Facts as JSON values."""
    found: Mapping[str, Any] = msgspec.to_builtins(facts)
    return found
