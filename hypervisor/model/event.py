"""Something that has happened, told once, after the fact, with the numbers that caused it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class EventType(Enum):
    """Severity, as Kubernetes has it."""

    NORMAL = "Normal"
    WARNING = "Warning"


class ObjectKind(Enum):
    """Kinds of objects that events are about."""

    NODE = "Node"
    GPU = "GPU"
    ALLOCATION = "Allocation"
    WORKER = "Worker"
    POD = "Pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReference:
    """The object that an event is about; uid tells it from a successor of the same name."""

    kind: ObjectKind
    name: str
    uid: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of one node; (node_uid, epoch, sequence) names it for ever. Times are wall time in seconds."""

    node_uid: str
    node_name: str
    epoch: int
    sequence: int
    type: EventType
    reason: str
    regarding: ObjectReference
    message: str
    fields: tuple[tuple[str, str], ...]
    first_at: float
    last_at: float
    count: int = 1
    simulated: bool = False
