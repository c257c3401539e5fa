"""Scheduling, as far as the node shows it: what keeps Pods away, and what the scheduler said."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hypervisor.doctor import pci
from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.checks.kubelet import NODE_OBJECT, kubelet_arguments, kubelet_configuration, this_node
from hypervisor.doctor.kubernetes import Object, name_of, part
from hypervisor.doctor.scheduling_events import SCHEDULING_REASONS, scheduling_events, top_reasons
from hypervisor.doctor.subject import NodeSubject

_NO_NODE = "there is no Node object to look at; give one with --kubernetes DIR"
# Taints that the cluster sets by itself and takes away again.
_CORDONED = "node.kubernetes.io/unschedulable"
_PASSING = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


@check(
    "scheduling.cordoned",
    stage=Stage.SCHEDULING,
    looks_at="spec.unschedulable of the Node object",
    source="article 2.3",
)
def cordoned(subject: NodeSubject) -> Outcome:
    """May Pods be placed on the Node?"""
    node = this_node(subject)
    if node is None:
        return not_applicable(_NO_NODE)
    tainted = any(each.get("key") == _CORDONED for each in part(node, "spec", "taints") or ())
    if part(node, "spec", "unschedulable") or tainted:
        return warned(
            [f"taint {_CORDONED}" if tainted else "spec.unschedulable is true"],
            "the node is cordoned: no new Pod is placed on it",
            "kubectl uncordon NODE, when the reason for it is gone",
        )
    return passed("the node is not cordoned")


@check(
    "scheduling.taints",
    stage=Stage.SCHEDULING,
    looks_at="taints of the Node object and tolerations of Pods that are pending",
    source="article 2.3 and the table of 3.4",
    requires=(NODE_OBJECT,),
)
def taints(subject: NodeSubject) -> Outcome:
    """Does no pending GPU Pod lack a toleration for this node's taints?"""
    node = this_node(subject)
    if node is None:
        return not_applicable(_NO_NODE)
    found = [
        taint for taint in part(node, "spec", "taints") or () if taint.get("effect") in ("NoSchedule", "NoExecute")
    ]
    found = [taint for taint in found if not str(taint.get("key", "")).startswith(_PASSING)]
    evidence = [f"{taint.get('key')}={taint.get('value', '')}:{taint.get('effect')}" for taint in found]
    if not found:
        return passed("no taint keeps Pods away")
    pending = [
        pod for pod in subject.objects.all("pods") if part(pod, "status", "phase") == "Pending" and asks_gpu(pod)
    ]
    kept_out = [
        name_of(pod)
        for pod in pending
        if not all(_tolerated(taint, part(pod, "spec", "tolerations") or ()) for taint in found)
    ]
    if not kept_out:
        return passed(*evidence)
    return failed(
        [*evidence, *(f"{name} has no toleration for it" for name in kept_out[:5])],
        "GPU Pods are pending and do not tolerate the node's taint",
        "add the toleration to the Pod's spec, or remove the taint",
    )


@check(
    "scheduling.topology-manager",
    stage=Stage.SCHEDULING,
    looks_at="the kubelet's topology manager policy, NUMA nodes of the GPUs",
    source="article 2.4 and 5.2",
)
def topology_manager(subject: NodeSubject) -> Outcome:
    """Can the kubelet align GPUs with NUMA nodes, where it is told to?"""
    if not subject.has_kubelet:
        return not_applicable("there is no kubelet on this machine")
    words = " ".join(kubelet_arguments(subject))
    match = re.search(r"--topology-manager-policy[= ](\S+)", words)
    told = kubelet_configuration(subject).get("topologyManagerPolicy", "none")
    policy = match.group(1) if match else str(told)
    nodes = {gpu.address: pci.numa_node(subject.root, gpu) for gpu in subject.gpus_on_bus}
    if policy in ("single-numa-node", "restricted") and nodes and None in nodes.values():
        return warned(
            [f"policy {policy}", *(f"{name} has no NUMA node" for name, node in nodes.items() if node is None)],
            "the firmware does not say which NUMA node a card belongs to, so that the policy can't hold or refuses"
            " Pods",
            "update the firmware or turn on its NUMA settings (ACPI SLIT/SRAT), or use the policy best-effort",
        )
    return passed(f"policy {policy}; it concerns whole cards of device plugins that tell a NUMA node")


@check(
    "scheduling.failures",
    stage=Stage.SCHEDULING,
    looks_at="events FailedScheduling and GPUQuotaOrCapacityNotEnough",
    source="article 2.4, 3.1 and 5.3: the ten most frequent reasons",
)
def failures(subject: NodeSubject) -> Outcome:
    """Has the scheduler no complaint?"""
    events = [*scheduling_events(subject.objects.all("events"))]
    events += [each for each in (subject.facts.events if subject.facts else ()) if each.reason in SCHEDULING_REASONS]
    if not events and not subject.objects.known("events"):
        return not_applicable("no events are known; give them with --kubernetes DIR")
    top = top_reasons(events)
    if not top:
        return passed("no event tells of a failure")
    return warned(
        [f"{count} x {reason}" for reason, count in top],
        "Pods could not be placed",
        "Insufficient nvidia.com/gpu: see registration and allocatable; node selector or affinity: compare the Pod's"
        " with"
        " the node's labels; taints: see scheduling.taints; not enough TFLOPS or VRAM: see 'hypervisor get gpus'",
    )


def asks_gpu(pod: Object) -> bool:
    """Does a Pod ask for a GPU, of ours or of a device plugin?"""
    if (part(pod, "metadata", "labels") or {}).get("tensor-fusion.ai/enabled") == "true":
        return True
    return any(name.startswith(("nvidia.com/", "tensor-fusion.ai/")) for name in asked_resources(pod))


def asked_resources(pod: Object) -> set[str]:
    """Names of all resources in limits and requests of a Pod's containers."""
    containers = [*(part(pod, "spec", "containers") or ()), *(part(pod, "spec", "initContainers") or ())]
    return {
        str(name)
        for container in containers
        for side in ("limits", "requests")
        for name in part(container, "resources", side) or {}
    }


def _tolerated(taint: Object, tolerations: Iterable[Object]) -> bool:
    for each in tolerations:
        if each.get("effect") not in (None, "", taint.get("effect")):
            continue
        if not each.get("key") and each.get("operator") == "Exists":
            return True
        if each.get("key") == taint.get("key") and (
            each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", "")
        ):
            return True
    return False


CHECKS = (cordoned, taints, topology_manager, failures)
