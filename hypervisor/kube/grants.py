"""Grants: what kubelet was answered for device ids, before and after it is known which Pod they are for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import msgspec

from hypervisor.kube.names import INDEX_RESOURCE

GRANT_PREFIX = "grant-"  # of the directories that hypervisor.allocations keeps for us until they are bound


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One container's device ids. uid names the directory of its limit files and never comes twice.

    pod_uid and container are "" until the grant is bound; created_at is wall time in seconds. cards: the GPUs that the
    container was given, where that was decided when kubelet asked; else it was given all of them. isolation: "hard" or
    "partitioned" where the container was made for that; one that was not can't be made so later.
    """

    uid: str
    resource: str
    device_ids: tuple[str, ...]
    created_at: float
    pod_uid: str = ""
    container: str = ""
    cards: tuple[str, ...] = ()
    isolation: str = ""

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        """What kubelet knows it by."""
        return self.resource, self.device_ids


def grant_uid(resource: str, device_ids: Iterable[str], token: str) -> str:
    """The name of a grant's directory: from what kubelet asked with, and a token, for ids come again with other Pods
    and a path that is in kubelet's checkpoint must never lead to another Pod's files."""
    digest = hashlib.sha256("\0".join(sorted(device_ids)).encode()).hexdigest()[:12]
    return f"{GRANT_PREFIX}{resource.removeprefix(INDEX_RESOURCE)}-{digest}-{token}"


def is_grant_of(uid: str, resource: str, device_ids: Iterable[str]) -> bool:
    """Was this name made for these ids?"""
    head, _, token = uid.rpartition("-")
    return re.fullmatch("[0-9a-f]{8}", token) is not None and f"{head}-{token}" == grant_uid(
        resource, device_ids, token
    )
