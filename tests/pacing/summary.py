"""What many outcomes say together: of all, by value of each factor, and where misses lie close."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.pacing.outcome import Outcome

FEWEST = 5  # cells of which a part says something


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Of so many outcomes with a figure; errors in points, settling in seconds (inf: not all settled)."""

    name: str
    count: int
    within: int
    least: float
    most: float
    median: float  # of the absolute errors
    settle_median: float
    settle_most: float
    longest_stall_ms: float
    stalls_within: int
    later_stalls_within: int
    stalls_without: int  # beyond the bound, and no longer than without the limiter

    @property
    def worst(self) -> float:
        """The error that is furthest from 0."""
        return max(self.least, self.most, key=abs)


def middle(values: Iterable[float]) -> float:
    """The middle value; of an even number the lower of the two."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def summary(name: str, some: Iterable[Outcome]) -> Summary | None:
    """Of those that have a figure; None where there is none."""
    known = [each for each in some if not math.isnan(each.error)]
    if not known:
        return None
    return Summary(
        name=name,
        count=len(known),
        within=sum(each.holds for each in known),
        least=min(each.error for each in known),
        most=max(each.error for each in known),
        median=middle(abs(each.error) for each in known),
        settle_median=middle(each.settle_seconds for each in known),
        settle_most=max(each.settle_seconds for each in known),
        longest_stall_ms=max(each.stall_ms for each in known),
        stalls_within=sum(each.stall_ms <= each.stall_bound_ms for each in known),
        later_stalls_within=sum(each.later_stall_ms <= each.stall_bound_ms for each in known),
        stalls_without=sum(each.stalls_by_itself for each in known),
    )


def summaries(outcomes: Sequence[Outcome]) -> Iterator[Summary]:
    """All, alone and beside others, then by each value of each factor."""
    parts: dict[str, Callable[[Outcome], bool]] = {
        "all": lambda each: True,
        "alone": lambda each: each.alone,
        "beside others": lambda each: not each.alone,
    }
    for name, belongs in parts.items():
        if (of_part := summary(name, filter(belongs, outcomes))) is not None:
            yield of_part
    for name, some in _by_values(outcomes, 1).items():
        if (of_value := summary(name, some)) is not None:
            yield of_value


def where_it_misses(outcomes: Sequence[Outcome], *, most: int = 12) -> list[Summary]:
    """Pairs of values that miss most often, in comparison."""
    found = [
        of_pair
        for name, some in _by_values(outcomes, 2).items()
        if len(some) >= FEWEST and (of_pair := summary(name, some)) is not None and of_pair.within < of_pair.count
    ]
    return sorted(found, key=lambda each: (each.within / each.count, -abs(each.worst)))[:most]


def _by_values(outcomes: Iterable[Outcome], together: int) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for each in outcomes:
        for values in itertools.combinations(each.values.items(), together):
            groups[", ".join(f"{factor} {value}" for factor, value in values)].append(each)
    return dict(sorted(groups.items())) if together == 1 else groups
