"""Reports as a node would make them, for the tests of the aggregator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypervisor.v1 import node_pb2, report_pb2, types_pb2

GIB = 1 << 30


def revision(epoch: int, number: int) -> types_pb2.Revision:
    return types_pb2.Revision(epoch=epoch, revision=number)


def identity(name: str) -> types_pb2.NodeIdentity:
    return types_pb2.NodeIdentity(name=name, uid=f"uid-{name}", boot_id=f"boot-{name}")


def figure(value: float) -> types_pb2.Figure:
    return types_pb2.Figure(value=value, source=types_pb2.FIGURE_SOURCE_CATALOGUE, age_seconds=0.5)


def byte_figure(value: int) -> types_pb2.ByteFigure:
    return types_pb2.ByteFigure(bytes=value, source=types_pb2.FIGURE_SOURCE_DRIVER, age_seconds=0.5)


def gpu(
    node: str,
    index: int,
    *,
    available_tflops: float = 989.0,
    available_vram: int = 80 * GIB,
    health: types_pb2.HealthState = types_pb2.HEALTH_STATE_HEALTHY,
    allocations: Sequence[str] = (),
    temperature: float = 40.0,
    tier: int = 0,
    peers: int = 8,
    model: str = "NVIDIA H100 80GB HBM3",
) -> types_pb2.Gpu:
    made = types_pb2.Gpu(
        uuid=uuid(node, index),
        index=index,
        minor=index,
        pci_bus_id=f"00000000:{index:02x}:00.0",
        model=model,
        vendor="NVIDIA",
        architecture="Hopper",
        compute_capability="9.0",
        health=health,
        used_by="hypervisor",
        allocation_ids=allocations,
        allocatable=health == types_pb2.HEALTH_STATE_HEALTHY,
        simulated=True,
    )
    capacity = made.capacity
    capacity.tflops.CopyFrom(figure(989.0))
    capacity.vram.CopyFrom(byte_figure(80 * GIB))
    capacity.available_tflops.CopyFrom(figure(available_tflops))
    capacity.available_vram.CopyFrom(byte_figure(available_vram))
    capacity.tflops_ratio = capacity.vram_ratio = 1.0
    made.readings.temperature_celsius.CopyFrom(figure(temperature))
    made.readings.memory_used.CopyFrom(byte_figure(1 * GIB))
    made.readings.utilization_ratio.CopyFrom(figure(0.25))
    made.readings.power_watts.CopyFrom(figure(300.0))
    made.topology.gpu_uuid = made.uuid
    for peer in range(peers):
        if peer != index:
            made.topology.links.add(peer_uuid=uuid(node, peer), tier=tier, nvlink_count=18, nvlink_switched=True)
    return made


def uuid(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


def name(node: str, index: int) -> str:
    return uuid(node, index).lower()


def allocation(allocation_id: str, uuids: Iterable[str]) -> types_pb2.Allocation:
    made = types_pb2.Allocation(uid=f"uid-{allocation_id}", phase=types_pb2.ALLOCATION_PHASE_ACTIVE)
    made.spec.allocation_id = allocation_id
    for gpu_uuid in uuids:
        made.devices.add(gpu_uuid=gpu_uuid)
    return made


def node(name: str, *, gpu_count: int = 8, labels: dict[str, str] | None = None) -> types_pb2.Node:
    made = types_pb2.Node(
        identity=identity(name), hypervisor_version="0.1.0", gpu_count=gpu_count, simulated=True, labels=labels
    )
    made.tflops.CopyFrom(figure(989.0 * gpu_count))
    return made


def state(
    name: str,
    *,
    gpus: Sequence[types_pb2.Gpu] | None = None,
    allocations: Sequence[types_pb2.Allocation] = (),
    labels: dict[str, str] | None = None,
) -> node_pb2.NodeSnapshot:
    gpus = [gpu(name, index) for index in range(8)] if gpus is None else gpus
    return node_pb2.NodeSnapshot(
        node=node(name, gpu_count=len(gpus), labels=labels), gpus=gpus, allocations=allocations
    )


def hello(name: str, *, simulated: bool = True) -> report_pb2.ReportRequest:
    return report_pb2.ReportRequest(
        hello=report_pb2.Hello(node=identity(name), hypervisor_version="0.1.0", simulated=simulated)
    )


def snapshot(at: types_pb2.Revision, content: node_pb2.NodeSnapshot) -> report_pb2.ReportRequest:
    return report_pb2.ReportRequest(snapshot=report_pb2.Snapshot(revision=at, state=content))


def delta(base: types_pb2.Revision, to: types_pb2.Revision, changes: node_pb2.NodeDelta) -> report_pb2.ReportRequest:
    return report_pb2.ReportRequest(delta=report_pb2.Delta(base=base, revision=to, changes=changes))


def event(name: str, epoch: int, sequence: int, *, reason: str = "GpuLost", index: int = 0) -> types_pb2.Event:
    made = types_pb2.Event(
        node_uid=f"uid-{name}",
        node_name=name,
        epoch=epoch,
        sequence=sequence,
        type=types_pb2.EVENT_TYPE_WARNING,
        reason=reason,
        regarding=types_pb2.ObjectReference(kind="GPU", name=uuid(name, index), uid=uuid(name, index)),
        message=f"event {sequence} of {name}",
        fields={"number": str(sequence)},
        count=1,
        simulated=True,
    )
    made.first_at.FromSeconds(1_700_000_000 + sequence)
    made.last_at.FromSeconds(1_700_000_000 + sequence)
    return made


def events(*made: types_pb2.Event) -> report_pb2.ReportRequest:
    return report_pb2.ReportRequest(events=report_pb2.EventBatch(events=made))
