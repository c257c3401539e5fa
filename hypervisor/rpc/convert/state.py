"""Whole states and changes as messages, cut so that each stays below the size of a message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypervisor.model import NodeSnapshot
from hypervisor.model.delta import Delta
from hypervisor.rpc.convert.moment import Moment
from hypervisor.rpc.convert.to_proto import allocation_to_proto, gpu_to_proto, node_to_proto, worker_to_proto
from hypervisor.v1 import node_pb2, types_pb2

# Well below the 4 MiB of a message; one object alone has at most some 100 KiB.
PART_BYTES = 2 * 2**20


def snapshot_to_proto(snapshot: NodeSnapshot, now: Moment) -> node_pb2.NodeSnapshot:
    """All of a state in one message."""
    parts = _Objects.of_snapshot(snapshot, now)
    return node_pb2.NodeSnapshot(node=parts.node, gpus=parts.gpus, allocations=parts.allocations, workers=parts.workers)


def delta_to_proto(delta: Delta, snapshot: NodeSnapshot, now: Moment) -> node_pb2.NodeDelta:
    """A change in one message; snapshot is the state that it leads to."""
    message = _tombstones(delta)
    parts = _Objects.of_delta(delta, snapshot, now)
    if parts.node is not None:
        message.node.CopyFrom(parts.node)
    message.gpus.extend(parts.gpus)
    message.allocations.extend(parts.allocations)
    message.workers.extend(parts.workers)
    return message


def snapshot_parts(snapshot: NodeSnapshot, now: Moment) -> tuple[node_pb2.NodeSnapshot, list[node_pb2.NodeDelta]]:
    """A state as a snapshot, and the deltas that complete it where it is too large for one message."""
    parts = _Objects.of_snapshot(snapshot, now)
    first, *rest = _cut(parts, node_pb2.NodeDelta())
    message = node_pb2.NodeSnapshot(
        node=first.node, gpus=first.gpus, allocations=first.allocations, workers=first.workers
    )
    return message, rest


def delta_parts(delta: Delta, snapshot: NodeSnapshot, now: Moment) -> list[node_pb2.NodeDelta]:
    """A change as one delta, or as several where it is too large for one message; the order doesn't matter."""
    return list(_cut(_Objects.of_delta(delta, snapshot, now), _tombstones(delta)))


@dataclass(frozen=True, slots=True)
class _Objects:
    node: types_pb2.Node | None
    gpus: Sequence[types_pb2.Gpu]
    allocations: Sequence[types_pb2.Allocation]
    workers: Sequence[types_pb2.Worker]

    @classmethod
    def of_snapshot(cls, snapshot: NodeSnapshot, now: Moment) -> _Objects:
        usages = {usage.allocation_id: usage for usage in snapshot.usages}
        return cls(
            node_to_proto(snapshot, now),
            [gpu_to_proto(gpu, now) for gpu in snapshot.gpus],
            [allocation_to_proto(each, usages.get(each.spec.allocation_id), now) for each in snapshot.allocations],
            [worker_to_proto(worker) for worker in snapshot.workers],
        )

    @classmethod
    def of_delta(cls, delta: Delta, snapshot: NodeSnapshot, now: Moment) -> _Objects:
        usages = {usage.allocation_id: usage for usage in snapshot.usages}
        return cls(
            node_to_proto(snapshot, now) if delta.node else None,
            [gpu_to_proto(gpu, now) for gpu in delta.gpus],
            [allocation_to_proto(each, usages.get(each.spec.allocation_id), now) for each in delta.allocations],
            [worker_to_proto(worker) for worker in delta.workers],
        )


def _tombstones(delta: Delta) -> node_pb2.NodeDelta:
    return node_pb2.NodeDelta(
        removed_gpu_uuids=delta.removed_gpu_uuids,
        removed_allocation_ids=delta.removed_allocation_ids,
        removed_worker_ids=delta.removed_worker_ids,
    )


def _cut(objects: _Objects, first: node_pb2.NodeDelta) -> Iterator[node_pb2.NodeDelta]:
    """The objects in deltas of at most about PART_BYTES; at least one, beginning with `first`."""
    message = first
    if objects.node is not None:
        message.node.CopyFrom(objects.node)
    size = message.ByteSize()
    fields: tuple[tuple[str, Sequence[Any]], ...] = (
        ("gpus", objects.gpus),
        ("allocations", objects.allocations),
        ("workers", objects.workers),
    )
    for field, items in fields:
        for item in items:
            item_size = item.ByteSize()
            if size + item_size > PART_BYTES:
                yield message
                message, size = node_pb2.NodeDelta(), 0
            getattr(message, field).append(item)
            size += item_size
    yield message
