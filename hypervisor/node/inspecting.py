"""The doctor from time to time: what its checks of this node find becomes events, and a condition of the node."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import structlog
import trio

from hypervisor.durable import write_atomically
from hypervisor.model import CheckResult, Diagnosis, EventType, ObjectReference, Refusal, Verdict
from hypervisor.node.publisher import EmitEvent

log = structlog.get_logger("node")
# The start of a node makes much that is not ready yet; the checks come when it should be.
FIRST_SECONDS = 60.0
OFF_SECONDS = 60.0  # between two looks at the settings while inspections are off
_TOLD = frozenset({Verdict.PASS, Verdict.WARN, Verdict.FAIL})  # a check that could not look says nothing new
_LOUD = {Verdict.WARN: "DoctorCheckWarned", Verdict.FAIL: "DoctorCheckFailed"}


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    version: Literal[1]
    verdicts: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionStatistics:
    """Inspections since the start of the daemon, those that could not be made, and the last one's checks by verdict."""

    runs_total: int
    failures_total: int
    last_run_timestamp_seconds: float
    last_run_seconds: float
    checks: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A check whose verdict is another than at the last inspection, as the journal takes it."""

    type: EventType
    reason: str
    message: str
    fields: tuple[tuple[str, str], ...]


def turns(before: Mapping[str, Verdict], results: tuple[CheckResult, ...]) -> Iterator[Turn]:
    """What has changed; pure. A check of which nothing was known counts as one that has passed."""
    for result in results:
        if result.verdict not in _TOLD or result.verdict is before.get(result.check_id, Verdict.PASS):
            continue
        fields = (("check", result.check_id), ("stage", result.stage), ("verdict", result.verdict.value))
        if result.verdict is Verdict.PASS:
            yield Turn(
                type=EventType.NORMAL,
                reason="DoctorCheckPassed",
                message=f"{result.check_id} passes again",
                fields=fields,
            )
        else:
            seen = f" ({result.evidence[0]})" if result.evidence else ""
            yield Turn(
                type=EventType.WARNING,
                reason=_LOUD[result.verdict],
                message=f"{result.check_id}: {result.cause}{seen}; {result.remedy}",
                fields=fields,
            )


def summary(diagnosis: Diagnosis) -> str:
    """What fails, for the condition; "" when nothing does."""
    failing = [each for each in diagnosis.results if each.verdict is Verdict.FAIL]
    if not failing:
        return ""
    names = ", ".join(each.check_id for each in failing)
    return f"the doctor's checks fail: {names}; first {failing[0].cause}; see 'hypervisor doctor node'"


class Inspecting:
    """Runs the checks of the node every so often. For the trio main thread.

    interval gives the seconds between two inspections, 0 for none; path keeps the verdicts over a restart, so that what
    was told is not told again.
    """

    def __init__(
        self,
        examine: Callable[[], Awaitable[Diagnosis]],
        emit: EmitEvent,
        *,
        regarding: Callable[[], ObjectReference],
        interval: Callable[[], float],
        publish: Callable[[], object],
        path: Path,
    ) -> None:
        self._examine = examine
        self._emit = emit
        self._regarding = regarding
        self._interval = interval
        self._publish = publish
        self._path = path
        self._verdicts = _stored(path)
        self._runs = self._failures = 0
        self._last_at = self._last_seconds = 0.0
        self._last: tuple[CheckResult, ...] = ()
        self.finding = ""  # what the condition says

    async def run(self) -> None:
        """For ever. Cancelling stops the waiting; an inspection that has begun ends by itself and is forgotten."""
        await trio.sleep(min(FIRST_SECONDS, self._interval() or OFF_SECONDS))
        while True:
            interval = self._interval()
            if interval:
                await self.inspect()
            await trio.sleep(interval or OFF_SECONDS)

    async def inspect(self) -> None:
        """One inspection; what can't be made now is counted and left."""
        begun = time.monotonic()
        try:
            diagnosis = await self._examine()
        except Refusal as refusal:
            self._failures += 1
            log.warning("the node could not be inspected", reason=str(refusal))
            return
        self._runs += 1
        self._last_at, self._last_seconds = time.time(), time.monotonic() - begun
        self._last = diagnosis.results
        for turn in turns(self._verdicts, diagnosis.results):
            self._emit(turn.type, turn.reason, self._regarding(), turn.message, **dict(turn.fields))
        told = {each.check_id: each.verdict for each in diagnosis.results if each.verdict in _TOLD}
        if told.items() - self._verdicts.items():
            self._verdicts |= told
            self._store()
        finding = summary(diagnosis)
        if finding != self.finding:
            self.finding = finding
            self._publish()

    def statistics(self) -> InspectionStatistics:
        """A copy of the counts."""
        return InspectionStatistics(
            runs_total=self._runs,
            failures_total=self._failures,
            last_run_timestamp_seconds=self._last_at,
            last_run_seconds=self._last_seconds,
            checks=Counter(each.verdict.value for each in self._last),
        )

    def _store(self) -> None:
        record = _Record(version=1, verdicts={check: verdict.value for check, verdict in self._verdicts.items()})
        # A disk that is full has a condition of its own; what is not kept is told once more after a restart.
        with contextlib.suppress(OSError):
            write_atomically(self._path, msgspec.json.encode(record))


def _stored(path: Path) -> dict[str, Verdict]:
    try:
        record = msgspec.json.decode(path.read_bytes(), type=_Record)
        return {check: Verdict(verdict) for check, verdict in record.verdicts.items()}
    except (OSError, ValueError):
        return {}
