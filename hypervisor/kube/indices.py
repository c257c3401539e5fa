"""Index resources: what the device plugins announce, and which index a request means.

A Pod asks for q of tensor-fusion.ai/index_B; that is the index q + 8 B. q from 1 to 8 and B from 0 to f name the 128
live indices of a node. The product's own formula can ask for index_10, so that is announced too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypervisor.kube.names import INDEX_RESOURCE

BUCKETS = 17
INDICES_PER_BUCKET = 8
MOST_INDICES = 128
# Without a scheduler that spreads indices, 128 Pods may all ask for the same resource, and for two of it. Kubelet
# frees what an ended Pod had only when it needs it, so there is room for more; the list stays below 4 KiB.
DEVICES_PER_RESOURCE = 256


class BadIndexError(ValueError):
    """A request for index resources that means no index; the text quotes it."""


def resource_names() -> tuple[str, ...]:
    """All resources, tensor-fusion.ai/index_0 to index_10 (hexadecimal)."""
    return tuple(f"{INDEX_RESOURCE}{bucket:x}" for bucket in range(BUCKETS))


def bucket_of(resource: str) -> int | None:
    """The bucket of an index resource; None for any other resource."""
    text = resource.removeprefix(INDEX_RESOURCE)
    if text == resource:
        return None
    try:
        bucket = int(text, 16)
    except ValueError:
        return None
    return bucket if f"{bucket:x}" == text and bucket < BUCKETS else None


def device_ids(bucket: int) -> tuple[str, ...]:
    """The ids that one resource announces; they stand for nothing but room for a Pod."""
    return tuple(f"{bucket:x}-{number}" for number in range(DEVICES_PER_RESOURCE))


def index_of(resource: str, quantity: int) -> int:
    """The index that a quantity of a resource means. Raises BadIndexError."""
    bucket = bucket_of(resource)
    if bucket is None:
        raise BadIndexError(f"{resource} is not an index resource of this node")
    if not 1 <= quantity <= INDICES_PER_BUCKET:
        raise BadIndexError(f"{quantity} of {resource} means no index; ask for 1 to {INDICES_PER_BUCKET}")
    return quantity + INDICES_PER_BUCKET * bucket


def requested_index(resources: Mapping[str, int]) -> tuple[str, int] | None:
    """The index resource of a container and its quantity; None where it asks for none. Raises BadIndexError for two."""
    found = [(name, count) for name, count in resources.items() if name.startswith(INDEX_RESOURCE) and count > 0]
    if len(found) > 1:
        raise BadIndexError(
            f"a container asks for {len(found)} index resources ({_joined(found)}); ask for one of them"
        )
    return found[0] if found else None


def _joined(found: Iterable[tuple[str, int]]) -> str:
    return ", ".join(sorted(name for name, _ in found))
