"""The read-only JSON that scripts written for TensorFusion's hypervisor expect, from a snapshot; pure.

Field names and their case are that product's. What it can't express is null: a figure that is not known is never 0.
"""

from __future__ import annotations

from typing import Any

from hypervisor.model import Allocation, DeviceGrant, Gpu, HealthState, NodeSnapshot, OwnerKind, TopologyLink
from hypervisor.model.allocation import SHARE_FULL_PPM

Json = dict[str, Any]


def devices(snapshot: NodeSnapshot) -> list[Json]:
    """All GPUs."""
    return [_device(gpu) for gpu in snapshot.gpus]


def device(snapshot: NodeSnapshot, uuid: str) -> Json | None:
    """One GPU by UUID, case ignored; None when the node has none of that UUID."""
    gpu = snapshot.gpu(uuid)
    return None if gpu is None else _device(gpu)


def workers(snapshot: NodeSnapshot) -> list[Json]:
    """One entry an allocation, which is what that product calls a worker."""
    return [_worker(allocation, snapshot) for allocation in snapshot.allocations]


def pods(snapshot: NodeSnapshot) -> list[Json]:
    """One entry an allocation, with the sums of its limits."""
    return [_pod(allocation, snapshot) for allocation in snapshot.allocations]


def _device(gpu: Gpu) -> Json:
    identity, topology = gpu.identity, gpu.topology
    return {
        "UUID": identity.uuid,
        "Vendor": identity.vendor,
        "Model": identity.model,
        "Index": identity.index,
        "NUMANode": topology.numa_node if topology else None,
        "Topology": {"Peers": [_peer(link) for link in topology.links] if topology else []},
        "TotalMemoryBytes": gpu.vram_bytes.value,
        "MaxTflops": gpu.tflops.value,
        "VirtualizationCapabilities": {"SupportsSoftIsolation": True},
        "Properties": {
            "pciBusId": identity.pci_bus_id,
            "architecture": identity.architecture,
            "computeCapability": identity.compute_capability,
            "simulated": identity.simulated,
        },
        "Healthy": gpu.health in {HealthState.HEALTHY, HealthState.DEGRADED},
        "ParentUUID": identity.partition.parent_uuid if identity.partition else "",
        "DeviceNode": {}
        if identity.minor is None
        else {f"/dev/nvidia{identity.minor}": f"/dev/nvidia{identity.minor}"},
        "DeviceEnv": {},
        "IsolationMode": gpu.active_isolation.value if gpu.active_isolation else "",
        "IsolationPolicy": "",
    }


def _peer(link: TopologyLink) -> Json:
    kind = "nvlink" if link.nvlink_count else (link.pcie_level.value if link.pcie_level else "unknown")
    return {
        "PeerUUID": link.peer_uuid,
        "Tier": link.tier,
        "LinkType": kind,
        "Bandwidth": link.bandwidth_bytes_per_second,
    }


def _worker(allocation: Allocation, snapshot: NodeSnapshot) -> Json:
    gpus = [gpu for grant in allocation.grants if (gpu := snapshot.gpu(grant.gpu_uuid)) is not None]
    namespace, name = _owner(allocation)
    return {
        "WorkerInfo": {
            "WorkerUID": allocation.uid,
            "WorkerName": name,
            "Namespace": namespace,
            "AllocatedDevices": [grant.gpu_uuid for grant in allocation.grants],
            "IsolationMode": allocation.spec.isolation.value,
            "QoS": allocation.spec.qos.value,
            "Status": allocation.phase.value,
            "Labels": dict(allocation.spec.labels),
        },
        "DeviceInfos": [_device(gpu) for gpu in gpus],
        "Envs": {},
        "Mounts": [],
        "Devices": [],
    }


def _pod(allocation: Allocation, snapshot: NodeSnapshot) -> Json:
    namespace, name = _owner(allocation)
    vram = [grant.limit_vram_bytes for grant in allocation.grants]
    known = [limit for limit in vram if limit is not None]
    return {
        "pod_name": name,
        "namespace": namespace,
        "gpu_uuids": [grant.gpu_uuid for grant in allocation.grants],
        "tflops_limit": _tflops(allocation.grants, snapshot),
        "vram_limit": sum(known) if len(known) == len(vram) else None,
        "qos_level": allocation.spec.qos.value,
    }


def _tflops(grants: tuple[DeviceGrant, ...], snapshot: NodeSnapshot) -> float | None:
    total = 0.0
    for grant in grants:
        gpu = snapshot.gpu(grant.gpu_uuid)
        if gpu is None or gpu.tflops.value is None:
            return None
        total += gpu.tflops.value * grant.limit_share_ppm / SHARE_FULL_PPM
    return round(total, 6)


def _owner(allocation: Allocation) -> tuple[str, str]:
    """Namespace and name; an owner that is no Pod has no namespace and goes by its allocation id."""
    owner = allocation.spec.owner
    return (owner.namespace, owner.name) if owner.kind is OwnerKind.POD else ("", allocation.spec.allocation_id)
