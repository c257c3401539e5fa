"""A node tells of itself, of its GPUs and of what it runs; what it says of others is shown on itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypervisor.aggregator import rows, subjects
from hypervisor.aggregator.store import EventRow
from tests.fleet import messages
from tests.unit.aggregator.parts import Parts


def event(kind: str, name: str, namespace: str = "") -> EventRow:
    row = rows.event_row(messages.event("a", 1, 1), node_uid="uid-a", received_at=1.0)
    assert row is not None
    return row._replace(kind=kind, name=name, namespace=namespace, object_uid="u", message="something")


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    made = Parts(tmp_path)
    for name in ("a", "b"):
        node = made.registry.add_node(f"uid-{name}", name)
        made.registry.apply_snapshot(node, (1, 1), messages.state(name))
    return made


@pytest.mark.parametrize(
    "told",
    [
        event("Node", "a"),
        event("GPU", messages.uuid("a", 0)),
        event("GPU", messages.uuid("a", 0).upper()),
        event("GPU", "GPU-that-is-gone"),
        event("Allocation", "x"),
        event("Worker", "w"),
        event("Pod", "p", "ns"),
    ],
)
def test_of_its_own_it_tells(parts: Parts, told: EventRow) -> None:
    assert subjects.own(told, parts.registry.nodes["uid-a"], parts.registry) == told


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (event("Node", "b"), "Node/b"),
        (event("GPU", messages.uuid("b", 0)), f"GPU/{messages.uuid('b', 0)}"),
        (event("GPUPool", "p"), "GPUPool/p"),
        (event("Job", "j", "kube-system"), "Job/kube-system/j"),
        (event("", ""), "no object"),
    ],
)
def test_what_it_says_of_others_is_shown_on_itself(parts: Parts, told: EventRow, said: str) -> None:
    found = subjects.own(told, parts.registry.nodes["uid-a"], parts.registry)
    assert (found.kind, found.namespace, found.name, found.object_uid) == ("Node", "", "a", "uid-a")
    assert found.message == f"{said}: something"
    assert (found.epoch, found.sequence, found.reason) == (told.epoch, told.sequence, told.reason)
