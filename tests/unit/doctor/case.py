"""One fault of a machine, with the verdict that the source it comes from gives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypervisor.model import CheckResult, Diagnosis, Verdict
from tests.unit.doctor.machines import Machine

FAIL, WARN = Verdict.FAIL, Verdict.WARN


@dataclass(frozen=True)
class Case:
    """source: where the expectation is written. says: a part of evidence, cause or remedy."""

    source: str
    check: str
    verdict: Verdict
    breaks: Callable[[Machine], Any]
    says: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.source}"


def assert_told(case: Case, diagnosis: Diagnosis) -> CheckResult:
    """The check gives the verdict of the case, with a cause, a remedy and the words."""
    result = next(each for each in diagnosis.results if each.check_id == case.check)
    assert result.verdict is case.verdict, result
    assert result.cause, result
    assert result.remedy, result
    told = " ".join((*result.evidence, result.cause, result.remedy))
    assert case.says in told, told
    return result
