"""Faults of a cluster: the handbook's controller, discovery and images, the article's 4.5 and 5.3."""

from __future__ import annotations

from typing import Any

import msgspec

from hypervisor.doctor.cluster_subject import CONTROLLER_LOG, ClusterSubject
from hypervisor.doctor.facts import ClusterFacts, EventFacts
from hypervisor.doctor.kubernetes import Objects
from tests.unit.doctor.case import FAIL, WARN, Case
from tests.unit.doctor.kubelet_cases import _set
from tests.unit.doctor.machines import GIB, Machine, condition, event

HYPERVISOR, OPERATOR = 1, 2  # places among the healthy machine's Pods


def cluster(machine: Machine) -> ClusterSubject:
    """A cluster of the healthy machine and a second node like it."""
    facts = None
    if machine.facts is not None:
        node = msgspec.structs.replace(
            machine.facts, liveness=machine.facts.liveness or "fresh", gpus=(), allocations=()
        )
        other = msgspec.structs.replace(
            node, name="gpu-node-02", liveness="fresh", driver_version="570.86.15", conditions=()
        )
        gpus = [
            msgspec.structs.replace(gpu, node=node.name, phase=gpu.phase or "Running") for gpu in machine.facts.gpus
        ]
        gpus += [msgspec.structs.replace(gpu, node="gpu-node-02", health="healthy") for gpu in gpus[:1]]
        facts = ClusterFacts(nodes=(node, other), gpus=tuple(gpus), events=machine.facts.events)
    root, objects = machine.root(), Objects(machine.objects)
    return ClusterSubject(root=root, facts=facts, facts_absent="" if facts else "can't reach it", objects=objects)


def _silent(machine: Machine) -> None:
    machine.facts = None
    machine.objects.clear()


def _says(line: str) -> Any:
    return lambda machine: machine.write(CONTROLLER_LOG, f"starting\n{line}\n")


def _pod(at: int, **status: Any) -> Any:
    return _set("pods", "status", value={"phase": "Running", **status}, at=at)


def _status(name: str, **more: Any) -> list[Any]:
    return [{"name": name, "ready": True, **more}]


def _security(level: str) -> Any:
    labels = {"pod-security.kubernetes.io/enforce": level}
    return lambda machine: machine.add("namespaces", {"metadata": {"name": "tensor-fusion-sys", "labels": labels}})


def _worker(restarts: int) -> Any:
    labels = {"tensor-fusion.ai/component": "worker"}
    status = {"containerStatuses": [{"name": "worker", "restartCount": restarts}]}
    return lambda machine: machine.add(
        "pods", {"metadata": {"name": "w", "namespace": "ml", "labels": labels}, "status": status}
    )


CASES = (
    Case("1: no aggregator", "cluster.aggregator", FAIL, _silent, "--server"),
    Case("1: it does not answer", "cluster.aggregator", FAIL, _silent, "can't reach it"),
    Case("9.3/50: no heartbeat for long", "cluster.nodes-alive", FAIL, lambda m: m.told(liveness="lost"), "lost"),
    Case("9.3/48: a heartbeat is missing", "cluster.nodes-alive", WARN, lambda m: m.told(liveness="late"), "late"),
    Case("handbook: a hypervisor without GPUs", "cluster.gpus", FAIL, lambda m: m.told(gpus=()), "doctor node"),
    Case("handbook: a card is missing", "cluster.gpus", FAIL, lambda m: m.gpu(1, phase="Unknown"), "Unknown"),
    Case("9.1/15: a lost GPU", "cluster.gpu-health", FAIL, lambda m: m.gpu(0, health="lost"), "lost"),
    Case("1.7: degraded", "cluster.gpu-health", WARN, lambda m: m.gpu(0, health="degraded")),
    Case("9.2/23: reboot needed", "cluster.conditions", WARN, lambda m: m.told(conditions=(condition("NvmlFailed"),))),
    Case("9.2/21: in a condition", "cluster.conditions", WARN, lambda m: m.told(conditions=(condition("NoGpus"),))),
    Case("handbook: USED_BY", "cluster.foreign-use", WARN, lambda m: m.gpu(1, used_by="nvidia-device-plugin")),
    Case("handbook: USED_BY", "cluster.foreign-use", WARN, lambda m: m.gpu(0, used_by="unknown")),
    Case("handbook: TFLOPS missing", "cluster.models-known", WARN, lambda m: m.gpu(0, tflops=None), "fullModelName"),
    Case("handbook: TFLOPS guessed", "cluster.models-known", WARN, lambda m: m.gpu(1, tflops_source="formula")),
    Case("article 4.3: two branches", "cluster.driver-versions", WARN, lambda m: m.told(driver_version="535.54.03")),
    Case("article 4.3: two branches", "cluster.driver-versions", WARN, lambda m: m.told(driver_version="470.57.02")),
    Case(
        "article 5.3: deviation", "cluster.memory-sources", WARN, lambda m: m.gpu(0, vram_bytes=40 * GIB), "nameplate"
    ),
    Case("article 5.3: deviation", "cluster.memory-sources", WARN, lambda m: m.gpu(1, vram_bytes=100 * GIB)),
    Case(
        "article 5.3: top reasons",
        "cluster.scheduling",
        WARN,
        lambda m: m.add(
            "events", event("FailedScheduling", "0/5 nodes are available: 3 Insufficient cpu, 2 GPU not fit.", count=7)
        ),
        "7 x GPU not fit",
    ),
    Case(
        "handbook: quota",
        "cluster.scheduling",
        WARN,
        lambda m: m.told(events=(EventFacts(reason="GPUQuotaOrCapacityNotEnough", message="quota of ml", count=3),)),
        "3 x quota of ml",
    ),
    Case(
        "handbook: HypervisorCrashLoopRecreate",
        "cluster.crash-loops",
        FAIL,
        lambda m: m.add("events", event("HypervisorCrashLoopRecreate", "5 restarts", kind="GPUNode")),
        "--previous",
    ),
    Case(
        "events: DriverProbeFailed",
        "cluster.crash-loops",
        FAIL,
        lambda m: m.add("events", event("DriverProbeFailed", "all retries failed", kind="Job")),
    ),
    Case(
        "article 4.5: allocatable 0 on half of the nodes",
        "cluster.zero-allocatable",
        FAIL,
        _set("nodes", "status", "allocatable", value={"nvidia.com/gpu": "0"}),
        "nothing but the device plugin",
    ),
    Case("article 4.5", "cluster.zero-allocatable", FAIL, _set("nodes", "status", "allocatable", value={})),
    Case(
        "handbook: unable to load global config file",
        "cluster.controller",
        FAIL,
        _says("panic: unable to load global config file"),
        "dynamicConfig",
    ),
    Case(
        "handbook: invalid isolation mode policy",
        "cluster.controller",
        FAIL,
        _says("invalid isolation mode policy x"),
        "dynamic or static",
    ),
    Case(
        "handbook: CRDs are older", "cluster.controller", FAIL, _says('no matches for kind "GPUPool"'), "apply the CRDs"
    ),
    Case(
        "handbook: Pod Security",
        "cluster.controller",
        FAIL,
        _says('pods "h" is forbidden: violates PodSecurity'),
        "enforce=privileged",
    ),
    Case(
        "handbook: OOMKilled",
        "cluster.controller",
        FAIL,
        _pod(OPERATOR, containerStatuses=_status("c", lastState={"terminated": {"reason": "OOMKilled"}})),
        "memory",
    ),
    Case(
        "handbook: no replica is ready",
        "cluster.controller",
        FAIL,
        _pod(OPERATOR, containerStatuses=[{"name": "c", "ready": False}]),
        "webhook-secret",
    ),
    Case(
        "handbook: restarts", "cluster.controller", WARN, _pod(OPERATOR, containerStatuses=_status("c", restartCount=9))
    ),
    Case("handbook: webhook not registered", "cluster.webhook", FAIL, lambda m: m.objects.update(webhooks=[])),
    Case(
        "handbook: another's webhook",
        "cluster.webhook",
        FAIL,
        lambda m: m.objects.update(webhooks=[{"metadata": {"name": "istio"}}]),
        "helm upgrade",
    ),
    Case(
        "handbook: node without label",
        "cluster.discovery",
        FAIL,
        _set("nodes", "metadata", "labels", value={}),
        "kubectl label node gpu-node-01",
    ),
    Case(
        "handbook: label, no GPUNode",
        "cluster.discovery",
        FAIL,
        lambda m: m.objects.update(gpunodes=[]),
        "nodeSelector",
    ),
    Case("handbook: GPUNode, no hypervisor Pod", "cluster.discovery", FAIL, _pod(HYPERVISOR), "hypervisor-pods"),
    Case(
        "handbook: hypervisor Pod, no GPU",
        "cluster.discovery",
        FAIL,
        lambda m: m.objects.update(gpus=[]),
        "the driver is missing",
    ),
    Case(
        "handbook: no node at all",
        "cluster.discovery",
        FAIL,
        lambda m: m.objects.update(nodes=[]),
        "initialGpuNodeLabelSelector",
    ),
    Case(
        "handbook: stuck in Init",
        "cluster.hypervisor-pods",
        FAIL,
        _set(
            "pods",
            "status",
            value={
                "phase": "Pending",
                "initContainerStatuses": [{"name": "init-shm", "state": {"waiting": {"reason": "ImagePullBackOff"}}}],
            },
            at=HYPERVISOR,
        ),
        "init-shm",
    ),
    Case(
        "handbook: CrashLoopBackOff",
        "cluster.hypervisor-pods",
        FAIL,
        _pod(HYPERVISOR, containerStatuses=[{"name": "h", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]),
    ),
    Case(
        "handbook: restarts",
        "cluster.hypervisor-pods",
        WARN,
        _pod(HYPERVISOR, containerStatuses=_status("h", restartCount=5)),
        "--previous",
    ),
    Case("handbook: Pod Security", "cluster.pod-security", FAIL, _security("restricted"), "enforce=privileged"),
    Case("handbook: Pod Security", "cluster.pod-security", FAIL, _security("baseline"), "hostPID"),
    Case(
        "handbook: images",
        "cluster.images",
        FAIL,
        _pod(0, containerStatuses=[{"name": "m", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]),
        "imagePullSecrets",
    ),
    Case(
        "handbook: images",
        "cluster.images",
        FAIL,
        _pod(OPERATOR, containerStatuses=[{"name": "c", "state": {"waiting": {"reason": "ErrImagePull"}}}]),
    ),
    Case(
        "article 3.2: not ready",
        "cluster.device-plugin",
        FAIL,
        _set("daemonsets", "status", value={"desiredNumberScheduled": 4, "numberReady": 2}),
        "2 of 4",
    ),
    Case(
        "article 3.2: selects no node", "cluster.device-plugin", FAIL, _set("daemonsets", "status", value={}), "0 of 0"
    ),
    Case("handbook: a worker restarts", "cluster.workers", WARN, _worker(12), "12 restarts"),
    Case(
        "handbook: a connection without worker",
        "cluster.workers",
        FAIL,
        lambda m: m.add("connections", {"metadata": {"name": "c", "namespace": "ml"}}),
    ),
)
