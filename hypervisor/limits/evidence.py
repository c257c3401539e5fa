"""What readings of the driver say about charges, taken together: sums that fade, the ratio and how sure it is.

Pure. Shares and ratios are of GPU time, 1 is a whole device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FADING = 0.9  # of what earlier readings weigh, with each new one,
FADING_IN_A_ROW = 0.94  # and where windows come one after the other, six a second
ENOUGH_FOR_NEIGHBOURS = 6  # readings
LEAST_MOVE = 0.03  # of a correction: less says more of how readings scatter than of where two moves lead
MOST_KEPT = 32  # readings
MOST_ELASTIC = 0.9  # beyond, two moves are too inexact to say where it ends


@dataclass(frozen=True, slots=True)
class Sight:
    """One reading as evidence: busy ratio x, rate of charges u, what the window's edges blur. follows: its window began
    where the one before ended, so that what that cut off a launch is in this one. off: of x, as of a reading."""

    x: float
    u: float
    edge: float
    follows: bool
    off: float = 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """Faded sums over readings: their number, x, u, products, products with the reading before, edges, offs."""

    count: float = 0.0
    x: float = 0.0
    u: float = 0.0
    xx: float = 0.0
    xu: float = 0.0
    uu: float = 0.0
    xx_before: float = 0.0
    xu_before: float = 0.0
    uu_before: float = 0.0
    edges: float = 0.0
    off: float = 0.0
    last: Sight = Sight(0.0, 0.0, 0.0, follows=False)
    recent: tuple[Sight, ...] = ()  # readings one by one

    def after(self, new: Sight, *, fade: float | None = None) -> Evidence:
        fade = fade or (FADING_IN_A_ROW if new.follows else FADING)
        before = self.last if new.follows else Sight(0.0, 0.0, 0.0, follows=False)
        return Evidence(
            self.count * fade + 1,
            self.x * fade + new.x,
            self.u * fade + new.u,
            self.xx * fade + new.x * new.x,
            self.xu * fade + new.x * new.u,
            self.uu * fade + new.u * new.u,
            self.xx_before * fade + new.x * before.x,
            self.xu_before * fade + new.x * before.u + new.u * before.x,
            self.uu_before * fade + new.u * before.u,
            self.edges * fade + (0.0 if new.follows else new.edge * new.edge),
            self.off * fade + new.off,
            new,
            (*self.recent, new)[-MOST_KEPT:],
        )

    @property
    def later_half(self) -> Evidence:
        """Of the readings, unfaded: the first are of a program that has just begun, or of work that has changed."""
        later = NO_EVIDENCE
        for sight in self.recent[len(self.recent) // 2 :]:
            later = later.after(sight, fade=1.0)
        return later

    @property
    def ratio(self) -> float:
        return self.x / self.u if self.u > 0 else math.inf

    @property
    def _squares(self) -> float:
        return max(self.xx - 2 * self.ratio * self.xu + self.ratio**2 * self.uu, 0.0)

    @property
    def scatter(self) -> float:
        """Standard deviation of a reading's x around what the ratio says; at least what its window's edges explain."""
        if self.count <= 1:
            return math.inf
        return math.sqrt(self.last.edge**2 + self._squares / (self.count - 1))

    @property
    def error(self) -> float:
        """Standard error of the ratio. What one window has too much the next one has too little, which the products
        of neighbours take away again; what is left are the edges of the whole row."""
        if self.count <= 1:
            return math.inf
        squares = self._squares * self.count / (self.count - 1)
        if self.count > ENOUGH_FOR_NEIGHBOURS:
            squares += 2 * (self.xx_before - self.ratio * self.xu_before + self.ratio**2 * self.uu_before)
        return math.sqrt(max(squares, 0.0) + self.edges + 2 * self.last.edge**2) / self.u


NO_EVIDENCE = Evidence()


def where_it_leads(before: tuple[float, float], now: tuple[float, float]) -> float:
    """The correction that its own lowering leads to, from what it was and what the ratio was, twice in a row.

    More launches that run beside each other, or in turns that would have ended early, take no more time, so that the
    ratio falls with each lowering and step by step would take seconds. With ratio = a correction^e from both moves, the
    one where they are the same.
    """
    (value_before, ratio_before), (value, ratio) = before, now
    if not LEAST_MOVE < 1 - value / value_before < 1 or not LEAST_MOVE < 1 - ratio / value < 1 or ratio >= ratio_before:
        return ratio
    elasticity = min(math.log(ratio / ratio_before) / math.log(value / value_before), MOST_ELASTIC)
    return value * math.pow(ratio / value, 1 / (1 - elasticity))
