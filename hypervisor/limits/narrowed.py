"""How busy an allocation's processes were in a window of which the driver tells whole percents only.

Each process's figure may be off by half a percent, and where its share does not change, in the same way for ever: of k
processes together by k halves. What the card as a whole did in the same window is one whole percent: the processes on
it have turns, so their times add up to the card's, and what others have is not the allocation's. The allocation's own
figures and the card's less the others' each leave a range open; the truth lies in both. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

HALF_A_PERCENT = 0.005


@dataclass(frozen=True, slots=True)
class Busy:
    """The share of a window, and what it may be off beyond half a percent, in the same way in every window."""

    ratio: float
    off: float


def busy_of(ratios: Mapping[int, float], own: Collection[int], card: float | None) -> Busy:
    """Of a window: by pid, the share of it in which a process was busy; own: pids of the allocation; card: the share in
    which anybody was, None where that is not known.

    The card's figure never leads out of what the own ones leave open. Where the two contradict each other (time of who
    is not told of, processes that ran at the same time, figures of another window) it says nothing.
    """
    told = [ratios.get(pid, 0.0) for pid in own]
    ratio = min(sum(told), 1.0)
    as_told = Busy(ratio, off_of(len(told)))
    if card is None or not 0 <= card <= 1 or not math.isfinite(ratio):
        return as_told
    least, most = _range(told)
    others_least, others_most = _range(each for pid, each in ratios.items() if pid not in own)
    least = max(least, card - HALF_A_PERCENT - others_most)
    most = min(most, min(card + HALF_A_PERCENT, 1.0) - others_least)
    if not least <= most:
        return as_told
    return Busy(min((least + most) / 2, 1.0), max((most - least) / 2 - HALF_A_PERCENT, 0.0))


def off_of(processes: int) -> float:
    """What the sum over so many processes may be off beyond half a percent."""
    return HALF_A_PERCENT * max(processes - 1, 0)


def _range(told: Iterable[float]) -> tuple[float, float]:
    """What so many whole percents may be together; time is never below 0."""
    shares = list(told)
    return sum(max(each - HALF_A_PERCENT, 0.0) for each in shares), sum(each + HALF_A_PERCENT for each in shares)
