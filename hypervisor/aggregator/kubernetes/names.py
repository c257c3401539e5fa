"""Names of the API: group, paths, labels, annotations, and who owns which fields. Pure."""

from __future__ import annotations

GROUP = "tensor-fusion.ai"
API_VERSION = f"{GROUP}/v1"

# Who owns which fields, in server-side apply.
METADATA_MANAGER = "gpu-hypervisor"
STATUS_MANAGER = "gpu-hypervisor-status"
RECREATE_MANAGER = "gpu-hypervisor-recreate"

MANAGED_BY = f"{GROUP}/managed-by"
AGGREGATOR = "aggregator"
POOL_LABEL = f"{GROUP}/gpupool"
COMPONENT = f"{GROUP}/component"
HOSTNAME = "kubernetes.io/hostname"
MISSING_SINCE = f"{GROUP}/gpu-missing-since"
# On a GPUNode: what a node that reports is recognised by, and its last event that is stored.
NODE_UID = f"{GROUP}/node-uid"
BOOT_ID = f"{GROUP}/boot-id"
EVENT_POSITION = f"{GROUP}/event-position"
# On an event: what it was made of, (node UID, epoch, sequence) of the first and of the last.
EVENT_ORIGIN = f"{GROUP}/event-origin"
EVENT_LAST = f"{GROUP}/event-last"
EVENT_FIELDS = f"{GROUP}/event-fields"
RECREATED = f"{GROUP}/hypervisor-recreated"
# On a GPUNode: which Pod was removed last, and the event that tells of it.
RECREATION = f"{GROUP}/hypervisor-recreation"
LEADER_ADDRESS = f"{GROUP}/aggregator-address"

_ROOT = f"/apis/{GROUP}/v1"
GPUS, GPU_NODES, GPU_POOLS = f"{_ROOT}/gpus", f"{_ROOT}/gpunodes", f"{_ROOT}/gpupools"
CLUSTERS = f"{_ROOT}/tensorfusionclusters"
NODES = "/api/v1/nodes"


def events(namespace: str) -> str:
    """Events of a namespace."""
    return f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"


def leases(namespace: str) -> str:
    """Leases of a namespace."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def pods(namespace: str) -> str:
    """Pods of a namespace."""
    return f"/api/v1/namespaces/{namespace}/pods"


def jobs(namespace: str) -> str:
    """Jobs of a namespace."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"
