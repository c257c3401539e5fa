"""Between messages, records and rows: pure."""

from __future__ import annotations

import math
import re
import sys

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from hypervisor.aggregator import derive
from hypervisor.aggregator.facts import gpu_facts, node_facts
from hypervisor.aggregator.records import GpuObject, NodeRecord, gpu_object
from hypervisor.aggregator.store import EventRow, GpuRow, NodeRow, StoreError
from hypervisor.v1 import cluster_pb2, types_pb2

MAX_MESSAGE_CHARACTERS = 4_096
MAX_FIELDS = 64
MAX_FIELD_CHARACTERS = 1_024
_REASON = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_LAST_SECOND = 253_402_300_799
_MAX_COUNTER = (1 << 63) - 1


def node_row(node: NodeRecord) -> NodeRow:
    """The facts of a node."""
    return NodeRow(
        node.uid,
        node.name,
        node.boot_id,
        node.simulated,
        node.liveness,
        node.last_seen_wall,
        node.version,
        node_facts(node.latest),
    )


def node_record(row: NodeRow, *, now: float) -> NodeRecord:
    """A node as a start finds it: late until it is heard of, or lost if it was. Raises StoreError."""
    node = NodeRecord(row.uid, row.name)
    node.boot_id, node.simulated = row.boot_id, bool(row.simulated)
    node.latest = bytes(row.detail)
    try:
        node.digest = hash(node_facts(node.latest))
        message = types_pb2.Node.FromString(node.latest)
    except DecodeError as error:
        raise StoreError(f"the store's row of node {row.name} is damaged; move the store away") from error
    node.reported_labels, node.host_memory_bytes = dict(message.labels), message.host_memory_bytes
    node.labels, node.pools = dict(node.reported_labels), derive.pools(node.reported_labels)
    lost = row.liveness == cluster_pb2.LIVENESS_LOST
    node.liveness = cluster_pb2.LIVENESS_LOST if lost else cluster_pb2.LIVENESS_LATE
    node.last_seen_wall = row.last_seen_wall
    node.received_at = node.last_seen_at = now
    node.version = row.version
    return node


def gpu_row(gpu: GpuObject) -> GpuRow:
    """The facts of a GPU object."""
    return GpuRow(
        gpu.name,
        gpu.node.uid,
        gpu.index,
        gpu.model,
        gpu.vendor,
        gpu.used_by,
        gpu.phase,
        gpu.health,
        gpu.isolation,
        gpu.allocatable,
        gpu.simulated,
        gpu.tflops,
        gpu.vram_bytes,
        gpu.available_tflops,
        gpu.available_vram_bytes,
        gpu.missing_since,
        gpu.version,
        gpu_facts(gpu.latest),
        gpu.apps,
    )


def gpu_record(row: GpuRow, node: NodeRecord, *, now: float) -> GpuObject:
    """A GPU as a start finds it, without readings until its node reports. Raises StoreError."""
    try:
        message = types_pb2.Gpu.FromString(bytes(row.detail))
    except DecodeError as error:
        raise StoreError(f"the store's row of GPU {row.name} is damaged; move the store away") from error
    detail = bytes(row.detail)
    gpu = gpu_object(message, node, latest=detail, digest=hash(gpu_facts(detail)), received_at=now, intern=sys.intern)
    gpu.liveness = node.liveness
    gpu.version = row.version
    gpu.phase = row.phase
    gpu.missing_since = row.missing_since
    gpu.allocatable = bool(row.allocatable)
    gpu.apps = bytes(row.apps)
    return gpu


def event_row(event: types_pb2.Event, *, node_uid: str, received_at: float) -> EventRow | None:
    """An event to keep, cut to what is kept of one; None when it can't be one of this node's."""
    regarding = event.regarding
    if (
        event.node_uid != node_uid
        or not 0 < event.epoch <= _MAX_COUNTER
        or not 0 < event.sequence <= _MAX_COUNTER
        or not _REASON.fullmatch(event.reason)
        or event.type not in (types_pb2.EVENT_TYPE_NORMAL, types_pb2.EVENT_TYPE_WARNING)
        or max(len(regarding.kind), len(regarding.namespace), len(regarding.name), len(regarding.uid)) > 253
        or len(event.node_name) > 253
    ):
        return None
    first_at, last_at = _seconds(event.first_at), _seconds(event.last_at)
    if first_at is None or last_at is None:
        return None
    kept = types_pb2.Event()
    for name in sorted(event.fields)[:MAX_FIELDS]:
        kept.fields[name[:MAX_FIELD_CHARACTERS]] = event.fields[name][:MAX_FIELD_CHARACTERS]
    return EventRow(
        node_uid,
        event.epoch,
        event.sequence,
        event.node_name,
        event.type,
        event.reason,
        regarding.kind,
        regarding.namespace,
        regarding.name,
        regarding.uid,
        event.message[:MAX_MESSAGE_CHARACTERS],
        kept.SerializeToString(deterministic=True),
        first_at,
        last_at,
        max(1, event.count),
        event.simulated,
        received_at,
    )


def event_message(row: EventRow) -> types_pb2.Event:
    """The event as it came."""
    event = types_pb2.Event.FromString(row.fields)
    event.node_uid, event.node_name = row.node_uid, row.node_name
    event.epoch, event.sequence = row.epoch, row.sequence
    event.type = row.type  # type: ignore[assignment]  # an int is what protobuf takes
    event.reason, event.message = row.reason, row.message
    regarding = event.regarding
    regarding.kind, regarding.namespace, regarding.name, regarding.uid = (
        row.kind,
        row.namespace,
        row.name,
        row.object_uid,
    )
    put_seconds(event.first_at, row.first_at)
    put_seconds(event.last_at, row.last_at)
    event.count, event.simulated = row.repeats, bool(row.simulated)
    return event


def put_seconds(timestamp: Timestamp, seconds: float) -> None:
    """Set a timestamp from wall time in seconds."""
    whole = math.floor(seconds)
    timestamp.seconds, timestamp.nanos = whole, min(999_999_999, int((seconds - whole) * 1e9))


def _seconds(timestamp: Timestamp) -> float | None:
    """None for what is no time after 1970 that a client could print."""
    if not (0 <= timestamp.seconds <= _LAST_SECOND and 0 <= timestamp.nanos < 1_000_000_000):
        return None
    return timestamp.seconds + timestamp.nanos / 1e9
