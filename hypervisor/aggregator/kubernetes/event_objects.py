"""Events as events.k8s.io/v1 has them. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from hypervisor.aggregator.kubernetes import names
from hypervisor.aggregator.kubernetes.client import Object
from hypervisor.aggregator.kubernetes.objects import micro_timestamp
from hypervisor.aggregator.kubernetes.restoring import seconds
from hypervisor.aggregator.store import EventRow
from hypervisor.model.event_reasons import action_of
from hypervisor.v1 import types_pb2

CONTROLLER = f"{names.GROUP}/gpu-hypervisor"
# Of events about objects that are in no namespace.
DEFAULT_NAMESPACE = "default"
_NOTE_BYTES = 1024
_NO_NAME = re.compile(r"[^a-z0-9.-]+")
_API_VERSIONS: Mapping[str, str] = {
    "GPU": names.API_VERSION,
    "GPUNode": names.API_VERSION,
    "GPUPool": names.API_VERSION,
    "TensorFusionWorkload": names.API_VERSION,
    "TensorFusionConnection": names.API_VERSION,
    "Pod": "v1",
    "Job": "batch/v1",
}


class Regarding(NamedTuple):
    """The object of the API server that an event is shown on; the UID is "" when it is not there any more."""

    kind: str
    namespace: str
    name: str
    uid: str


def regarding_of(row: EventRow, uids: Mapping[tuple[str, str], str]) -> Regarding:
    """uids: of our objects, by kind and name. What is no object of the API server is shown on its node."""
    if row.kind == "GPU":
        name = row.name.lower()
        return Regarding("GPU", "", name, uids.get(("GPU", name), ""))
    if row.kind in ("Pod", "Job"):
        return Regarding(row.kind, row.namespace, row.name, row.object_uid)
    if row.kind in _API_VERSIONS and row.kind != "GPUNode":
        return Regarding(row.kind, row.namespace, row.name, row.object_uid)
    name = row.name if row.kind in ("Node", "GPUNode") else row.node_name
    # An event about a GPUNode itself brings its UID, for a node that never reported is known to nobody else.
    return Regarding("GPUNode", "", name, row.object_uid if row.kind == "GPUNode" else uids.get(("GPUNode", name), ""))


def series_key(row: EventRow, regarding: Regarding) -> tuple[str, ...]:
    """Events of which this is the same are one series."""
    return (*regarding, row.reason, str(row.type), row.node_name, note(row))


def note(row: EventRow) -> str:
    """The message; of what is shown on its node, with what it is about."""
    shown_elsewhere = row.kind not in _API_VERSIONS and row.kind != "Node"
    text = f"{row.kind} {row.name}: {row.message}" if shown_elsewhere else row.message
    return text.encode()[:_NOTE_BYTES].decode(errors="ignore")


def origin(row: EventRow) -> str:
    """NODE UID/EPOCH.SEQUENCE: what names an event for ever."""
    return f"{row.node_uid}/{row.epoch}.{row.sequence}"


def event_name(row: EventRow, regarding: Regarding) -> str:
    """The same for the same event, so that a second write of it is refused."""
    digest = hashlib.sha256(origin(row).encode()).hexdigest()[:20]
    stem = _NO_NAME.sub("-", regarding.name.lower()).strip("-.")[:200].rstrip("-.")
    return f"{stem or regarding.kind.lower()}.{digest}"


def event_body(row: EventRow, regarding: Regarding, *, instance: str) -> Object:
    """The event, when it is told first. instance: which aggregator writes it."""
    namespace = regarding.namespace or DEFAULT_NAMESPACE
    about: Object = {"apiVersion": _API_VERSIONS[regarding.kind], "kind": regarding.kind, "name": regarding.name}
    if regarding.namespace:
        about["namespace"] = regarding.namespace
    if regarding.uid:
        about["uid"] = regarding.uid
    body: Object = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": event_name(row, regarding),
            "namespace": namespace,
            "labels": {names.MANAGED_BY: names.AGGREGATOR},
            "annotations": {
                names.EVENT_ORIGIN: origin(row),
                names.EVENT_LAST: origin(row),
                names.EVENT_FIELDS: _fields(row),
            },
        },
        "eventTime": micro_timestamp(row.first_at),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "action": action_of(row.reason),
        "reason": row.reason[:128],
        "type": "Warning" if row.type == types_pb2.EVENT_TYPE_WARNING else "Normal",
        "regarding": about,
        "note": note(row),
    }
    if row.repeats > 1:
        body["series"] = series(row.repeats, row.last_at)
    return body


def series(count: int, last_at: float) -> Object:
    """How often, and when last."""
    return {"count": count, "lastObservedTime": micro_timestamp(last_at)}


def series_change(row: EventRow, count: int) -> Object:
    """What a repeat changes."""
    return {
        "metadata": {"annotations": {names.EVENT_LAST: origin(row)}},
        "series": series(count, row.last_at),
    }


def stored_row(body: Object) -> EventRow | None:
    """An event of ours as it was; None when its origin can't be read."""
    metadata = body["metadata"]
    annotations = metadata.get("annotations") or {}
    told = parse_origin(annotations.get(names.EVENT_ORIGIN, ""))
    if told is None:
        return None
    node_uid, epoch, sequence = told
    try:
        kept = json.loads(annotations.get(names.EVENT_FIELDS, "{}"))
    except ValueError:
        kept = {}
    about, repeated = body.get("regarding") or {}, body.get("series") or {}
    first_at = seconds(body.get("eventTime") or "")
    fields = types_pb2.Event(fields={str(key): str(value) for key, value in kept.get("fields", {}).items()})
    return EventRow(
        node_uid,
        epoch,
        sequence,
        str(kept.get("node", "")),
        types_pb2.EVENT_TYPE_WARNING if body.get("type") == "Warning" else types_pb2.EVENT_TYPE_NORMAL,
        body.get("reason", ""),
        str(kept.get("kind", about.get("kind", ""))),
        about.get("namespace", ""),
        str(kept.get("name", about.get("name", ""))),
        str(kept.get("uid", about.get("uid", ""))),
        body.get("note", ""),
        fields.SerializeToString(deterministic=True),
        first_at,
        seconds(repeated.get("lastObservedTime", "")) or first_at,
        int(repeated.get("count") or 1),
        bool(kept.get("simulated")),
        first_at,
    )


def parse_origin(text: str) -> tuple[str, int, int] | None:
    """Node UID, epoch and sequence of an event's origin."""
    uid, _, place = text.rpartition("/")
    epoch, _, sequence = place.partition(".")
    return (uid, int(epoch), int(sequence)) if uid and epoch.isdecimal() and sequence.isdecimal() else None


def _fields(row: EventRow) -> str:
    """What the event's own fields have no place for."""
    kept = {
        "kind": row.kind,
        "name": row.name,
        "uid": row.object_uid,
        "node": row.node_name,
        "simulated": row.simulated,
        "fields": dict(types_pb2.Event.FromString(row.fields).fields),
    }
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))
