"""GPU and GPUNode objects as they shall be, from the registry's records: each field in one place. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal

from google.protobuf.timestamp_pb2 import Timestamp

from hypervisor.aggregator import derive, summaries
from hypervisor.aggregator.kubernetes import names
from hypervisor.aggregator.kubernetes.client import Object
from hypervisor.aggregator.kubernetes.links import nv_link, peers
from hypervisor.aggregator.records import GpuObject, NodeRecord, Position
from hypervisor.aggregator.sums import Sums, sums_of
from hypervisor.kube.quantity import BadQuantityError, parse_quantity
from hypervisor.v1 import cluster_pb2, types_pb2

OURS = "tensor-fusion"
_OURS_ON_THE_NODE = frozenset({"", "hypervisor", OURS})
_MESSAGE = 1_024
MODES: Mapping[int, str] = {
    types_pb2.ISOLATION_MODE_SHARED: "shared",
    types_pb2.ISOLATION_MODE_SOFT: "soft",
    types_pb2.ISOLATION_MODE_HARD: "hard",
    types_pb2.ISOLATION_MODE_PARTITIONED: "partitioned",
}
HYPERVISOR_STATES: Mapping[int, str] = {
    cluster_pb2.LIVENESS_FRESH: "Running",
    cluster_pb2.LIVENESS_LATE: "Late",
    cluster_pb2.LIVENESS_LOST: "Lost",
}
_QOS = {
    types_pb2.QOS_CLASS_LOW: "low",
    types_pb2.QOS_CLASS_MEDIUM: "medium",
    types_pb2.QOS_CLASS_HIGH: "high",
    types_pb2.QOS_CLASS_CRITICAL: "critical",
}


def health_name(health: int) -> str:
    """HEALTH_STATE_HEALTHY -> Healthy."""
    return types_pb2.HealthState.Name(health).removeprefix("HEALTH_STATE_").capitalize()


def gpu_metadata(gpu: GpuObject, *, node_uid: str) -> Object:
    """What the aggregator owns of a GPU's metadata. node_uid: of the GPUNode object, which owns the GPU; "" when it
    is not known."""
    metadata: Object = {"name": gpu.name, "labels": {names.MANAGED_BY: names.AGGREGATOR, names.POOL_LABEL: _pool(gpu)}}
    if gpu.missing_since is not None:
        metadata["annotations"] = {names.MISSING_SINCE: timestamp(gpu.missing_since)}
    if node_uid:
        metadata["ownerReferences"] = [_owner(gpu.node.name, node_uid)]
    return {"apiVersion": names.API_VERSION, "kind": "GPU", "metadata": metadata}


def gpu_status(gpu: GpuObject) -> Object:
    """A GPU's status."""
    message = types_pb2.Gpu.FromString(gpu.latest)
    lost = gpu.liveness == cluster_pb2.LIVENESS_LOST
    active = MODES.get(gpu.isolation, "")
    status: Object = {
        "phase": gpu.phase,
        "vendor": gpu.vendor or "NVIDIA",
        "model": gpu.model,
        "gpuModel": gpu.model,
        "uuid": gpu.name,
        "index": gpu.index,
        "numaNode": message.topology.numa_node if message.topology.HasField("numa_node") else -1,
        "nodeSelector": {names.HOSTNAME: gpu.node.name},
        "isolationMode": "partitioned" if gpu.partition else active or "soft",
        "usedBy": OURS if gpu.used_by in _OURS_ON_THE_NODE else gpu.used_by,
        "message": _message(gpu, message),
        "health": health_name(gpu.health),
        "allocatable": gpu.allocatable and not lost,
        "nodeLiveness": "Lost" if lost else "Fresh",
        "simulated": gpu.simulated,
        "capacity": _resource(gpu.tflops, gpu.vram_bytes),
        "available": _resource(gpu.available_tflops, gpu.available_vram_bytes),
        "runningApps": running_apps(gpu.apps),
        "topology": {"peers": peers(message)},
        "nvLink": nv_link(message),
        "conditions": conditions(message.conditions),
        "activeIsolationMode": active,
        "missingSince": timestamp(gpu.missing_since) if gpu.missing_since is not None else "",
        "partition": _partition(message) if gpu.partition else {},
    }
    return without_empty(status, keep=("message",))


def node_metadata(node: NodeRecord, *, position: Position, owner_uid: str = "") -> Object:
    """What the aggregator owns of a GPUNode's metadata. position: the node's last event that is stored. owner_uid: of
    the cluster's Node object, with which the GPUNode goes; "" where there is none."""
    labels = {names.MANAGED_BY: names.AGGREGATOR}
    labels |= {f"{derive.POOL_LABEL}{pool}": "true" for pool in node.pools}
    annotations = {names.NODE_UID: node.uid, names.BOOT_ID: node.boot_id, names.EVENT_POSITION: position_text(position)}
    metadata: Object = {"name": node.name, "labels": labels, "annotations": annotations}
    if owner_uid:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": owner_uid}]
    return {"apiVersion": names.API_VERSION, "kind": "GPUNode", "metadata": metadata}


def node_status(node: NodeRecord) -> Object:
    """A GPUNode's status, without when it was last heard of, which is no reason to write it."""
    message = types_pb2.Node.FromString(node.latest)
    managed = [gpu for gpu in node.gpus.values() if gpu.used_by in _OURS_ON_THE_NODE and gpu.missing_since is None]
    pods: dict[str, list[Object]] = {}
    for gpu in node.gpus.values():
        found = [
            {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
            for app in summaries.parsed(gpu.apps).running_apps
            for pod in app.pods
        ]
        if found:
            pods[gpu.name] = found
    status: Object = {
        "phase": node_phase(node, message),
        "conditions": conditions(message.conditions),
        **totals(sums_of(node.gpus.values())),
        "hypervisorStatus": without_empty(
            {
                "hypervisorState": HYPERVISOR_STATES.get(node.liveness, "Lost"),
                "hypervisorVersion": message.hypervisor_version,
            }
        ),
        "nodeInfo": {"ramSize": mebibytes(message.host_memory_bytes)} if message.host_memory_bytes else {},
        "totalGPUs": sum(not gpu.partition for gpu in node.gpus.values()),
        "managedGPUs": len(managed),
        "managedGPUDeviceIDs": sorted(gpu.name for gpu in managed),
        "totalGPUPods": len({(pod["namespace"], pod["name"]) for found in pods.values() for pod in found}),
        "allocatedPods": pods,
        "pools": list(node.pools),
        "simulated": node.simulated,
    }
    return without_empty(status)


def node_phase(node: NodeRecord, message: types_pb2.Node) -> str:
    """Unknown when the node is not heard of, Pending before its first report, Failed when it says that it can't
    serve, Running otherwise."""
    if node.liveness == cluster_pb2.LIVENESS_LOST:
        return "Unknown"
    if not node.latest:
        return "Pending"
    unready = any(each.type == "Ready" and each.status == "False" for each in message.conditions)
    return "Failed" if unready else "Running"


def totals(sums: Sums) -> Object:
    """The fields of sums that nodes, pools and clusters have in common."""
    return {
        "totalTFlops": decimal(sums.tflops),
        "totalVRAM": mebibytes(sums.vram_bytes),
        "virtualTFlops": decimal(sums.virtual_tflops),
        "virtualVRAM": mebibytes(sums.virtual_vram_bytes),
        "availableTFlops": decimal(sums.available_tflops),
        "availableVRAM": mebibytes(sums.available_vram_bytes),
        "virtualAvailableTFlops": decimal(sums.available_tflops),
        "virtualAvailableVRAM": mebibytes(sums.available_vram_bytes),
    }


def running_apps(apps: bytes) -> list[Object]:
    """Who holds a share of a GPU."""
    return [
        {
            "name": app.name,
            "namespace": app.namespace,
            "count": app.count,
            "pods": [
                without_empty(
                    {
                        "name": pod.name,
                        "namespace": pod.namespace,
                        "uid": pod.uid,
                        "requests": _resources(pod.requests),
                        "limits": _resources(pod.limits),
                        "qos": _QOS.get(pod.qos, ""),
                        "isExternal": not pod.uid,
                    },
                    keep=("name", "namespace", "uid", "isExternal"),
                )
                for pod in app.pods
            ],
        }
        for app in summaries.parsed(apps).running_apps
    ]


def conditions(reported: Iterable[types_pb2.Condition]) -> list[Object]:
    """Conditions, of each type the first."""
    found: dict[str, Object] = {}
    for each in reported:
        status = each.status if each.status in ("True", "False", "Unknown") else "Unknown"
        found.setdefault(
            each.type[:316],
            {
                "type": each.type[:316],
                "status": status,
                "reason": each.reason[:_MESSAGE] or "Unknown",
                "message": each.message[:_MESSAGE],
                "lastTransitionTime": _proto_timestamp(each.last_transition_at),
            },
        )
    return list(found.values())


def timestamp(at: float) -> str:
    """Wall time as Kubernetes writes it, in whole seconds."""
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(at: float) -> str:
    """Wall time with microseconds, as events have it."""
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def decimal(value: float) -> str:
    """A quantity with at most three decimals."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def mebibytes(count: int) -> str:
    """Bytes as a quantity, in whole Mi, rounded down."""
    return f"{count >> 20}Mi"


def position_text(position: Position) -> str:
    """EPOCH.SEQUENCE."""
    return f"{position[0]}.{position[1]}"


def without_empty(fields: Object, *, keep: Iterable[str] = ()) -> Object:
    """Without what is empty: in server-side apply what is not named is removed."""
    kept = frozenset(keep)
    return {name: value for name, value in fields.items() if name in kept or value not in ("", {}, [])}


def _pool(gpu: GpuObject) -> str:
    return gpu.node.pools[0]


def _owner(name: str, uid: str) -> Object:
    return {"apiVersion": names.API_VERSION, "kind": "GPUNode", "name": name, "uid": uid}


def _message(gpu: GpuObject, message: types_pb2.Gpu) -> str:
    if gpu.missing_since is not None:
        return f"no longer reported by its node since {timestamp(gpu.missing_since)}, while something runs on it"
    told = [each.message for each in message.conditions if each.status == "True" and each.message]
    return "; ".join(told)[:_MESSAGE]


def _resource(tflops: float | None, vram_bytes: int | None) -> Object:
    found: Object = {}
    if tflops is not None:
        found["tflops"] = decimal(tflops)
    if vram_bytes is not None:
        found["vram"] = mebibytes(vram_bytes)
    return found


def _resources(resources: types_pb2.Resources) -> Object:
    """What is asked for; an amount that is no quantity is left out, for the API server would refuse the object."""
    found: Object = {}
    amount = resources.compute.WhichOneof("amount")
    if amount:
        text = getattr(resources.compute, amount)
        if _is_quantity(text):
            found["tflops" if amount == "tflops" else "compute"] = text
    if resources.HasField("vram_bytes"):
        found["vram"] = mebibytes(resources.vram_bytes)
    return found


def _is_quantity(text: str) -> bool:
    try:
        return parse_quantity(text) >= Decimal(0)
    except BadQuantityError:
        return False


def _partition(message: types_pb2.Gpu) -> Object:
    part = message.partition
    return {
        "parentUUID": part.parent_uuid.lower(),
        "profile": part.profile,
        "gpuInstance": part.gpu_instance_id,
        "computeInstance": part.compute_instance_id,
    }


def _proto_timestamp(at: Timestamp) -> str:
    return timestamp(max(0, at.seconds))
