"""After a start: limit files and grants brought together again, also when some of either were lost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import msgspec
import structlog

from hypervisor.allocations import Allocations
from hypervisor.kube.checkpoint import Assignment
from hypervisor.kube.grants import Grant
from hypervisor.kube.pod import Pod
from hypervisor.model import Refusal
from hypervisor.node.kubernetes_grants import GrantStore
from hypervisor.rpc.kept_answers import grant_of

log = structlog.get_logger("kubernetes")


def adopt(grants: GrantStore, allocations: Allocations) -> None:
    """The files of grants that have no allocation are there, for a container may have been told of them. Raises
    Refusal."""
    held = {allocation.uid for allocation in allocations.all}
    for grant in grants.all:
        if grant.uid not in held:
            allocations.reserve(grant.uid)


def recover(
    grants: GrantStore, allocations: Allocations, pods: Mapping[str, Pod], checkpoint: Iterable[Assignment]
) -> None:
    """Once all Pods are known: grants of living Pods that kubelet was given and that we have lost, by a power cut or
    with our directory, are made again, for their containers can't start without the files that kubelet was told of;
    files of no grant are removed."""
    known = {grant.key for grant in grants.all}
    for assignment in checkpoint:
        pod = pods.get(assignment.pod_uid)
        kept = grant_of(assignment, now=time.time())
        if pod is None or pod.ended or kept is None or kept.key in known:
            continue
        try:
            allocations.reserve(kept.uid)
            grants.save(replace_owner(kept, pod, assignment.container))
        except Refusal as refusal:
            log.warning("a lost grant can't be made again", uid=kept.uid, reason=str(refusal))
            continue
        log.warning("a grant was lost and is known again from kubelet's checkpoint", uid=kept.uid, pod=pod.label)
    uids = {grant.uid for grant in grants.all}
    for uid in allocations.reserved:
        if uid in uids:
            continue
        try:
            allocations.discard_reserved(uid)
        except Refusal as refusal:
            log.warning("limit files of no grant can't be removed", uid=uid, reason=str(refusal))


def replace_owner(grant: Grant, pod: Pod, container: str) -> Grant:
    """A grant that is a container's now."""
    return msgspec.structs.replace(grant, pod_uid=pod.uid, container=container)
