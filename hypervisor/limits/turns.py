"""How many turns others have on a device for one of an allocation's processes.

A device that several processes use gives each of them turns. A long launch is measured with others' turns among its
own; with n processes of the allocation at work beside others that have m turns for one of theirs, n / (n + m) of what
it was measured to take is its own. n the limiter knows at each moment; m is found out here, from what the driver tells
of the same moments. It does not depend on how many of its processes an allocation has at work.

Pure. Times are seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hypervisor.limits.narrowed import HALF_A_PERCENT

MOST = 64.0
FADING = 0.9  # of what earlier windows weigh
MOST_OWN = 512  # process slots
LEAST_WINDOW = 0.01
ENOUGH = 0.1  # of a window under way: less says little
EXPECTED_WEIGHT = 3e-4  # a window of one process beside one other weighs 0.01
UNLIKE = 0.15  # of the own part: a window that says something else than those before


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One window: how long of it the driver saw the allocation busy, what of that was brief launches, how long long
    ones were under way, and how many processes had work then, in the mean. off: what busy may be off beyond half a
    percent of the window, as a share of it. others: the share of the window in which the driver saw others at most."""

    busy: float
    brief: float
    laid: float
    own: float
    window: float
    off: float = 0.0
    others: float = 1.0

    @property
    def had(self) -> float | None:
        """What of the time of long launches was the allocation's; None where that can't be told. Where a long launch is
        under way somebody runs, so what is not theirs is the allocation's own, whatever was charged for brief launches:
        those are charged before they run."""
        numbers = (self.busy, self.brief, self.laid, self.own, self.window)
        if not all(math.isfinite(number) for number in numbers) or self.window < LEAST_WINDOW:
            return None
        had = max(self.busy - max(self.brief, 0.0), self.laid - self.others * self.window)
        if self.laid < ENOUGH * self.window or max(self.laid, self.busy) > 1.1 * self.window or had * MOST < self.laid:
            return None
        if not 1 <= self.own <= MOST_OWN:
            return None
        # As far as can be told there may be nobody else.
        return self.laid if abs(self.laid - had) <= (HALF_A_PERCENT + self.off) * self.window else had


@dataclass(frozen=True, slots=True)
class Turns:
    """The estimate, what it rests on, and the last window where that was unlike those before. is_expected: it rests on
    no long launch."""

    value: float = 0.0
    weight: float = 0.0
    is_expected: bool = False
    strange: tuple[float, float] | None = None

    def after(self, seen: Seen) -> Turns:
        """With one more window."""
        had, laid, own = seen.had, seen.laid, seen.own
        if had is None:
            return self
        part = had / laid
        turns = own * (1 / part - 1)
        weight = laid * (part * part / own) ** 2  # as the error of the part goes into that of the turns
        if (self.weight or self.is_expected) and abs(part - own / (own + self.value)) > UNLIKE * part:
            if self.strange is None:
                return replace(self, strange=(turns, weight))
            return Turns().weighed(*self.strange).weighed(turns, weight)
        return replace(self, strange=None).weighed(turns, weight)

    def expected(self, turns: float) -> Turns:
        """With this for the estimate, where none was made and none is known from before."""
        if self.weight or (self.value and not self.is_expected):
            return self
        return replace(self, value=min(max(turns, 0.0), MOST), is_expected=True)

    def weighed(self, turns: float, weight: float) -> Turns:
        """With one more estimate."""
        before = EXPECTED_WEIGHT if self.is_expected else self.weight * FADING
        value = (self.value * before + turns * weight) / (before + weight)
        return replace(self, value=min(max(value, 0.0), MOST), weight=before + weight, is_expected=False)

    def own_part(self, own: float) -> float:
        """What of the time of long launches is the allocation's, with so many of its processes at work."""
        return own / (own + self.value)
