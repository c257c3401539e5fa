"""What an aggregator knows of all nodes and GPUs."""

from __future__ import annotations

from collections import Counter

from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.cluster_subject import ClusterSubject
from hypervisor.doctor.facts import NodeFacts
from hypervisor.doctor.kubernetes import name_of, part, quantity
from hypervisor.doctor.memory_sources import deviations_of
from hypervisor.doctor.scheduling_events import SCHEDULING_REASONS, top_reasons

ASKED = "cluster.aggregator"


@check(
    ASKED,
    stage=Stage.CLUSTER,
    looks_at="the aggregator",
    source="DESIGN 1: the aggregator",
)
def aggregator(subject: ClusterSubject) -> Outcome:
    """Does the aggregator answer?"""
    if subject.facts is not None:
        return passed(f"{len(subject.facts.nodes)} nodes, {len(subject.facts.gpus)} GPUs")
    if subject.objects.kinds:
        return not_applicable(subject.facts_absent or "no aggregator was asked")
    return failed(
        [subject.facts_absent or "no aggregator was asked"],
        "nothing is known of the cluster",
        "start it ('hypervisor aggregator'), name it with --server HOST:PORT, or give objects with --kubernetes DIR",
    )


@check(
    "cluster.nodes-alive",
    stage=Stage.CLUSTER,
    looks_at="when each node was heard of last",
    source="nvidia-stack.md 9.3 rows 48 to 50; handbook: hypervisor Pod not ready",
    requires=(ASKED,),
)
def nodes_alive(subject: ClusterSubject) -> Outcome:
    """Does every node report?"""
    if subject.facts is None:
        return not_applicable(subject.facts_absent)
    late = [f"{node.name} is late" for node in subject.facts.nodes if node.liveness == "late"]
    lost = [f"{node.name} is lost" for node in subject.facts.nodes if node.liveness == "lost"]
    if not subject.facts.nodes:
        return failed(
            ["no node has reported"], "no daemon reports to this aggregator", "start daemons with --report-to"
        )
    if lost:
        return failed(
            [*lost, *late],
            "nothing is heard of a node: it is down, its daemon is, or the way to the aggregator",
            "run 'hypervisor doctor node' there; its objects are frozen and nothing new is placed on it meanwhile",
        )
    if late:
        return warned(
            late, "a heartbeat or two are missing", "look again in a minute, then at the node and the network"
        )
    return passed(f"{len(subject.facts.nodes)} nodes are fresh")


@check(
    "cluster.gpus",
    stage=Stage.CLUSTER,
    looks_at="GPUs of each node",
    source="handbook: kubectl get gpu is empty or lacks cards",
    requires=(ASKED,),
)
def gpus(subject: ClusterSubject) -> Outcome:
    """Has every node GPUs, all of them running?"""
    if subject.facts is None:
        return not_applicable(subject.facts_absent)
    counted = Counter(gpu.node for gpu in subject.facts.gpus)
    empty = [f"{node.name} reports no GPU{_why(node)}" for node in subject.facts.nodes if not counted[node.name]]
    away = [
        f"{gpu.uuid} on {gpu.node} is {gpu.phase}"
        for gpu in subject.facts.gpus
        if gpu.phase not in ("", "Running", "Pending")
    ]
    if empty or away:
        return failed(
            [*empty, *away],
            "a daemon runs and finds no device, or a card is no longer reported",
            "run 'hypervisor doctor node' on that node: the driver stage names the broken link",
        )
    return passed(*(f"{name}: {count}" for name, count in sorted(counted.items())[:5]))


@check(
    "cluster.gpu-health",
    stage=Stage.CLUSTER,
    looks_at="health of each GPU",
    source="nvidia-stack.md 9.1 rows 12 and 15",
    requires=(ASKED,),
)
def gpu_health(subject: ClusterSubject) -> Outcome:
    """Is every GPU healthy?"""
    if subject.facts is None:
        return not_applicable(subject.facts_absent)
    bad = [
        f"{gpu.uuid} on {gpu.node} is {gpu.health}"
        for gpu in subject.facts.gpus
        if gpu.health in ("lost", "unhealthy", "blind")
    ]
    weak = [f"{gpu.uuid} on {gpu.node} is degraded" for gpu in subject.facts.gpus if gpu.health == "degraded"]
    if bad:
        return failed([*bad, *weak], "a GPU can't be used", "run 'hypervisor doctor node' on its node")
    if weak:
        return warned(weak, "a GPU gives less than it should", "run 'hypervisor doctor node' on its node")
    return passed(f"{len(subject.facts.gpus)} GPUs")


@check(
    "cluster.conditions",
    stage=Stage.CLUSTER,
    looks_at="conditions of each node",
    source="nvidia-stack.md 9.2 row 21: the reason belongs into a condition",
    requires=(ASKED,),
)
def conditions(subject: ClusterSubject) -> Outcome:
    """Has no node anything to complain of?"""
    if subject.facts is None:
        return not_applicable(subject.facts_absent)
    told = [
        f"{node.name}: {each.code}: {each.message}"
        for node in subject.facts.nodes
        for each in node.conditions
        if each.status == "True" and each.code != "Ok"
    ]
    if told:
        return warned(told, "a daemon can't do its work in full", "run 'hypervisor doctor node' on that node")
    return passed("no condition holds")


@check(
    "cluster.foreign-use",
    stage=Stage.CLUSTER,
    looks_at="used_by of each GPU",
    source="handbook: USED_BY is not tensor-fusion",
    requires=(ASKED,),
)
def foreign_use(subject: ClusterSubject) -> Outcome:
    """Is no GPU another system's?"""
    if subject.facts is None:
        return not_applicable(subject.facts_absent)
    held = [
        f"{gpu.uuid} on {gpu.node} is used by {gpu.used_by}"
        for gpu in subject.facts.gpus
        if gpu.used_by not in ("", "hypervisor", "tensor-fusion")
    ]
    if held:
        return warned(held, "a Pod asked for the card in another way", "move it here, or leave the card to it")
    return passed("none is")


@check(
    "cluster.models-known",
    stage=Stage.CLUSTER,
    looks_at="TFLOPS of each GPU",
    source="handbook: TFLOPS of CAPACITY missing or wrong",
    requires=(ASKED,),
)
def models_known(subject: ClusterSubject) -> Outcome:
    """Is each model in the catalogue?"""
    if subject.facts is None:
        return not_applicable(subject.facts_absent)
    guessed = sorted({gpu.model for gpu in subject.facts.gpus if gpu.tflops is None or gpu.tflops_source == "formula"})
    if guessed:
        return warned(
            guessed,
            "TFLOPS of these models are worked out, or not known",
            "add rows to a site catalogue, or hardwareMetadata with the same fullModelName",
        )
    return passed("all are")


@check(
    "cluster.driver-versions",
    stage=Stage.CLUSTER,
    looks_at="driver versions of all nodes",
    source="article 4.3: an image must fit the oldest driver",
    requires=(ASKED,),
)
def driver_versions(subject: ClusterSubject) -> Outcome:
    """Is one driver version in use?"""
    if subject.facts is None:
        return not_applicable(subject.facts_absent)
    counted = Counter(node.driver_version for node in subject.facts.nodes if node.driver_version)
    evidence = [f"{version}: {count} nodes" for version, count in counted.most_common()]
    if len({version.partition(".")[0] for version in counted}) > 1:
        return warned(
            evidence,
            "nodes of several driver branches: an image that starts here may not start there",
            "bring all nodes to one branch, or build images for the oldest",
        )
    return passed(*evidence)


@check(
    "cluster.scheduling",
    stage=Stage.CLUSTER,
    looks_at="events FailedScheduling and GPUQuotaOrCapacityNotEnough of the whole cluster",
    source="article 5.3: the ten most frequent reasons of FailedScheduling",
)
def scheduling(subject: ClusterSubject) -> Outcome:
    """Were Pods placed without complaint?"""
    top = top_reasons(event for event in subject.events if event.reason in SCHEDULING_REASONS)
    if not top:
        return passed("no event tells of a failure")
    return warned(
        [f"{count} x {reason}" for reason, count in top],
        "Pods could not be placed",
        "'hypervisor doctor pod NAMESPACE/NAME --kubernetes DIR' says for one Pod what the reason means",
    )


@check(
    "cluster.crash-loops",
    stage=Stage.CLUSTER,
    looks_at="events HypervisorCrashLoopRecreate and DriverProbeFailed",
    source="handbook: hypervisor Pod not ready; events reference: GPUNode",
)
def crash_loops(subject: ClusterSubject) -> Outcome:
    """Does no daemon end again and again, and no driver probe fail?"""
    told = [
        f"{event.reason} on {event.name}: {event.message}"
        for event in subject.events
        if event.reason in ("HypervisorCrashLoopRecreate", "DriverProbeFailed")
    ]
    if told:
        return failed(
            told[-5:],
            "the daemon of a node ended too often and its Pod was made anew, or the gate of a new node failed",
            "read the log before the Pod is replaced ('kubectl logs --previous'); run 'hypervisor doctor node' there",
        )
    return passed("no such event")


@check(
    "cluster.memory-sources",
    stage=Stage.CLUSTER,
    looks_at="memory of each GPU by nameplate, driver, and GPU object",
    source="article 5.3: a deviation above 15 %",
    requires=(ASKED,),
)
def memory_sources(subject: ClusterSubject) -> Outcome:
    """Do all sources give the same memory, within 15 %?"""
    if subject.facts is None or not subject.facts.gpus:
        return not_applicable(subject.facts_absent or "no GPU is known")
    found = [f"{gpu.node}: {told}" for gpu in subject.facts.gpus for told in deviations_of(gpu, NodeFacts())]
    if found:
        return warned(found, "one of the sources is wrong", "run 'hypervisor doctor node' on that node")
    return passed("no two sources differ by more than 15 %")


@check(
    "cluster.zero-allocatable",
    stage=Stage.CLUSTER,
    looks_at="capacity and allocatable of all Nodes",
    source="article 4.5: the cluster's GPUs drop at once",
)
def zero_allocatable(subject: ClusterSubject) -> Outcome:
    """Does every Node offer the GPUs that it has?"""
    if not subject.objects.known("nodes"):
        return not_applicable("no nodes are known; give them with --kubernetes DIR")
    zero = []
    for node in subject.objects.all("nodes"):
        capacity, allocatable = part(node, "status", "capacity") or {}, part(node, "status", "allocatable") or {}
        zero += [
            f"{name_of(node)}: {name} 0 of {count}"
            for name, count in capacity.items()
            if name.startswith("nvidia.com/") and quantity(count) and not quantity(allocatable.get(name))
        ]
    if zero:
        return failed(
            zero,
            "cards are there and none is offered: all are unhealthy by the plugin, or another program wrote the status",
            "run 'hypervisor doctor node' there; let nothing but the device plugin write these figures",
        )
    return passed("all do")


def _why(node: NodeFacts) -> str:
    reasons = [f"{each.code}: {each.message}" for each in node.conditions if each.status == "True"]
    return f" ({reasons[0]})" if reasons else ""


CHECKS = (
    aggregator,
    nodes_alive,
    gpus,
    gpu_health,
    conditions,
    foreign_use,
    models_known,
    driver_versions,
    memory_sources,
    scheduling,
    crash_loops,
    zero_allocatable,
)
