"""What follows from the end of a run; pure."""

from __future__ import annotations

from dataclasses import dataclass

from hypervisor.model import RestartPolicy
from hypervisor.workers.backoff import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """again: start it again after delay_seconds, with so many failures in a row. given_up: it has failed for good."""

    again: bool
    delay_seconds: float = 0.0
    failures: int = 0
    given_up: bool = False


def after_end(
    policy: RestartPolicy, *, wanted: bool, clean: bool, ran_seconds: float, failures: int, backoff: Backoff
) -> Verdict:
    """clean: it ended by itself with 0, and no probe had condemned it."""
    if not wanted:
        return Verdict(again=False)
    if policy is RestartPolicy.NEVER or (policy is RestartPolicy.ON_FAILURE and clean):
        return Verdict(again=False, given_up=not clean)
    row = backoff.failures_after(failures, ran_seconds)
    return Verdict(again=True, delay_seconds=backoff.delay(row), failures=row)
