"""A check: one small function with what is said of it, and the runner that keeps the order of the chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from hypervisor.doctor.root import UnreadableError, encodable
from hypervisor.model import CheckResult, Diagnosis, SkipReason, Verdict

Subject = TypeVar("Subject")


class Stage(Enum):
    """Links of the chain, in their order."""

    DRIVER = "driver"
    HYPERVISOR = "hypervisor"
    REGISTRATION = "registration"
    ALLOCATABLE = "allocatable"
    SCHEDULING = "scheduling"
    RUNTIME = "runtime"
    WORKLOAD = "workload"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a check found."""

    verdict: Verdict
    evidence: tuple[str, ...] = ()
    cause: str = ""
    remedy: str = ""
    skip_reason: SkipReason | None = None


def passed(*evidence: str) -> Outcome:
    """All is well; evidence says what was seen."""
    return Outcome(verdict=Verdict.PASS, evidence=evidence)


def not_applicable(why: str) -> Outcome:
    """Nothing to check on this machine."""
    return Outcome(verdict=Verdict.SKIP, evidence=(why,), skip_reason=SkipReason.NOT_APPLICABLE)


def unreadable(why: str) -> Outcome:
    """It could not be looked at."""
    return Outcome(verdict=Verdict.SKIP, evidence=(why,), skip_reason=SkipReason.UNREADABLE)


def warned(evidence: Iterable[str], cause: str, remedy: str) -> Outcome:
    """It works, with less than it should give, or not for long."""
    return Outcome(verdict=Verdict.WARN, evidence=tuple(evidence), cause=cause, remedy=remedy)


def failed(evidence: Iterable[str], cause: str, remedy: str) -> Outcome:
    """A broken link."""
    return Outcome(verdict=Verdict.FAIL, evidence=tuple(evidence), cause=cause, remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Generic[Subject]):
    """One check. requires: ids of checks without which its answer would mean nothing. gate: a new node needs it."""

    id: str
    stage: Stage
    asks: str
    looks_at: str
    source: str
    requires: tuple[str, ...]
    gate: bool
    look: Callable[[Subject], Outcome]


def check(
    id: str,  # noqa: A002 - it is what it is called everywhere
    *,
    stage: Stage,
    looks_at: str,
    source: str,
    requires: tuple[str, ...] = (),
    gate: bool = False,
) -> Callable[[Callable[[Subject], Outcome]], Check[Subject]]:
    """Make a Check of a function; the first line of its docstring is the question that it answers."""

    def make(look: Callable[[Subject], Outcome]) -> Check[Subject]:
        asks = (look.__doc__ or "").strip().partition("\n")[0]
        return Check(
            id=id, stage=stage, asks=asks, looks_at=looks_at, source=source, requires=requires, gate=gate, look=look
        )

    return make


def examine(checks: Sequence[Check[Subject]], subject: Subject, *, name: str) -> Diagnosis:
    """Run all checks in their order; what depends on a broken one is skipped and the rest still runs."""
    broken: set[str] = set()
    results: list[CheckResult] = []
    for each in checks:
        blocking = next((needed for needed in each.requires if needed in broken), None)
        if blocking is not None:
            outcome = Outcome(
                verdict=Verdict.SKIP,
                evidence=(f"not run: {blocking} comes first",),
                skip_reason=SkipReason.BLOCKED,
            )
            broken.add(each.id)
        else:
            outcome = _look(each, subject)
            if outcome.verdict is Verdict.FAIL:
                broken.add(each.id)
        results.append(
            CheckResult(
                check_id=each.id,
                stage=each.stage.value,
                verdict=outcome.verdict,
                looked_at=each.looks_at,
                evidence=tuple(map(encodable, outcome.evidence)),
                cause=encodable(outcome.cause),
                remedy=encodable(outcome.remedy),
                skip_reason=outcome.skip_reason,
            )
        )
    first = next((result.check_id for result in results if result.verdict is Verdict.FAIL), "")
    return Diagnosis(subject=name, results=tuple(results), first_broken=first)


def _look(check: Check[Subject], subject: Subject) -> Outcome:
    try:
        return check.look(subject)
    except UnreadableError as error:
        return unreadable(f"can't read {error}; run the doctor as root")
    except Exception as error:  # noqa: BLE001 - what a file holds must not take the other checks down
        return warned(
            [f"{type(error).__name__}: {error}"],
            "the check itself failed on what it read",
            "report this with a support bundle: hypervisor doctor bundle",
        )


def gate_failures(checks: Sequence[Check[Subject]], diagnosis: Diagnosis) -> tuple[CheckResult, ...]:
    """Required checks that did not pass. One that says nothing of this machine counts as passed."""
    required = {each.id for each in checks if each.gate}
    return tuple(
        result
        for result in diagnosis.results
        if result.check_id in required
        and result.verdict is not Verdict.PASS
        and result.skip_reason is not SkipReason.NOT_APPLICABLE
    )
