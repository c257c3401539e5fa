"""What others' turns, as they were told, left of long launches, against what those really had.

The limiter takes others' turns off with each launch, by what was last told of them: that is older than the launch, and
while limits begin to hold turns change. In the sum over some seconds the driver knows what the allocation had. When
nobody tells of turns any more, the limiter goes on with what launches took before, set right by this. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FADING = 0.95  # of what earlier windows weigh: they are of some seconds, as the launches of which a mean is kept
LEAST, MOST = 0.5, 2.0


@dataclass(frozen=True, slots=True)
class Left:
    """Seconds, fading: what the allocation had of long launches, and what was taken to be left for it. told: the turns
    that were in force in the last windows, the older one first."""

    had: float = 0.0
    taken_for: float = 0.0
    told: tuple[float, float] = (0.0, 0.0)

    def telling(self, turns: float) -> Left:
        """With these told from now on."""
        return replace(self, told=(self.told[1], turns))

    def after(self, *, had: float, laid: float, own: float) -> Left:
        """With the window before the last, in which long launches were under way for so long, with so many of the
        allocation's processes at work."""
        left = laid * own / (own + self.told[0])
        return replace(self, had=self.had * FADING + had, taken_for=self.taken_for * FADING + left)

    @property
    def ratio(self) -> float | None:
        """What was taken to be left has to be multiplied by this; None where nothing is known."""
        return min(max(self.had / self.taken_for, LEAST), MOST) if self.taken_for > 0 else None
