"""How many processes of others are at work on a device beside an allocation.

Who knows that there are none can believe a longer time at once; else it may be others' turns. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypervisor.limits.narrowed import HALF_A_PERCENT

MOST = 1_000  # processes on one device
FULL = 0.95  # of a card's time
NEARLY = 0.8
# After the end of a window: the word for the next one has come by then, where windows are of a sixth of a second.
HOLDS_SECONDS = 0.6


def neighbours(ratios: Mapping[int, float], own: Collection[int]) -> int:
    """Of a window of the driver: by pid, the share of it in which a process was busy. own: pids of the allocation."""
    return min(sum(ratio > 0 for pid, ratio in ratios.items() if pid not in own), MOST)


def expected_turns(ratios: Mapping[int, float], own: Collection[int]) -> float:
    """How many turns others may be expected to have for one of the allocation's. One that is at work all the time, or
    as much as ours on a card that is full, has each other turn; one that is less has what it uses of the rest."""
    others = [ratio for pid, ratio in ratios.items() if pid not in own and 0 < ratio <= 1]
    ours = max((ratios.get(pid, 0.0) for pid in own), default=0.0)
    is_full = sum(others) + sum(ratios.get(pid, 0.0) for pid in own) >= FULL
    return sum(
        1.0 if ratio >= 0.5 or (is_full and ratio >= ours * NEARLY) else ratio / (1 - ratio) for ratio in others[:MOST]
    )


def others_busy(ratios: Mapping[int, float], own: Collection[int]) -> float:
    """The share of a window in which others may have had the device at the most, as far as whole percents tell."""
    others = [ratio for pid, ratio in ratios.items() if pid not in own and 0 < ratio <= 1]
    return min(sum(others) + HALF_A_PERCENT * len(others), 1.0)


def holds_until_ms(ended_at: float) -> int:
    """Until when the word about a window that ended at this time (seconds of the limiter's clock) can be taken."""
    return round((ended_at + HOLDS_SECONDS) * 1000)
