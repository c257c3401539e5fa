"""What the doctor finds from time to time, as events and as a condition."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from hypervisor.model import (
    CheckResult,
    Diagnosis,
    EventType,
    ObjectKind,
    ObjectReference,
    Refusal,
    RefusalReason,
    Verdict,
)
from hypervisor.node.inspecting import FIRST_SECONDS, Inspecting, summary, turns

NODE = ObjectReference(kind=ObjectKind.NODE, name="node", uid="uid")


def result(check: str, verdict: Verdict) -> CheckResult:
    loud = verdict in (Verdict.WARN, Verdict.FAIL)
    return CheckResult(
        check_id=check,
        stage="driver",
        verdict=verdict,
        looked_at="files",
        evidence=("seen",),
        cause="why" if loud else "",
        remedy="what to do" if loud else "",
    )


class Doctor:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: list[CheckResult] = []
        self.events: list[tuple[EventType, str, str, str]] = []
        self.published = self.asked = 0
        self.refusal: Refusal | None = None
        self.interval = 600.0
        self.inspecting = self.start()

    def start(self) -> Inspecting:
        return Inspecting(
            self.examine,
            self.emit,
            regarding=lambda: NODE,
            interval=lambda: self.interval,
            publish=self.publish,
            path=self.path,
        )

    async def examine(self) -> Diagnosis:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        return Diagnosis(subject="node", results=tuple(self.results), first_broken="")

    def emit(self, kind: EventType, reason: str, regarding: ObjectReference, message: str, **fields: str) -> None:
        assert regarding is NODE
        self.events.append((kind, reason, fields["check"], message))

    def publish(self) -> None:
        self.published += 1

    def inspect(self, *results: CheckResult) -> list[tuple[EventType, str, str, str]]:
        self.results, self.events = list(results), []
        trio.run(self.inspecting.inspect)
        return self.events


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path / "inspection.json")


def test_a_change_is_told_once_with_the_numbers_that_caused_it(doctor: Doctor) -> None:
    assert doctor.inspect(result("a", Verdict.PASS)) == []
    assert doctor.inspecting.finding == ""
    broken = [(EventType.WARNING, "DoctorCheckFailed", "a", "a: why (seen); what to do")]
    assert doctor.inspect(result("a", Verdict.FAIL)) == broken
    assert doctor.inspecting.finding == "the doctor's checks fail: a; first why; see 'hypervisor doctor node'"
    assert doctor.inspect(result("a", Verdict.FAIL)) == []
    assert doctor.inspect(result("a", Verdict.SKIP)) == []  # a link before it is broken: it says nothing
    assert doctor.inspect(result("a", Verdict.WARN))[0][:2] == (EventType.WARNING, "DoctorCheckWarned")
    assert doctor.inspecting.finding == ""
    assert doctor.inspect(result("a", Verdict.PASS)) == [(EventType.NORMAL, "DoctorCheckPassed", "a", "a passes again")]
    assert doctor.published == 2


def test_a_restart_tells_nothing_again(doctor: Doctor) -> None:
    doctor.inspect(result("a", Verdict.FAIL))
    doctor.inspecting = doctor.start()
    assert doctor.inspect(result("a", Verdict.FAIL)) == []
    assert doctor.inspecting.finding
    doctor.path.write_text("no JSON")
    doctor.inspecting = doctor.start()
    assert len(doctor.inspect(result("a", Verdict.FAIL))) == 1


def test_what_can_not_be_made_now_is_counted_and_the_last_findings_stand(doctor: Doctor) -> None:
    doctor.inspect(result("a", Verdict.FAIL))
    doctor.refusal = Refusal(RefusalReason.NOT_READY, "busy")
    assert doctor.inspect() == []
    assert doctor.inspecting.finding
    told = doctor.inspecting.statistics()
    assert (told.runs_total, told.failures_total, dict(told.checks)) == (1, 1, {"fail": 1})


def test_it_comes_a_minute_after_the_start_and_then_every_interval(doctor: Doctor) -> None:
    async def main() -> None:
        with trio.move_on_after(FIRST_SECONDS + 600 * 3 + 1):
            await doctor.inspecting.run()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert doctor.asked == 4
    doctor.interval = 0.0
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert doctor.asked == 4


def test_a_disk_that_is_full_does_not_matter(doctor: Doctor) -> None:
    doctor.path.mkdir()
    assert len(doctor.inspect(result("a", Verdict.FAIL))) == 1


def test_pure_parts() -> None:
    results = (result("a", Verdict.FAIL), result("b", Verdict.SKIP), result("c", Verdict.WARN))
    assert [turn.reason for turn in turns({}, results)] == ["DoctorCheckFailed", "DoctorCheckWarned"]
    assert summary(Diagnosis(subject="node", results=results[1:], first_broken="")) == ""
