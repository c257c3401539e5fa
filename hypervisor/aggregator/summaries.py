"""Who holds a share of which GPU: what is kept of a node's allocations. Pure.

Only what was asked for and granted: use, conditions and processes change all the time and are the node's to tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hypervisor.v1 import cluster_pb2, types_pb2

WORKLOAD_LABEL = "tensor-fusion.ai/workload"
MAX_TEXT = 253


class Share(NamedTuple):
    """An allocation's part of one GPU: the workload that it counts for, and a serialised RunningPod."""

    gpu: str
    namespace: str
    app: str
    pod: bytes


def shares(allocation: types_pb2.Allocation) -> tuple[Share, ...]:
    """What an allocation holds, a GPU each, named in lower case."""
    spec = allocation.spec
    pod = cluster_pb2.RunningPod(allocation_id=spec.allocation_id[:MAX_TEXT], qos=spec.qos, isolation=spec.isolation)
    pod.namespace, pod.name, pod.uid = (text[:MAX_TEXT] for text in _owner(spec))
    app = spec.labels.get(WORKLOAD_LABEL, "")[:MAX_TEXT] or pod.name
    found = []
    for device in allocation.devices:
        pod.requests.CopyFrom(device.requests)
        pod.limits.CopyFrom(device.limits)
        found.append(Share(device.gpu_uuid.lower(), pod.namespace, app, pod.SerializeToString(deterministic=True)))
    return tuple(found)


def running_apps(held: Iterable[Share]) -> bytes:
    """The shares of one GPU by workload, as a serialised ClusterGpu with only its running_apps; equal shares give
    equal bytes in any order."""
    made = cluster_pb2.ClusterGpu()
    for share in sorted(held, key=lambda share: (share.namespace, share.app, share.pod)):
        last = made.running_apps[-1] if made.running_apps else None
        if last is None or (last.namespace, last.name) != (share.namespace, share.app):
            last = made.running_apps.add(namespace=share.namespace, name=share.app)
        last.count += 1
        last.pods.add().MergeFromString(share.pod)
    return made.SerializeToString(deterministic=True)


def parsed(apps: bytes) -> cluster_pb2.ClusterGpu:
    """The running apps again."""
    return cluster_pb2.ClusterGpu.FromString(apps)


def _owner(spec: types_pb2.AllocationSpec) -> tuple[str, str, str]:
    """Namespace, name and UID of whom the allocation belongs to."""
    owner = spec.owner
    kind = owner.WhichOneof("kind")
    if kind == "pod":
        return owner.pod.namespace, owner.pod.name, owner.pod.uid
    if kind == "process":
        return "", owner.process.command or f"process {owner.process.pid}", ""
    if kind == "name" and owner.name:
        return "", owner.name, ""
    return "", spec.allocation_id, ""
