"""From GPUNode and GPU objects back to rows: what a start finds until the nodes report again. Pure.

Only what the objects tell; readings, ages and allocations come with the first report.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hypervisor.aggregator.kubernetes import names
from hypervisor.aggregator.kubernetes.client import Object
from hypervisor.aggregator.kubernetes.links import LINK_TYPES
from hypervisor.aggregator.kubernetes.objects import HYPERVISOR_STATES, MODES, OURS, health_name
from hypervisor.aggregator.records import Position
from hypervisor.aggregator.store import GpuRow, NodeRow
from hypervisor.kube.quantity import BadQuantityError, parse_quantity
from hypervisor.v1 import cluster_pb2, types_pb2

_LIVENESS = {state: liveness for liveness, state in HYPERVISOR_STATES.items()}
_MODES = {name: mode for mode, name in MODES.items()}
_LEVELS = {name: level for level, name in LINK_TYPES.items()}
_HEALTH = {health_name(number): number for number in types_pb2.HealthState.values()}
_QOS = {"low": 1, "medium": 2, "high": 3, "critical": 4}


def is_ours(object_: Object) -> bool:
    """Whether the aggregator made it."""
    labels = object_["metadata"].get("labels") or {}
    return bool(labels.get(names.MANAGED_BY) == names.AGGREGATOR)


def node_row(object_: Object) -> NodeRow | None:
    """A node; None when the object was not made from a report."""
    metadata, status = object_["metadata"], object_.get("status") or {}
    annotations = metadata.get("annotations") or {}
    uid = annotations.get(names.NODE_UID, "")
    if not uid:
        return None
    hypervisor = status.get("hypervisorStatus") or {}
    liveness = _LIVENESS.get(hypervisor.get("hypervisorState", ""), cluster_pb2.LIVENESS_LOST)
    boot_id, simulated = annotations.get(names.BOOT_ID, ""), bool(status.get("simulated"))
    node = types_pb2.Node(
        identity=types_pb2.NodeIdentity(name=metadata["name"], uid=uid, boot_id=boot_id),
        hypervisor_version=hypervisor.get("hypervisorVersion", ""),
        host_memory_bytes=_bytes((status.get("nodeInfo") or {}).get("ramSize")) or 0,
        gpu_count=int(status.get("totalGPUs") or 0),
        conditions=_conditions(status),
        simulated=simulated,
    )
    seen = seconds(hypervisor.get("lastHeartbeatTime", ""))
    return NodeRow(uid, metadata["name"], boot_id, simulated, liveness, seen, 0, node.SerializeToString())


def event_position(object_: Object) -> Position:
    """The last stored event of a GPUNode's node."""
    return position((object_["metadata"].get("annotations") or {}).get(names.EVENT_POSITION, ""))


def position(text: str) -> Position:
    """EPOCH.SEQUENCE; (0, 0) for anything else."""
    epoch, _, sequence = text.partition(".")
    return (int(epoch), int(sequence)) if epoch.isdecimal() and sequence.isdecimal() else (0, 0)


def node_name(gpu: Object) -> str:
    """Name of the node that a GPU object is on."""
    return str(((gpu.get("status") or {}).get("nodeSelector") or {}).get(names.HOSTNAME, ""))


def gpu_row(object_: Object, *, node_uid: str) -> GpuRow:
    """A GPU of a node."""
    status = object_.get("status") or {}
    name = object_["metadata"]["name"]
    capacity, available = status.get("capacity") or {}, status.get("available") or {}
    tflops, vram = _number(capacity.get("tflops")), _bytes(capacity.get("vram"))
    free_tflops, free_vram = _number(available.get("tflops")), _bytes(available.get("vram"))
    mode = _MODES.get(status.get("activeIsolationMode", ""), types_pb2.ISOLATION_MODE_UNSPECIFIED)
    used_by = status.get("usedBy", "")
    health = _HEALTH.get(status.get("health", ""), types_pb2.HEALTH_STATE_UNKNOWN)
    missing = status.get("missingSince", "")
    gpu = types_pb2.Gpu(
        uuid=name,
        index=max(0, int(status.get("index") or 0)),
        model=status.get("gpuModel", ""),
        vendor=status.get("vendor", ""),
        used_by="hypervisor" if used_by == OURS else used_by,
        health=health,  # type: ignore[arg-type]  # an int is what protobuf takes
        active_isolation=mode,  # type: ignore[arg-type]
        allocatable=bool(status.get("allocatable")),
        simulated=bool(status.get("simulated")),
        conditions=_conditions(status),
    )
    for figure, value in ((gpu.capacity.tflops, tflops), (gpu.capacity.available_tflops, free_tflops)):
        if value is not None:
            figure.value = value
    for size, count in ((gpu.capacity.vram, vram), (gpu.capacity.available_vram, free_vram)):
        if count is not None:
            size.bytes = count
    if (status.get("numaNode") or 0) >= 0:
        gpu.topology.numa_node = int(status.get("numaNode") or 0)
    _put_links(gpu, status)
    if part := status.get("partition"):
        gpu.partition.parent_uuid = part.get("parentUUID", "")
        gpu.partition.profile = part.get("profile", "")
        gpu.partition.gpu_instance_id = int(part.get("gpuInstance") or 0)
        gpu.partition.compute_instance_id = int(part.get("computeInstance") or 0)
    return GpuRow(
        name,
        node_uid,
        gpu.index,
        gpu.model,
        gpu.vendor,
        gpu.used_by,
        status.get("phase", "Pending"),
        health,
        mode,
        gpu.allocatable,
        gpu.simulated,
        tflops,
        vram,
        free_tflops,
        free_vram,
        seconds(missing) if missing else None,
        0,
        gpu.SerializeToString(),
        _apps(status),
    )


def seconds(text: str) -> float:
    """Wall time of a timestamp; 0 for what is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _put_links(gpu: types_pb2.Gpu, status: Mapping[str, Any]) -> None:
    nv_link = status.get("nvLink") or {}
    linked = {peer["peerUUID"]: peer for peer in nv_link.get("peers") or ()}
    # Links to a switch serve all peers, and are counted once.
    switched = int(nv_link.get("totalLinkCount") or 0) < sum(int(peer["linkCount"]) for peer in linked.values())
    for peer in (status.get("topology") or {}).get("peers") or ():
        link = gpu.topology.links.add(peer_uuid=peer["peerGPUUUID"], tier=int(peer["tier"]))
        link.pcie_level = _LEVELS.get(peer.get("linkType", ""), 0)  # type: ignore[assignment]
        if "bandwidth" in peer:
            link.bandwidth_bytes_per_second = int(peer["bandwidth"])
        if found := linked.get(peer["peerGPUUUID"]):
            link.nvlink_count, link.nvlink_switched = int(found["linkCount"]), switched
            link.nvlink_version = found.get("linkVersion", "")


def _apps(status: Mapping[str, Any]) -> bytes:
    made = cluster_pb2.ClusterGpu()
    for app in status.get("runningApps") or ():
        kept = made.running_apps.add(namespace=app["namespace"], name=app["name"], count=int(app["count"]))
        for pod in app.get("pods") or ():
            row = kept.pods.add(namespace=pod["namespace"], name=pod["name"], uid=pod["uid"])
            row.qos = _QOS.get(pod.get("qos", ""), 0)  # type: ignore[assignment]  # an int is what protobuf takes
            for side in ("requests", "limits"):
                _put_resources(getattr(row, side), pod.get(side) or {})
    return made.SerializeToString(deterministic=True)


def _put_resources(resources: types_pb2.Resources, told: Mapping[str, Any]) -> None:
    if "tflops" in told:
        resources.compute.tflops = str(told["tflops"])
    elif "compute" in told:
        resources.compute.percent = str(told["compute"])
    count = _bytes(told.get("vram"))
    if count is not None:
        resources.vram_bytes = count


def _conditions(status: Mapping[str, Any]) -> list[types_pb2.Condition]:
    found = []
    for each in status.get("conditions") or ():
        made = types_pb2.Condition(
            type=each["type"], status=each["status"], reason=each["reason"], message=each["message"]
        )
        made.last_transition_at.seconds = int(seconds(each["lastTransitionTime"]))
        found.append(made)
    return found


def _number(text: Any) -> float | None:
    try:
        return float(parse_quantity(str(text))) if text is not None else None
    except BadQuantityError:
        return None


def _bytes(text: Any) -> int | None:
    found = _number(text)
    return int(found) if found is not None else None
