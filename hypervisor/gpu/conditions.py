"""Conditions of the node and of each GPU, with the time since when they hold."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from hypervisor.model.health import Condition, ConditionStatus, HealthCode


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is so now. While code and topic stay the same, the first message stands: figures may move."""

    code: HealthCode
    message: str
    topic: str = ""


class ConditionBook:
    """Remembers since when each finding holds. A condition is there while it is true and gone when it is not."""

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[HealthCode, tuple[Finding, Condition]]] = {}

    def conditions(self, owner: Hashable, findings: Iterable[Finding], *, wall_time: float) -> tuple[Condition, ...]:
        """Conditions of an owner (a UUID, or the node): type and code are the same, status is true."""
        known = self._known.get(owner, {})
        now: dict[HealthCode, tuple[Finding, Condition]] = {}
        for finding in findings:
            if finding.code in now:
                continue  # the first is the most telling
            before = known.get(finding.code)
            if before is not None and finding.topic and before[0].topic == finding.topic:
                now[finding.code] = before
                continue
            condition = Condition(
                type=finding.code.value,
                status=ConditionStatus.TRUE,
                code=finding.code,
                message=finding.message,
                last_transition_at=before[1].last_transition_at if before else wall_time,
            )
            now[finding.code] = (finding, condition)
        self._known[owner] = now
        return tuple(condition for _, condition in now.values())
