"""How busy an allocation's processes were in a window of which the driver tells whole percents only.

Each process's figure may be off by half a percent, and where its share does not change, in the same way for ever: of k
processes together by k halves. What the card as a whole did in the same window is one whole percent: the processes on
it have turns, so their times add up to the card's, and what others have is not the allocation's. The allocation's own
figures, and the card's less the others', each leave a range open; the truth lies in both. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
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
    is not told of, processes that ran at the same time, figures of another window) it says nothing. A range is not cut
    off at a full card: its middle would then say less than all of a card that is.
    """
    told = sum(ratios.get(pid, 0.0) for pid in own)
    as_told = Busy(min(told, 1.0), off_of(len(own)))
    if card is None or not 0 <= card <= 1 or not math.isfinite(told):
        return as_told
    others = [ratio for pid, ratio in ratios.items() if pid not in own]
    left, left_open = card - sum(others), HALF_A_PERCENT * (1 + len(others))
    told_open = HALF_A_PERCENT * len(own)
    least, most = max(told - told_open, left - left_open), min(told + told_open, left + left_open)
    if not least <= most:
        return as_told
    return Busy(min(max((least + most) / 2, 0.0), 1.0), max((most - least) / 2 - HALF_A_PERCENT, 0.0))


def off_of(processes: int) -> float:
    """What the sum over so many processes may be off beyond half a percent."""
    return HALF_A_PERCENT * max(processes - 1, 0)
