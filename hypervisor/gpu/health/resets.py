"""Whether a card was reset or started anew meanwhile, by counts that only that makes smaller. Pure.

A driver that lies gives zeros as well, so that one answer is none: the next one has to say the same, and nothing may
have fallen that never falls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypervisor.gpu.health.facts import HealthFacts

Counts = tuple[tuple[float | None, float | None], ...]


@dataclass(frozen=True, slots=True)
class Energy:
    """The energy counter over readings: the most that was read, and one below that, which no second has confirmed."""

    most: float | None = None
    fallen: float | None = None

    def after(self, value: float) -> tuple[Energy, bool]:
        """With one reading more; True when it shows a start from zero. A card draws power: zero is no answer."""
        if self.most is None or value >= self.most:
            return Energy(value), False
        if value <= 0:
            return self, False
        if self.fallen is not None and value >= self.fallen:
            return Energy(value), True
        return Energy(self.most, value), False


def seems_reset(before: HealthFacts, after: HealthFacts, *, let_go: bool) -> bool:
    """Whether the second answer is of a card that was reset after the first; to be believed with the next answer.

    let_go: nobody of ours held the card in between, so that it could be. Only then its further counts are looked at,
    which some driver may make smaller for another reason.
    """
    if any(_falls(_over_life(before, after))):
        return False
    return any(_falls(_since_reset(before, after))) or (let_go and any(_falls(_since_start(before, after))))


def _falls(pairs: Counts) -> Iterator[bool]:
    return (old is not None and new is not None and new < old for old, new in pairs)


def _over_life(before: HealthFacts, after: HealthFacts) -> Counts:
    return (
        (before.ecc_corrected_aggregate, after.ecc_corrected_aggregate),
        (before.ecc_uncorrected_aggregate, after.ecc_uncorrected_aggregate),
        (before.rows_corrected, after.rows_corrected),
        (before.rows_uncorrected, after.rows_uncorrected),
    )


def _since_reset(before: HealthFacts, after: HealthFacts) -> Counts:
    return (
        (before.ecc_corrected_volatile, after.ecc_corrected_volatile),
        (before.ecc_uncorrected_volatile, after.ecc_uncorrected_volatile),
    )


def _since_start(before: HealthFacts, after: HealthFacts) -> Counts:
    seconds = dict(after.throttled_seconds)
    throttled = tuple((old, seconds.get(reason)) for reason, old in before.throttled_seconds)
    return ((before.pcie_replays, after.pcie_replays), *throttled)
