"""Files that hold anything: what can't be understood is left out or told, and everything else is still examined."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hypervisor.doctor.check import examine
from hypervisor.doctor.checks import NODE_CHECKS, POD_CHECKS
from hypervisor.doctor.cluster_subject import ClusterSubject
from hypervisor.doctor.diagnose import diagnose_cluster
from hypervisor.doctor.inspection import inspect
from hypervisor.doctor.kubernetes import Objects
from hypervisor.doctor.pod_subject import PodSubject
from hypervisor.doctor.root import UnreadableError
from hypervisor.model import CheckResult, Verdict
from tests.unit.doctor.machines import Machine, healthy

STRANGE: tuple[Any, ...] = (None, "", "x" * 1000, -1, 1e300, True, [], [None, "a"], [[]], {}, {"a": {"b": []}})


def selves(results: tuple[CheckResult, ...]) -> list[CheckResult]:
    return [each for each in results if each.cause == "the check itself failed on what it read"]


def from_files(machine: Machine, directory: Path) -> Objects:
    directory.mkdir()
    for kind, items in machine.objects.items():
        (directory / f"{kind}.json").write_text(json.dumps({"items": items}))
    return Objects.read_directory(directory)


def strange(value: Any) -> Any:
    """Objects, each with one of its parts exchanged, whatever it was."""
    if isinstance(value, dict):
        for key, inner in value.items():
            for other in STRANGE:
                yield {**value, key: other}
            for changed in strange(inner):
                yield {**value, key: changed}
    elif isinstance(value, list) and value:
        for changed in strange(value[0]):
            yield [changed, *value[1:]]


@pytest.mark.parametrize("kind", ["nodes", "pods", "gpus", "daemonsets", "gpunodes"])
def test_one_damaged_object_of_many_takes_no_check_down(kind: str, tmp_path: Path) -> None:
    machine = healthy(tmp_path / "machine")
    machine.objects[kind] += list(strange(machine.objects[kind][0]))
    subject = replace(machine.subject(), objects=from_files(machine, tmp_path / "objects"))
    assert selves(examine(NODE_CHECKS, subject, name="node").results) == []
    assert selves(examine(POD_CHECKS, PodSubject(subject, "ml", "train"), name="pod").results) == []
    assert selves(diagnose_cluster(ClusterSubject(root=subject.root, objects=subject.objects)).results) == []


@pytest.mark.parametrize("depth", [300, 800, 950, 5000])
@pytest.mark.parametrize("nest", ['{"a":', '[{"b":'])
def test_objects_that_lie_deep_within_each_other_are_told(depth: int, nest: str, tmp_path: Path) -> None:
    ends = {"{": "}", "[": "]"}
    closing = "".join(ends[letter] for letter in reversed(nest) if letter in ends)
    text = '{"items": [{"metadata": ' + nest * depth + "1" + closing * depth + "}]}"
    (tmp_path / "pods.json").write_text(text)
    # How deep is too deep differs by Python; nothing else may come of it.
    with suppress(UnreadableError):
        assert len(Objects.read_directory(tmp_path).all("pods")) == 1


def test_events_that_are_damaged_are_left_out_of_the_inspection(tmp_path: Path) -> None:
    machine = healthy(tmp_path / "machine")
    event = {
        "reason": "FailedScheduling",
        "message": "0/5 nodes are available: 5 Insufficient nvidia.com/gpu.",
        "count": 3,
        "involvedObject": {"kind": "Pod", "name": "train", "namespace": "ml"},
    }
    machine.objects["events"] = [*strange(event), event]
    subject = replace(machine.subject(), objects=from_files(machine, tmp_path / "objects"))
    found = inspect(subject, {}, counters_absent="", last=None)
    assert "Insufficient nvidia.com/gpu" in dict(found.reasons)


@pytest.mark.parametrize(
    "line", ["", "77", "77 (python", "77 (x) S " + "0 " * 30, "77 (x) S " + "\u00b2 " * 30, ")" * 99]
)
def test_a_process_whose_line_is_damaged_takes_no_check_down(line: str, tmp_path: Path) -> None:
    machine = healthy(tmp_path).write("/proc/77/stat", line).write("/proc/\u00b2/stat", line)
    results = examine(NODE_CHECKS, machine.subject(), name="node").results
    assert [each for each in results if each.verdict in (Verdict.WARN, Verdict.FAIL)] == []
