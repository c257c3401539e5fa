"""The product's own objects in Kubernetes, as the handbook looks at them: their phases, and what GPUs say."""

from __future__ import annotations

from collections.abc import Iterator

from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.cluster_subject import ClusterSubject
from hypervisor.doctor.kubernetes import Object, labels_of, name_of, part, quantity

PHASES = "cluster.phases"
# From front to back, as one makes the next.
_KINDS = {
    "clusters": "TensorFusionCluster",
    "gpupools": "GPUPool",
    "gpunodes": "GPUNode",
    "gpus": "GPU",
}
_WELL, _PASSING = ("", "Running"), ("Provisioning", "Updating", "Migrating", "Destroying")
_OURS = ("", "tensor-fusion")
_NONE = "no objects of the product are known; give them with --kubernetes DIR"


@check(
    PHASES,
    stage=Stage.CLUSTER,
    looks_at="phases of TensorFusionClusters, GPUPools, GPUNodes and GPUs",
    source="handbook: what a sound installation looks like; a GPUNode that stays Pending",
)
def phases(subject: ClusterSubject) -> Outcome:
    """Are cluster, pools, nodes and GPUs all running?"""
    if not any(subject.objects.known(kind) for kind in _KINDS):
        return not_applicable(_NONE)
    broken: list[str] = []
    passing: list[str] = []
    for kind, shown in _KINDS.items():
        for each in subject.objects.all(kind):
            phase = str(part(each, "status", "phase") or "")
            if phase not in _WELL:
                (passing if phase in _PASSING else broken).append(f"{shown} {name_of(each)} is {phase}{_why(each)}")
    if broken:
        return failed(
            [*broken, *passing][:10],
            f"{broken[0].partition(' is ')[0]} is not running, and what comes after it waits",
            "mend the first that is named: 'kubectl describe' tells its conditions; for a GPUNode see"
            " cluster.hypervisor-pods, for a GPU 'hypervisor doctor node' there",
        )
    if passing:
        return warned(passing[:10], "a part of the product is being changed", "look again when that is over")
    return passed("all are running")


@check(
    "cluster.gpu-objects",
    stage=Stage.CLUSTER,
    looks_at="GPUs of each GPUNode and each GPUPool beside their totals and label gpu.count; capacity of each GPU",
    source="handbook: kubectl get gpu is empty or lacks cards, or the pool's total is zero; CAPACITY without TFLOPS",
)
def gpu_objects(subject: ClusterSubject) -> Outcome:
    """Has each card its object, with a capacity?"""
    if not subject.objects.known("gpus"):
        return not_applicable(_NONE)
    lacking = [*_lacking(subject), *_empty_pools(subject)]
    if lacking:
        return failed(
            lacking[:10],
            "cards of a node have no GPU object: the hypervisor there does not report them",
            "run 'hypervisor doctor node' there: driver.count and driver.health name the card",
        )
    bare = [f"GPU {name_of(gpu)} ({_model(gpu)}): {told}" for gpu in subject.objects.all("gpus") for told in _bare(gpu)]
    if bare:
        return warned(
            bare[:10],
            "the model is in no ProviderConfig, or the capacity was never reported",
            "add the model to providerConfigs.nvidia.hardwareMetadata with the very fullModelName of MODEL",
        )
    return passed(f"{len(subject.objects.all('gpus'))} GPUs have an object and a capacity")


@check(
    "cluster.gpu-owners",
    stage=Stage.CLUSTER,
    looks_at="usedBy of each GPU object",
    source="handbook: USED_BY is not tensor-fusion",
)
def gpu_owners(subject: ClusterSubject) -> Outcome:
    """Is no GPU object another system's?"""
    if not subject.objects.known("gpus"):
        return not_applicable(_NONE)
    held = [
        f"GPU {name_of(gpu)} is used by {owner}"
        for gpu in subject.objects.all("gpus")
        if (owner := str(part(gpu, "status", "usedBy") or "")) not in _OURS
    ]
    if held:
        return warned(
            held[:10],
            "a Pod asked for the card in another way (nvidia.com/gpu for instance); such a card is never granted",
            "move that workload here, or leave the card to it",
        )
    return passed("none is")


def nodes_of(gpu: Object) -> set[str]:
    """Names among which is that of the node of a GPU object."""
    selector = part(gpu, "status", "nodeSelector") or {}
    return {*map(str, selector.values()), *map(str, labels_of(gpu).values())}


def _lacking(subject: ClusterSubject) -> Iterator[str]:
    for node in subject.objects.all("gpunodes"):
        name = str(part(node, "metadata", "name"))
        labels = labels_of(subject.objects.one("nodes", name) or {})
        total = quantity(part(node, "status", "totalGPUs")) or quantity(labels.get("nvidia.com/gpu.count"))
        have = sum(name in nodes_of(gpu) for gpu in subject.objects.all("gpus"))
        if have < total:
            yield f"GPUNode {name} has {total} GPUs, and {have} have an object"


def _empty_pools(subject: ClusterSubject) -> Iterator[str]:
    for pool in subject.objects.all("gpupools"):
        total = part(pool, "status", "totalGPUs")
        if total is not None and quantity(total) == 0 and subject.objects.all("gpunodes"):
            yield f"GPUPool {name_of(pool)} has no GPU"


def _bare(gpu: Object) -> Iterator[str]:
    capacity = part(gpu, "status", "capacity") or {}
    for name in ("tflops", "vram"):
        if str(capacity.get(name, "0")) in ("", "0"):
            yield f"no {name} in its capacity"


def _model(gpu: Object) -> str:
    return str(part(gpu, "status", "gpuModel") or "model unknown")


def _why(found: Object) -> str:
    told = part(found, "status", "message")
    return f": {told}" if isinstance(told, str) and told else ""


CHECKS = (phases, gpu_objects, gpu_owners)
