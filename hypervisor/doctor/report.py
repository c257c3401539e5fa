"""A diagnosis as text for people, and as JSON with the names of the API; pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypervisor.model import CheckResult, Diagnosis, Verdict

_MARKS = {Verdict.PASS: "ok", Verdict.WARN: "WARN", Verdict.FAIL: "FAIL", Verdict.SKIP: "-"}
_MOST_EVIDENCE = 5


def as_text(diagnosis: Diagnosis) -> str:
    """One line a check; below one that is not well, what was seen, why, and what to do."""
    return "\n".join(_lines(diagnosis))


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    width = max((len(result.check_id) for result in diagnosis.results), default=0)
    stage = ""
    for result in diagnosis.results:
        if result.stage != stage:
            stage = result.stage
            yield f"{stage}:"
        told = result.evidence[0] if result.evidence else ""
        yield one_line(f"  {_MARKS[result.verdict]:<4}  {result.check_id:<{width}}  {told}")
        if result.verdict in (Verdict.WARN, Verdict.FAIL):
            yield from _explained(result, " " * 8)
    yield ""
    yield summary(diagnosis)


def _explained(result: CheckResult, indent: str) -> Iterator[str]:
    for more in result.evidence[1:_MOST_EVIDENCE]:
        yield one_line(f"{indent}saw:    {more}")
    left = len(result.evidence) - _MOST_EVIDENCE
    if left > 0:
        yield f"{indent}saw:    and {left} more"
    yield f"{indent}cause:  {result.cause}"
    yield f"{indent}remedy: {result.remedy}"


def summary(diagnosis: Diagnosis) -> str:
    """What it comes to, in one line."""
    counts = Counter(result.verdict for result in diagnosis.results)
    told = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict)
    if diagnosis.first_broken:
        return f"{diagnosis.subject}: the first broken link is {diagnosis.first_broken} ({told})"
    return f"{diagnosis.subject}: no link is broken ({told})"


def as_json(diagnosis: Diagnosis) -> str:
    """The fields of DiagnoseResponse, with the subject and the reason of a skip."""
    return json.dumps(as_mapping(diagnosis), indent=2, ensure_ascii=False)


def as_mapping(diagnosis: Diagnosis) -> dict[str, Any]:
    """As as_json, before it is text."""
    return {
        "subject": diagnosis.subject,
        "firstBroken": diagnosis.first_broken,
        "checks": [_result(result) for result in diagnosis.results],
    }


def _result(result: CheckResult) -> dict[str, Any]:
    return {
        "checkId": result.check_id,
        "stage": result.stage,
        "verdict": result.verdict.value,
        "lookedAt": result.looked_at,
        "evidence": list(result.evidence),
        "cause": result.cause,
        "remedy": result.remedy,
        "skipReason": result.skip_reason.value if result.skip_reason else "",
    }


def one_line(text: str) -> str:
    """Text that comes from files and logs, printable and on one line."""
    return "".join(mark if mark.isprintable() else " " for mark in text).rstrip()
