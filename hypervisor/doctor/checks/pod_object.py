"""The Pod as Kubernetes has it: whether the webhook saw it, what it asks for, and what it waits for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.checks.scheduling import asked_resources
from hypervisor.doctor.kubernetes import Object, annotations_of, labels_of, name_of, part, quantity
from hypervisor.doctor.pod_subject import PodSubject

PREFIX = "tensor-fusion.ai/"
ENABLED = f"{PREFIX}enabled"
SCHEDULER = "tensor-fusion-scheduler"
WEBHOOK = "tensor-fusion-sys-mutating-webhook"
LABEL = "pod.label"
_NO_OBJECT = "there is no Pod object to look at; give one with --kubernetes DIR"
_AMOUNT = re.compile(r"\d+(\.\d+)?([kKMGTPE]i?|m|%)?$")
_INIT: Mapping[str, Sequence[str]] = {"soft": ("init-soft-limiter",), "hard": ("inject-lib",)}


@check(
    LABEL,
    stage=Stage.ALLOCATABLE,
    looks_at="labels of the Pod and of the Deployment that made it",
    source="handbook: the webhook did not inject: no label, or not on the template",
)
def label(subject: PodSubject) -> Outcome:
    """Has the Pod the label by which the webhook sees it?"""
    pod = subject.object
    if pod is None:
        return not_applicable(_NO_OBJECT)
    if labels_of(pod).get(ENABLED) == "true":
        return passed(f"{ENABLED}=true")
    if not any(name.startswith(PREFIX) for name in (*annotations_of(pod), *labels_of(pod))) and not _owner(subject):
        if any(name.startswith("nvidia.com/") for name in asked_resources(pod)):
            return not_applicable("the Pod asks a device plugin for whole cards and is none of ours")
        return not_applicable("the Pod asks for no GPU")
    owner = _owner(subject)
    if owner is not None:
        return failed(
            [f"{name_of(owner)} has {ENABLED} in its own metadata, and its Pods have not"],
            "the label is on the Deployment itself: it must be on the template of its Pods",
            "move label and annotations to spec.template.metadata",
        )
    return failed(
        [f"{ENABLED} is {labels_of(pod).get(ENABLED, 'absent')}"],
        "the webhook is shown Pods with this label only",
        f'add {ENABLED}: "true" to spec.template.metadata.labels and make the Pod anew',
    )


@check(
    "pod.injected",
    stage=Stage.ALLOCATABLE,
    looks_at="label gpupool, schedulerName and init containers of the Pod",
    source="handbook: the webhook did not inject",
    requires=(LABEL,),
)
def injected(subject: PodSubject) -> Outcome:
    """Has the webhook changed the Pod?"""
    pod = subject.object
    if pod is None or labels_of(pod).get(ENABLED) != "true":
        return not_applicable(_NO_OBJECT if pod is None else "the Pod is not labelled")
    names = [str(each.get("name")) for each in part(pod, "spec", "initContainers") or ()]
    mode = annotations_of(pod).get(f"{PREFIX}isolation", "soft")
    wanted = _INIT.get(mode, ())
    if f"{PREFIX}gpupool" in labels_of(pod) and all(name in names for name in wanted):
        return passed(f"pool {labels_of(pod)[f'{PREFIX}gpupool']}, isolation {mode}, init containers {names}")
    evidence = [f"label gpupool: {labels_of(pod).get(f'{PREFIX}gpupool', 'absent')}", f"init containers: {names}"]
    target = annotations_of(pod).get(f"{PREFIX}inject-container")
    containers = [str(each.get("name")) for each in part(pod, "spec", "containers") or ()]
    wrong = [name for name in (target or "").split(",") if name and name not in containers]
    if wrong:
        return failed(
            [*evidence, f"inject-container names {', '.join(wrong)}; there are {', '.join(containers)}"],
            "the annotation names a container that is not there, and the webhook then passes the Pod by without a word",
            "correct tensor-fusion.ai/inject-container",
        )
    if subject.node.objects.known("webhooks") and subject.node.objects.one("webhooks", WEBHOOK) is None:
        return failed(
            [*evidence, f"there is no MutatingWebhookConfiguration {WEBHOOK}"],
            "the webhook is not registered",
            "helm upgrade --install anew",
        )
    if f"{PREFIX}enabled-replicas" in annotations_of(pod):
        return warned(
            [*evidence, f"enabled-replicas: {annotations_of(pod)[f'{PREFIX}enabled-replicas']}"],
            "so many Pods of this workload have a share already; the others are left as they are, as meant while a"
            " workload is moved step by step",
            "raise tensor-fusion.ai/enabled-replicas to cover more",
        )
    return failed(
        evidence,
        "the Pod was made before the label was set: the webhook acts when a Pod is made, and not later",
        "kubectl rollout restart deployment/NAME",
    )


@check(
    "pod.request",
    stage=Stage.ALLOCATABLE,
    looks_at="annotations of the Pod",
    source="handbook: tflops request is not set; parse tf resources",
    requires=(LABEL,),
)
def request(subject: PodSubject) -> Outcome:
    """Does the Pod ask for a share in a way that can be understood?"""
    pod = subject.object
    if pod is None or labels_of(pod).get(ENABLED) != "true":
        return not_applicable(_NO_OBJECT if pod is None else "the Pod is not labelled")
    told = {name.removeprefix(PREFIX): value for name, value in annotations_of(pod).items() if name.startswith(PREFIX)}
    amounts = {name: value for name, value in told.items() if name.endswith(("-request", "-limit"))}
    bad = [f"{name}: {value!r}" for name, value in amounts.items() if not _AMOUNT.match(str(value))]
    if bad:
        return failed(bad, "the value of an annotation can't be understood", "write 8Gi, 312 or 40, without blanks")
    if not any(name.startswith(("tflops-", "compute-percent-")) for name in amounts):
        return failed(
            sorted(amounts) or ["no request among the annotations"],
            "the Pod asks for no compute",
            "add tensor-fusion.ai/tflops-request or compute-percent-request, and tensor-fusion.ai/vram-request",
        )
    return passed(*(f"{name}: {value}" for name, value in sorted(amounts.items())))


@check(
    "pod.extended-resources",
    stage=Stage.ALLOCATABLE,
    looks_at="requests and limits of nvidia.com/* of each container",
    source="article 2.4; nvidia-stack.md 7.4",
)
def extended_resources(subject: PodSubject) -> Outcome:
    """Are requests and limits of device plugins' resources equal?"""
    pod = subject.object
    if pod is None:
        return not_applicable(_NO_OBJECT)
    unequal: list[str] = []
    for container in part(pod, "spec", "containers") or ():
        limits, requests = (part(container, "resources", side) or {} for side in ("limits", "requests"))
        unequal += [
            f"{container.get('name')}: {name} {requests.get(name)} requested, limit {limits.get(name)}"
            for name in sorted({*limits, *requests})
            if name.startswith("nvidia.com/") and str(limits.get(name)) != str(requests.get(name, limits.get(name)))
        ]
    if unequal:
        return failed(unequal, "the API server refuses such a Pod", "give limits only, or the same number in both")
    return passed("they are")


@check(
    "pod.node-selector",
    stage=Stage.SCHEDULING,
    looks_at="nodeSelector and required node affinity of the Pod, labels of all nodes",
    source="article 2.4 and 3.1 B",
)
def node_selector(subject: PodSubject) -> Outcome:
    """Is there a node with the labels that the Pod asks for?"""
    pod, nodes = subject.object, subject.node.objects.all("nodes")
    if pod is None or not nodes:
        return not_applicable(_NO_OBJECT if pod is None else "no nodes are known")
    wanted = part(pod, "spec", "nodeSelector") or {}
    terms = (
        part(
            pod,
            "spec",
            "affinity",
            "nodeAffinity",
            "requiredDuringSchedulingIgnoredDuringExecution",
            "nodeSelectorTerms",
        )
        or ()
    )
    for node in nodes:
        found = labels_of(node)
        if all(found.get(name) == value for name, value in wanted.items()) and (
            not terms or any(_matches(term, found) for term in terms)
        ):
            return passed(f"{name_of(node)} has them")
    told = [f"{name}={value}" for name, value in wanted.items()]
    told += [
        f"{each.get('key')} {each.get('operator')} {each.get('values', '')}"
        for term in terms
        for each in term.get("matchExpressions") or ()
    ]
    near = sorted(
        {
            f"{name}={value}"
            for node in nodes
            for name, value in labels_of(node).items()
            if name in wanted or any(name in text for text in told)
        }
    )
    return failed(
        [*told, *(f"nodes have {text}" for text in near[:5])],
        "no node has these labels: a letter of the name or the value is enough",
        "correct the Pod's selector, or label the node",
    )


@check(
    "pod.whole-card",
    stage=Stage.SCHEDULING,
    looks_at="isolation of the Pod, allocations on each GPU",
    source="handbook: pending with isolation shared",
)
def whole_card(subject: PodSubject) -> Outcome:
    """Is a card free, when the Pod wants a whole one?"""
    pod = subject.object
    if pod is None or annotations_of(pod).get(f"{PREFIX}isolation") != "shared":
        return not_applicable(_NO_OBJECT if pod is None else "the Pod does not want a whole card")
    facts = subject.node.facts
    if part(pod, "status", "phase") != "Pending" or facts is None or not facts.gpus:
        return passed("it is placed, or no GPUs are known")
    taken = {grant.gpu_uuid for each in facts.allocations for grant in each.grants}
    free = [gpu.uuid for gpu in facts.gpus if gpu.uuid not in taken and gpu.allocatable]
    if free:
        return passed(f"{free[0]} is free")
    return failed(
        [f"every one of {len(facts.gpus)} GPUs has allocations"],
        "isolation shared takes a whole card, without anything on it",
        "free a card, or use isolation soft",
    )


@check(
    "pod.scheduler-answers",
    stage=Stage.SCHEDULING,
    looks_at="events of a pending Pod of tensor-fusion-scheduler",
    source="handbook: pending without any event",
)
def scheduler_answers(subject: PodSubject) -> Outcome:
    """Has the scheduler looked at the Pod?"""
    pod = subject.object
    if pod is None:
        return not_applicable(_NO_OBJECT)
    if part(pod, "status", "phase") != "Pending" or part(pod, "spec", "nodeName"):
        return passed("the Pod is placed")
    if subject.events or not subject.node.objects.known("events"):
        return passed(*(f"{event.reason}: {event.message}" for event in subject.events[-1:]))
    name = str(part(pod, "spec", "schedulerName") or "default-scheduler")
    return failed(
        [f"pending, schedulerName {name}, no event"],
        "nobody schedules it: tensor-fusion-scheduler runs in the controller, of which no replica is ready"
        if name == SCHEDULER
        else f"no scheduler of the name {name} runs",
        "see 'hypervisor doctor cluster', cluster.controller" if name == SCHEDULER else "correct spec.schedulerName",
    )


@check(
    "pod.native-resource",
    stage=Stage.SCHEDULING,
    looks_at="resources that the Pod asks for, allocatable of all nodes",
    source="handbook: Pods that ask for nvidia.com/gpu; article 2.2: another resource name",
)
def native_resource(subject: PodSubject) -> Outcome:
    """Is there a node that offers what the Pod asks for?"""
    pod, nodes = subject.object, subject.node.objects.all("nodes")
    if pod is None or not nodes:
        return not_applicable(_NO_OBJECT if pod is None else "no nodes are known")
    asked = sorted(name for name in asked_resources(pod) if name.startswith("nvidia.com/"))
    offered = {
        name for node in nodes for name, count in (part(node, "status", "allocatable") or {}).items() if quantity(count)
    }
    missing = [name for name in asked if name not in offered]
    if not missing:
        return passed(*(asked or ["it asks no device plugin for anything"]))
    return failed(
        [f"no node offers {', '.join(missing)}", f"offered are {', '.join(sorted(_gpus(offered))) or 'no GPUs'}"],
        "no device plugin registers this name; TensorFusion registers no nvidia.com/gpu",
        "install NVIDIA's device plugin, ask for the name that it registers, or ask for a share with the"
        " tensor-fusion.ai labels",
    )


@check(
    "pod.worker-limits",
    stage=Stage.WORKLOAD,
    looks_at="environment of the worker's containers",
    source="handbook: hard isolation is enforced by the worker",
)
def worker_limits(subject: PodSubject) -> Outcome:
    """Has a worker of hard isolation got its limits?"""
    pod = subject.object
    if pod is None or labels_of(pod).get(f"{PREFIX}component") != "worker":
        return not_applicable(_NO_OBJECT if pod is None else "the Pod is no worker")
    if annotations_of(pod).get(f"{PREFIX}isolation", "hard") != "hard":
        return not_applicable("the worker's isolation is not hard")
    names = {
        str(each.get("name"))
        for container in part(pod, "spec", "containers") or ()
        for each in container.get("env") or ()
    }
    missing = [name for name in ("TF_CUDA_SM_PERCENT_LIMIT", "TF_GPU_MEMORY_LIMIT") if name not in names]
    if missing:
        return failed(
            [f"{', '.join(missing)} not set"],
            "the worker enforces what these variables say, and they are not there",
            "make the worker anew; look at the controller's log for why it left them out",
        )
    return passed("both are set")


@check(
    "pod.connection",
    stage=Stage.WORKLOAD,
    looks_at="TensorFusionConnections of the namespace",
    source="handbook: remote GPU workloads, a connection without worker",
)
def connection(subject: PodSubject) -> Outcome:
    """Has each remote connection a worker?"""
    mine = [
        each
        for each in subject.node.objects.all("connections")
        if part(each, "metadata", "namespace") == subject.namespace
    ]
    if not mine:
        return not_applicable("there are no remote connections in this namespace")
    waiting = [
        name_of(each)
        for each in mine
        if not part(each, "status", "workerName") or not part(each, "status", "connectionURL")
    ]
    if waiting:
        return failed(
            [f"{name} has no worker or no address" for name in waiting],
            "the worker Pod does not run yet",
            "examine it: 'kubectl get pods -l tensor-fusion.ai/component=worker', then 'hypervisor doctor pod'",
        )
    return passed(f"{len(mine)} connections have a worker")


def _owner(subject: PodSubject) -> Object | None:
    """A Deployment with the label on itself, whose name begins the Pod's."""
    for each in subject.node.objects.all("deployments"):
        name = str(part(each, "metadata", "name"))
        if (
            part(each, "metadata", "namespace") == subject.namespace
            and subject.name.startswith(f"{name}-")
            and labels_of(each).get(ENABLED) == "true"
            and (part(each, "spec", "template", "metadata", "labels") or {}).get(ENABLED) != "true"
        ):
            return each
    return None


def _matches(term: Object, found: Mapping[str, str]) -> bool:
    return all(_holds(each, found) for each in term.get("matchExpressions") or ())


def _holds(expression: Mapping[str, Any], found: Mapping[str, str]) -> bool:
    value = found.get(str(expression.get("key")))
    values = expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return True  # Gt and Lt compare numbers, which no GPU label of ours has


def _gpus(names: set[str]) -> list[str]:
    return [name for name in names if name.startswith(("nvidia.com/", PREFIX))]


CHECKS = (
    label,
    injected,
    request,
    extended_resources,
    node_selector,
    whole_card,
    scheduler_answers,
    native_resource,
    worker_limits,
    connection,
)
