"""The product in Kubernetes: controller, webhook, and the chain Node, GPUNode, hypervisor Pod, GPU of each node."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.checks.product_objects import nodes_of
from hypervisor.doctor.cluster_subject import ClusterSubject, names, ready, restarts
from hypervisor.doctor.kubernetes import Object, labels_of, name_of, part, quantity
from hypervisor.doctor.told import states

CONTROLLER = "cluster.controller"
_NO_PODS = "no Pods are known; give them with --kubernetes DIR"
_SELECTOR = ("nvidia.com/gpu.present", "true")
_MANY_RESTARTS = 5
# Words of the controller's log -> cause, remedy.
_SAYINGS: Mapping[str, tuple[str, str]] = {
    r"unable to load global config file": (
        "dynamicConfig of the Helm values can't be understood",
        "correct the values and run 'helm upgrade'",
    ),
    r"invalid isolation mode policy": (
        "controller.isolationModePolicy has a value that there is not",
        "set it to dynamic or static",
    ),
    r"no matches for kind|unknown field|could not find the requested resource": (
        "the CRDs are older than the controller: Helm does not upgrade them",
        "apply the CRDs of the chart by hand, then restart the controller",
    ),
    r"violates PodSecurity": (
        "Pod Security refuses the hypervisor Pod, which needs privileged, hostPID and hostNetwork",
        "label the namespace: pod-security.kubernetes.io/enforce=privileged",
    ),
}


@check(
    CONTROLLER,
    stage=Stage.CLUSTER,
    looks_at="Pods of the component operator, the controller's log",
    source="handbook: the controller restarts again and again",
)
def controller(subject: ClusterSubject) -> Outcome:
    """Is a replica of the controller ready, and does it stay so?"""
    for pattern, (cause, remedy) in _SAYINGS.items():
        lines = [line for line in subject.controller_log if re.search(pattern, line, re.IGNORECASE)]
        if lines:
            return failed(lines[-2:], cause, remedy)
    if not subject.objects.known("pods"):
        return not_applicable(_NO_PODS)
    pods = subject.component("operator")
    if not pods:
        return not_applicable("no Pod of the component operator: the product is not installed in this cluster")
    killed = [name_of(pod) for pod in pods if _out_of_memory(pod)]
    if killed:
        return failed(
            [f"{name} was OOMKilled" for name in killed],
            "its memory limit is too small for this cluster",
            "raise controller.resources.limits.memory",
        )
    if not any(ready(pod) for pod in pods):
        return failed(
            [told for pod in pods for told in states(pod)] or [f"{name} is not ready" for name in names(pods)],
            "no replica is ready: labelled Pods can't be made, and none is scheduled",
            "read its log ('kubectl logs --previous') and its events; a Secret tensor-fusion-webhook-secret that is"
            " missing is made by 'helm upgrade --install'",
        )
    often = [f"{name_of(pod)}: {restarts(pod)} restarts" for pod in pods if restarts(pod) >= _MANY_RESTARTS]
    if often:
        return warned(often, "the controller ends again and again", "read its log from before: kubectl logs --previous")
    return passed(*names(pods))


@check(
    "cluster.webhook",
    stage=Stage.CLUSTER,
    looks_at="MutatingWebhookConfigurations",
    source="handbook: the webhook is not registered",
    requires=(CONTROLLER,),
)
def webhook(subject: ClusterSubject) -> Outcome:
    """Is the webhook registered?"""
    if not subject.objects.known("webhooks") or not subject.component("operator"):
        return not_applicable("no webhooks are known, or the product is not installed in this cluster")
    found = [each for each in names(subject.objects.all("webhooks")) if "tensor-fusion" in each]
    if found:
        return passed(*found)
    return failed(
        ["no MutatingWebhookConfiguration of tensor-fusion"],
        "the API server shows no Pod to the webhook: nothing is injected",
        "helm upgrade --install anew",
    )


@check(
    "cluster.discovery",
    stage=Stage.CLUSTER,
    looks_at="labels of Nodes, GPUNodes, hypervisor Pods, GPUs",
    source="handbook: no GPU is found; tensorfusion.md 9.5: name the first broken link",
    requires=(CONTROLLER,),
)
def discovery(subject: ClusterSubject) -> Outcome:
    """Leads the chain of every GPU node from its label to its GPUs?"""
    if not subject.objects.known("nodes") or not subject.component("operator"):
        return not_applicable("no nodes are known, or the product is not installed in this cluster")
    broken: dict[str, tuple[str, str]] = {}
    whole = []
    for node in subject.objects.all("nodes"):
        link = _broken_link(subject, node)
        if link is None:
            whole.append(name_of(node))
        elif link != ("", ""):
            broken[name_of(node)] = link
    if broken:
        first = next(iter(broken.values()))
        return failed([f"{name}: {cause}" for name, (cause, _) in broken.items()], first[0], first[1])
    if not whole:
        return failed(
            ["no Node has GPUs or the label nvidia.com/gpu.present=true"],
            "no node is chosen: the controller looks at labelled nodes only",
            "kubectl label node NODE nvidia.com/gpu.present=true, or change initialGpuNodeLabelSelector",
        )
    return passed(*whole[:5])


@check(
    "cluster.hypervisor-pods",
    stage=Stage.CLUSTER,
    looks_at="Pods of the component hypervisor",
    source="handbook: hypervisor Pod not ready",
    requires=(CONTROLLER,),
)
def hypervisor_pods(subject: ClusterSubject) -> Outcome:
    """Is every hypervisor Pod ready?"""
    pods = subject.component("hypervisor")
    if not pods:
        return not_applicable("no Pod of the component hypervisor is known")
    waiting = [pod for pod in pods if not ready(pod)]
    if waiting:
        told = [f"{name_of(pod)}: {state}" for pod in waiting for state in states(pod)]
        return failed(
            told or [f"{name} is not ready" for name in names(waiting)],
            "a daemon does not run: an image can't be pulled, an init container waits, or it ends again and again",
            "'hypervisor doctor pod' with the Pod's name on its node knows the messages",
        )
    often = [f"{name_of(pod)}: {restarts(pod)} restarts" for pod in pods if restarts(pod) >= _MANY_RESTARTS]
    if often:
        return warned(often, "a daemon ends again and again", "read its log from before: kubectl logs --previous")
    return passed(*names(pods)[:5])


@check(
    "cluster.pod-security",
    stage=Stage.CLUSTER,
    looks_at="labels of the namespace, spec of the hypervisor Pods",
    source="handbook: Pod Security refuses the hypervisor Pod",
)
def pod_security(subject: ClusterSubject) -> Outcome:
    """May privileged Pods run in the product's namespace?"""
    spaces = {str(part(pod, "metadata", "namespace")) for pod in subject.component("operator")}
    strict = []
    for namespace in subject.objects.all("namespaces"):
        level = labels_of(namespace).get("pod-security.kubernetes.io/enforce", "privileged")
        if part(namespace, "metadata", "name") in spaces and level != "privileged":
            strict.append(f"{name_of(namespace)} enforces {level}")
    if not spaces or not subject.objects.known("namespaces"):
        return not_applicable("no namespaces are known, or the product is not installed in this cluster")
    if strict:
        return failed(
            strict,
            "the hypervisor Pod needs privileged, hostPID and hostNetwork, which this level refuses",
            "kubectl label namespace NS pod-security.kubernetes.io/enforce=privileged --overwrite",
        )
    return passed(*sorted(spaces))


@check(
    "cluster.images",
    stage=Stage.CLUSTER,
    looks_at="states of all containers",
    source="handbook: images can't be pulled",
)
def images(subject: ClusterSubject) -> Outcome:
    """Can every image be pulled?"""
    if not subject.objects.known("pods"):
        return not_applicable(_NO_PODS)
    waiting = [
        f"{name_of(pod)}: {state}"
        for pod in subject.objects.all("pods")
        for state in states(pod)
        if re.search(r": (ImagePullBackOff|ErrImagePull)", state)
    ]
    if waiting:
        return failed(
            waiting[:10],
            "a node can't pull an image: no way to the registry, or no credentials",
            "set up a mirror on the node, copy the images to your own registry (controller.image.repository,"
            " cluster.hypervisorImage, providerConfigs.nvidia.images.*), or set imagePullSecrets",
        )
    return passed("no container waits for an image")


@check(
    "cluster.device-plugin",
    stage=Stage.CLUSTER,
    looks_at="DaemonSets of NVIDIA's device plugin",
    source="article 2.2 and 3.2",
)
def device_plugin(subject: ClusterSubject) -> Outcome:
    """Is NVIDIA's device plugin ready on every node that it is meant for?"""
    found = [each for each in subject.objects.all("daemonsets") if "nvidia-device-plugin" in name_of(each)]
    if not found:
        return not_applicable("no DaemonSet of NVIDIA's device plugin is known; shares of ours need none")
    short = []
    for each in found:
        wanted = quantity(part(each, "status", "desiredNumberScheduled"))
        have = quantity(part(each, "status", "numberReady"))
        if have < wanted or not wanted:
            short.append(f"{name_of(each)}: {have} of {wanted} ready")
    if short:
        return failed(
            short,
            "the plugin does not run on all GPU nodes: it fails at NVML, is not admitted, or selects no node",
            "read its log for 'Registered device plugin'; run 'hypervisor doctor node' on a node where it is not ready",
        )
    return passed(*names(found))


@check(
    "cluster.workers",
    stage=Stage.CLUSTER,
    looks_at="Pods of the component worker, TensorFusionConnections",
    source="handbook: remote GPU workloads",
)
def workers(subject: ClusterSubject) -> Outcome:
    """Do workers of remote GPUs stay up, and has each connection one?"""
    often = [
        f"{name_of(pod)}: {restarts(pod)} restarts"
        for pod in subject.component("worker")
        if restarts(pod) >= _MANY_RESTARTS
    ]
    waiting = [
        f"{name_of(each)} has no worker"
        for each in subject.objects.all("connections")
        if not part(each, "status", "workerName")
    ]
    if waiting:
        return failed(waiting, "the worker Pod does not run yet", "examine it with 'hypervisor doctor pod'")
    if often:
        return warned(often, "a worker ends again and again", "read its log; raise its level for more")
    return passed("all is well, or there are none")


def _broken_link(subject: ClusterSubject, node: Object) -> tuple[str, str] | None:
    """Cause and remedy of the first broken link; None when the chain is whole, ("", "") for a node without GPUs."""
    name, objects = str(part(node, "metadata", "name")), subject.objects
    key, value = _SELECTOR
    if labels_of(node).get(key) != value:
        capacity = part(node, "status", "capacity") or {}
        if not any(resource.startswith("nvidia.com/") for resource in capacity):
            return "", ""
        return "it has GPUs and not the label nvidia.com/gpu.present=true", f"kubectl label node {name} {key}={value}"
    if objects.known("gpunodes") and objects.one("gpunodes", name) is None:
        return (
            "it is labelled and has no GPUNode",
            "compare the pool's spec.nodeManagerConfig.nodeSelector with the node's labels",
        )
    pods = [pod for pod in subject.component("hypervisor") if part(pod, "spec", "nodeName") == name]
    if not any(ready(pod) for pod in pods):
        return (
            "it has a GPUNode and no hypervisor Pod that is ready",
            "see cluster.hypervisor-pods",
        )
    if objects.known("gpus") and not any(name in nodes_of(gpu) for gpu in objects.all("gpus")):
        return (
            "its hypervisor Pod runs and reports no GPU",
            "run 'hypervisor doctor node' there: the driver is missing, or the Pod can't see it",
        )
    return None


def _out_of_memory(pod: Object) -> bool:
    return any(
        part(each, state, "terminated", "reason") == "OOMKilled"
        for each in part(pod, "status", "containerStatuses") or ()
        for state in ("state", "lastState")
    )


CHECKS = (
    controller,
    webhook,
    discovery,
    hypervisor_pods,
    pod_security,
    images,
    device_plugin,
    workers,
)
