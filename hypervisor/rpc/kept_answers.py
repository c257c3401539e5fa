"""Our own answers to Allocate, as kubelet's checkpoint keeps them: they name the grant and its cards."""

from __future__ import annotations

from pathlib import PurePosixPath

from google.protobuf.message import DecodeError

from hypervisor.kube.checkpoint import Assignment
from hypervisor.kube.grants import Grant, is_grant_of
from hypervisor.kube.indices import bucket_of
from hypervisor.kube.names import CONTAINER_SHM
from hypervisor.v1 import deviceplugin_v1beta1_pb2 as api


def grant_of(assignment: Assignment, *, now: float) -> Grant | None:
    """The grant that an assignment of the checkpoint tells of; None where it is not ours. now: wall time in seconds."""
    if bucket_of(assignment.resource) is None or not assignment.answer:
        return None
    try:
        answer = api.ContainerAllocateResponse.FromString(assignment.answer)
    except DecodeError:
        return None
    mounted = next((each.host_path for each in answer.mounts if each.container_path == CONTAINER_SHM), "")
    uid = PurePosixPath(mounted).parent.name
    if not is_grant_of(uid, assignment.resource, assignment.device_ids):
        return None
    cards = answer.envs.get("CUDA_VISIBLE_DEVICES", "")
    return Grant(
        uid=uid,
        resource=assignment.resource,
        device_ids=assignment.device_ids,
        created_at=now,
        cards=tuple(cards.split(",")) if cards else (),
        isolation=mode if (mode := answer.envs.get("TF_ISOLATION_MODE", "")) in ("hard", "partitioned") else "",
    )
