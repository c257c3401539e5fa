"""The circuit breaker of a published figure, and of the node's capacity. Pure.

A reading that can't be believed never replaces the last good one. After some of them in a row the circuit opens: the
figure stands, with its age, until as many good readings in a row have closed it again; one good reading among bad ones
is as likely to be a lie as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

BAD_READINGS = 3
GOOD_READINGS = 3
# More of the node's capacity than this goes at once only when a second source says so.
MOST_LOSS = 0.2
# Falls of several cards within so many seconds are one: readings of a driver that lies come card by card.
TOGETHER_SECONDS = 60.0


class CircuitState(Enum):
    """The values are those of the metric."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


@dataclass(frozen=True, slots=True)
class Circuit:
    """One figure's circuit; bad and good count readings in a row, trips how often it opened."""

    state: CircuitState = CircuitState.CLOSED
    bad: int = 0
    good: int = 0
    trips: int = 0

    def after_good(self) -> Circuit:
        """The circuit after a reading that can be believed."""
        if self.state is CircuitState.CLOSED:
            return self if self.bad == 0 else replace(self, bad=0)
        good = self.good + 1
        if good >= GOOD_READINGS:
            return Circuit(trips=self.trips)
        return replace(self, state=CircuitState.HALF_OPEN, good=good, bad=0)

    def after_bad(self) -> Circuit:
        """The circuit after one that can't."""
        bad = self.bad + 1
        if self.state is not CircuitState.CLOSED:
            return replace(self, state=CircuitState.OPEN, bad=bad, good=0)
        if bad >= BAD_READINGS:
            return Circuit(CircuitState.OPEN, bad, 0, self.trips + 1)
        return replace(self, bad=bad)


CLOSED = Circuit()


@dataclass(slots=True)
class Panel:
    """The circuits of one device during one reading, and what was wrong with it."""

    circuits: dict[str, Circuit]
    problems: list[str] = field(default_factory=list)
    rejections: list[tuple[str, str]] = field(default_factory=list)  # field and reason

    def lets_pass(self, name: str, *, known: bool, problem: str, reason: str) -> bool:
        """Whether a reading may be published; known: there is a value, and not only the word that there is none."""
        circuit = self.circuits.get(name, CLOSED)
        if problem:
            self.problems.append(problem)
            self.rejections.append((name, reason))
            self.circuits[name] = circuit.after_bad()
            return True  # the judge has put the last good value in its place
        if not known:
            return True
        circuit = circuit.after_good()
        self.circuits[name] = circuit
        if circuit.state is CircuitState.CLOSED:
            return True
        self.problems.append(f"{name.replace('_', ' ')}: believed again after {GOOD_READINGS} good readings")
        return False


@dataclass(slots=True)
class CapacityGuard:
    """Holds back a fall of the node's capacity that only the driver tells of.

    accepted: by UUID of the card, the bytes that are published; recent: those of cards before a fall that was believed
    a little while ago, with the time (CLOCK_MONOTONIC).
    """

    accepted: dict[str, int] = field(default_factory=dict)
    recent: dict[str, tuple[int, float]] = field(default_factory=dict)
    holding: dict[str, int] = field(default_factory=dict)  # by UUID, what the driver says
    trips: int = 0

    def check(self, told: Mapping[str, int], confirmed: Callable[[str], bool], *, now: float) -> Mapping[str, int]:
        """What is to be published in the place of what is told, by UUID.

        told has the believed bytes of all cards that were read. confirmed says whether a second source knows of a
        card's loss.
        """
        self.recent = {
            uuid: fall
            for uuid, fall in self.recent.items()
            if now - fall[1] < TOGETHER_SECONDS and told.get(uuid, 0) < fall[0] and not confirmed(uuid)
        }
        before = self.accepted | {uuid: value for uuid, (value, _) in self.recent.items()}
        said = {**{uuid: self.accepted[uuid] for uuid in self.recent}, **told}
        fallen = {
            uuid: said[uuid]
            for uuid, value in before.items()
            if uuid in said and said[uuid] < value and not confirmed(uuid)
        }
        loss = sum(before[uuid] - value for uuid, value in fallen.items())
        if loss <= MOST_LOSS * sum(before.values()):
            for uuid in fallen.keys() - self.recent.keys():
                self.recent[uuid] = before[uuid], now
            fallen = {}
        else:
            self.accepted.update({uuid: before[uuid] for uuid in fallen})
            self.recent.clear()
        self.trips += bool(fallen.keys() - self.holding.keys())
        # Between two falls that agree, the driver's word is not believed anyway, and what is held stays held.
        still = {uuid: value for uuid, value in self.holding.items() if uuid not in told}
        self.holding = {**still, **fallen}
        self.accepted.update({uuid: value for uuid, value in told.items() if uuid not in fallen})
        return {uuid: self.accepted[uuid] for uuid in fallen}

    @property
    def summary(self) -> str:
        """What is held back, "" when nothing is."""
        if not self.holding:
            return ""
        before = sum(self.accepted.values())
        loss = sum(self.accepted[uuid] - value for uuid, value in self.holding.items())
        return (
            f"the driver says that {len(self.holding)} GPUs have lost {loss} of the node's {before} bytes of VRAM, and"
            " neither the bus nor another driver explains it; the capacity from before stands"
        )
