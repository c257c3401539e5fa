"""What others' turns, as they were told, left of long launches, against what those really had.

The limiter takes others' turns off with each launch, by what was last told of them: that is older than the launch, and
while limits begin to hold turns change; and how many of its own processes had turns it sees now and then only. In the
sum over some seconds the driver knows what the allocation had. When nobody tells of turns any more, the limiter goes on
with what launches took before, set right by this. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

FADING = 0.95  # of what earlier windows weigh: they are of some seconds, as the launches of which a mean is kept
LEAST, MOST = 0.5, 2.0


@dataclass(frozen=True, slots=True)
class Left:
    """Seconds, fading: what the allocation had of long launches, and what was taken to be left for them."""

    had: float = 0.0
    taken_for: float = 0.0

    def after(self, *, busy: float, brief: float, told: float) -> Left:
        """With one more window: how long the driver saw the allocation busy, what of that was brief launches, and what
        the limiter told to be left of long ones. Some of it is told later and some was charged earlier than it ran,
        which the sum makes good."""
        return Left(self.had * FADING + busy - brief, self.taken_for * FADING + told)

    @property
    def ratio(self) -> float | None:
        """What was taken to be left has to be multiplied by this; None where nothing is known."""
        return min(max(self.had / self.taken_for, LEAST), MOST) if self.taken_for > 0 else None
