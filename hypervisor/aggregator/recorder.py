"""Events that the aggregator itself has seen: a node that fell silent, a card that went missing.

They are named like a node's: the store's id stands for the node UID, the start of the aggregator for the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hypervisor.aggregator.store import EventRow
from hypervisor.model import EventType
from hypervisor.model.event_reasons import check_event
from hypervisor.v1 import types_pb2

# What names an event for ever: a UID, an epoch and a sequence.
Origin = tuple[str, int, int]


class Subject(Protocol):
    """The node that an event has to do with."""

    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def simulated(self) -> bool: ...


class Record(Protocol):
    """How an event is told: a warning or not, its reason, the object's kind, name and UID, and the numbers."""

    def __call__(
        self,
        node: Subject,
        reason: str,
        kind: str,
        name: str,
        uid: str,
        message: str,
        /,
        *,
        warning: bool,
        namespace: str = "",
        origin: Origin | None = None,
        **fields: str,
    ) -> None: ...


class Recorder:
    """Gives events their names and hands them on to be stored. Only the loop's tasks call it."""

    def __init__(
        self, add: Callable[[list[EventRow]], None], *, store_id: str, start: int, wall: Callable[[], float]
    ) -> None:
        self._add = add
        self._store_id = store_id
        self._start = start
        self._wall = wall
        self._sequence = 0

    def record(
        self,
        node: Subject,
        reason: str,
        kind: str,
        name: str,
        uid: str,
        message: str,
        /,
        *,
        warning: bool,
        namespace: str = "",
        origin: Origin | None = None,
        **fields: str,
    ) -> None:
        """Tell that something has happened; it is stored with the next commit. Raises EventReasonError when it is not
        as the catalogue of reasons has it.

        origin: the event's name, where it may be told again after a crash; None: the next of this life.
        """
        check_event(reason, kind, EventType.WARNING if warning else EventType.NORMAL, fields, message)
        now = self._wall()
        if origin is None:
            self._sequence += 1
            origin = (self._store_id, self._start, self._sequence)
        kept = types_pb2.Event(fields=fields)
        row = EventRow(
            node_uid=origin[0],
            epoch=origin[1],
            sequence=origin[2],
            node_name=node.name,
            type=types_pb2.EVENT_TYPE_WARNING if warning else types_pb2.EVENT_TYPE_NORMAL,
            reason=reason,
            kind=kind,
            namespace=namespace,
            name=name,
            object_uid=uid,
            message=message,
            fields=kept.SerializeToString(deterministic=True),
            first_at=now,
            last_at=now,
            repeats=1,
            simulated=node.simulated,
            received_at=now,
        )
        self._add([row])
