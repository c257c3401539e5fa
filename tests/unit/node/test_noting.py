"""Which changes of conditions are worth a line of the log."""

from __future__ import annotations

from dataclasses import replace

from hypervisor.model import Condition, ConditionStatus, HealthCode
from hypervisor.node.noting import notes
from tests import builders


def condition(code: HealthCode, status: ConditionStatus = ConditionStatus.TRUE, name: str = "") -> Condition:
    return Condition(
        type=name or code.value, status=status, code=code, message=f"{code.value}!", last_transition_at=1.0
    )


def told(before, after) -> list[tuple[str, str, bool, bool]]:
    return [(note.condition.code.value, note.gpu, note.gone, note.warning) for note in notes(before, after)]


def test_what_comes_and_goes_is_told_once() -> None:
    well = builders.make_snapshot(gpus=0)
    full = replace(well, conditions=(condition(HealthCode.DISK_FULL),))
    again = replace(well, conditions=(replace(condition(HealthCode.DISK_FULL), message="other words"),))
    assert told(well, full) == [("DiskFull", "", False, True)]
    assert told(full, again) == []
    assert told(again, well) == [("DiskFull", "", True, False)]


def test_readiness_is_told_both_ways() -> None:
    ready = condition(HealthCode.OK, name="Ready")
    unready = condition(HealthCode.NVML_NOT_FOUND, ConditionStatus.FALSE, "Ready")
    before = builders.make_snapshot(gpus=0, conditions=(ready,))
    after = replace(before, conditions=(unready,))
    assert told(before, after) == [("NvmlNotFound", "", False, True)]
    assert told(after, before) == [("Ok", "", False, False)]


def test_a_card_is_told_when_something_is_wrong_with_it() -> None:
    none = builders.make_snapshot(gpus=0)
    well = replace(builders.make_gpu(0), conditions=(condition(HealthCode.OK, name="Healthy"),))
    sick = replace(well, conditions=(condition(HealthCode.XID_ERROR, ConditionStatus.FALSE, "Healthy"),))
    slow = replace(well, conditions=(*well.conditions, condition(HealthCode.CLOCKS_REDUCED)))
    assert told(none, replace(none, gpus=(well,))) == []
    assert told(replace(none, gpus=(well,)), replace(none, gpus=(slow,))) == []
    assert told(replace(none, gpus=(well,)), replace(none, gpus=(sick,))) == [
        ("XidError", builders.uuid(0), False, True)
    ]
    assert told(none, replace(none, gpus=(sick,))) == [("XidError", builders.uuid(0), False, True)]
