"""One message that people meet, and the check that it becomes.

A symptom is looked for in what a Pod said: its events, the states of its containers, its logs on the node, or why its
controller could not make it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from hypervisor.doctor.check import Check, Outcome, Stage, failed, passed, warned
from hypervisor.doctor.pod_subject import PodSubject
from hypervisor.doctor.redaction import redact_text
from hypervisor.doctor.told import events_of, logs_of, rejections_of, states_of
from hypervisor.model import Verdict


class Place(Enum):
    """Where a message is found."""

    EVENTS = "events of the Pod"
    STATES = "states of its containers"
    LOGS = "logs of its containers on this node"
    REJECTIONS = "events and conditions of its ReplicaSet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One message: a regular expression, case ignored, over "Reason: message" or a line of a log."""

    id: str
    stage: Stage
    place: Place
    pattern: str
    cause: str
    remedy: str
    source: str
    verdict: Verdict = Verdict.FAIL


def as_check(symptom: Symptom) -> Check[PodSubject]:
    """The check of a row."""
    expression = re.compile(symptom.pattern, re.IGNORECASE | re.MULTILINE)

    def look(subject: PodSubject) -> Outcome:
        lines = _newest(line for line in _READERS[symptom.place](subject) if expression.search(line))
        if not lines:
            return passed(f"nothing of the kind in the {symptom.place.value}")
        match symptom.verdict:
            case Verdict.PASS:
                return passed(*(f"can be ignored: {line}" for line in lines))
            case Verdict.WARN:
                return warned(lines, symptom.cause, symptom.remedy)
        return failed(lines, symptom.cause, symptom.remedy)

    words = re.sub(r"\\(.)", r"\1", symptom.pattern)
    return Check(
        id=f"symptom.{symptom.id}",
        stage=symptom.stage,
        asks=f"Does nothing say {words}?",
        looks_at=symptom.place.value,
        source=symptom.source,
        requires=(),
        gate=False,
        look=look,
    )


def _newest(lines: Iterable[str]) -> list[str]:
    # A program's log may hold anything, and what is found here goes into reports and over sockets.
    return [redact_text(line) for line in list(dict.fromkeys(line.strip() for line in lines))[-3:]]


_READERS = {
    Place.EVENTS: events_of,
    Place.STATES: states_of,
    Place.LOGS: logs_of,
    Place.REJECTIONS: rejections_of,
}
