"""Who an event about a fault is about: the card, or whose program made it happen."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hypervisor.gpu.health.occurrence import Occurrence, OccurrenceKind
from hypervisor.model import EventType, ObjectKind
from hypervisor.node.occurrences import Occurrences
from tests import node_values as v


def told(occurrence: Occurrence, allocations=(), usages=()):
    events = []
    gpus = [SimpleNamespace(identity=v.device(index).identity) for index in (0, 1)]
    snapshot = SimpleNamespace(
        gpus=gpus, allocations=allocations, usages=usages, identity=SimpleNamespace(name="node", uid="node-uid")
    )
    teller = Occurrences(
        SimpleNamespace(), SimpleNamespace(snapshot=snapshot), lambda *event, **fields: events.append((*event, fields))
    )
    teller.tell(occurrence)
    (event,) = events
    return event, teller


XID = Occurrence(
    kind=OccurrenceKind.XID, gpu_uuid=v.uuid(0), message="Xid 31", blames_owner=True, fields=(("xid", "31"),)
)


def test_the_process_that_the_driver_names_decides() -> None:
    allocations, usages = (v.allocation("a"), v.allocation("b")), (v.usage("a", pids=(7,)), v.usage("b", pids=(8,)))
    (kind, reason, regarding, message, fields), teller = told(replace(XID, pid=8), allocations, usages)
    assert (kind, reason, regarding.kind, regarding.name) == (EventType.WARNING, "XidError", ObjectKind.ALLOCATION, "b")
    assert "the card is well" in message
    assert fields == {"xid": "31", "gpu": v.uuid(0)}
    assert (teller.owner_of(7), teller.owner_of(99)) == ("a", "")


@pytest.mark.parametrize(
    ("occurrence", "allocations"),
    [
        (XID, ()),
        (XID, (v.allocation("a"), v.allocation("b"))),  # who of the two can't be said
        (XID, (v.allocation("a", index=1),)),
        (replace(XID, pid=99), (v.allocation("a"),)),  # a stranger's
        (replace(XID, blames_owner=False), (v.allocation("a"),)),
    ],
)
def test_where_nobody_can_be_blamed_it_is_about_the_card(occurrence: Occurrence, allocations) -> None:
    (_, _, regarding, message, _), _ = told(occurrence, allocations)
    assert (regarding.kind, regarding.uid) == (ObjectKind.GPU, v.uuid(0))
    assert message == "Xid 31"


def test_what_is_about_no_card_is_about_the_node() -> None:
    (_, _, regarding, _, fields), _ = told(replace(XID, gpu_uuid="", blames_owner=False))
    assert (regarding.kind, regarding.uid) == (ObjectKind.NODE, "node-uid")
    assert "gpu" not in fields
