"""The doctor as others call it: a diagnosis of a node, of one card, or of a Pod."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from hypervisor.doctor.check import examine
from hypervisor.doctor.checks import CLUSTER_CHECKS, GPU_CHECKS, NODE_CHECKS, POD_CHECKS
from hypervisor.doctor.cluster_subject import ClusterSubject
from hypervisor.doctor.pod_subject import PodSubject
from hypervisor.doctor.subject import NodeSubject
from hypervisor.model import Diagnosis


def diagnose_node(subject: NodeSubject) -> Diagnosis:
    """The whole chain of a node."""
    name = subject.facts.name if subject.facts is not None else ""
    return examine(NODE_CHECKS, subject, name=f"node {name}".strip())


def diagnose_gpu(subject: NodeSubject, uuid: str) -> Diagnosis:
    """What can be said of one card of the node. uuid as the facts spell it."""
    facts = subject.facts
    if facts is not None:
        gpus = tuple(gpu for gpu in facts.gpus if uuid in (gpu.uuid, gpu.parent_uuid))
        facts = msgspec.structs.replace(facts, gpus=gpus)
    return examine(GPU_CHECKS, replace(subject, facts=facts, only_uuid=uuid), name=f"GPU {uuid}")


def diagnose_pod(subject: NodeSubject, namespace: str, name: str) -> Diagnosis:
    """Is the Pod placed, started, handed its devices, and limited?"""
    return examine(POD_CHECKS, PodSubject(subject, namespace, name), name=f"Pod {namespace}/{name}")


def diagnose_cluster(subject: ClusterSubject) -> Diagnosis:
    """All nodes and GPUs of an aggregator, and the product's own parts in Kubernetes."""
    return examine(CLUSTER_CHECKS, subject, name="cluster")
