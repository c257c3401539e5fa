"""What a check of the doctor found, and what a row of checks comes to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """Outcome of one check. A healthy machine gives PASS and SKIP only."""

    PASS = "pass"  # noqa: S105 - a verdict
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class SkipReason(Enum):
    """Why a check gave no verdict: no matter of this machine, a link before it is broken, or it could not look."""

    NOT_APPLICABLE = "not applicable"
    BLOCKED = "blocked"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check: what it looked at and what it saw. cause and remedy are set for WARN and FAIL only."""

    check_id: str
    stage: str
    verdict: Verdict
    looked_at: str
    evidence: tuple[str, ...] = ()
    cause: str = ""
    remedy: str = ""
    skip_reason: SkipReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All checks of a subject, in the order of the chain. first_broken is the id of the first that failed, or ""."""

    subject: str
    results: tuple[CheckResult, ...]
    first_broken: str
