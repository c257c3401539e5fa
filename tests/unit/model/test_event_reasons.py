"""The catalogue of event reasons is the one that schedulers, operators and people know."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hypervisor.model import EventType
from hypervisor.model.event_reasons import EVENT_REASONS, Emitter, EventReasonError, action_of, check_event

REFERENCE = Path(__file__).parents[2] / "golden" / "event_reasons.tsv"
ROOT = Path(__file__).parents[3] / "hypervisor"
# Which part of the system the code of a room runs in.
ROOMS = {"node": "node", "kube": "node", "aggregator": "aggregator"}


def test_the_catalogue_is_the_reference() -> None:
    with REFERENCE.open(encoding="utf-8") as file:
        wanted = {
            row["reason"]: (row["object"], set(row["type"].split(" or ")))
            for row in csv.DictReader(file, delimiter="\t")
        }
    assert len(wanted) == 42
    assert {
        name: (each.object_kind, {type_.value for type_ in each.types}) for name, each in EVENT_REASONS.items()
    } == wanted


def test_what_is_said_to_be_emitted_is_and_the_rest_is_not() -> None:
    sources = {path: path.read_text(encoding="utf-8") for room in ROOMS for path in ROOT.joinpath(room).rglob("*.py")}
    for name, each in EVENT_REASONS.items():
        rooms = {ROOMS[path.relative_to(ROOT).parts[0]] for path, text in sources.items() if f'"{name}"' in text}
        assert each.emitter.value in rooms if each.emitter is not Emitter.NONE else not rooms, name


def test_an_event_must_be_as_the_catalogue_has_it() -> None:
    fields = {"pod": "p", "container": "c", "restarts": "6", "threshold": "5", "cause": "exit 1"}
    message = "Pod p: container c has restarted 6 times, more than 5: exit 1"
    check_event("HypervisorCrashLoopRecreate", "GPUNode", EventType.WARNING, fields, message)
    check_event("SomethingElse", "GPU", EventType.NORMAL, {}, "")
    for changed in (
        {"kind": "Pod"},
        {"type_": EventType.NORMAL},
        {"fields": {}},
        {"message": "Pod p"},
        {"reason": "Compaction"},
    ):
        given = {
            "reason": "HypervisorCrashLoopRecreate",
            "kind": "GPUNode",
            "type_": EventType.WARNING,
            "fields": fields,
            "message": message,
        }
        with pytest.raises(EventReasonError):
            check_event(**{**given, **changed})


def test_every_reason_has_an_action() -> None:
    assert action_of("DriverProbeFailed") == "Probe"
    assert action_of("GPUMissing") == "Observe"
