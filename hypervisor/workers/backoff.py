"""How long to wait before a worker is started again; pure."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_DOUBLINGS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The wait doubles with each failure in a row, from first to most; a run of reset_seconds ends the row."""

    first_seconds: float = 0.25
    most_seconds: float = 60.0
    reset_seconds: float = 60.0

    def delay(self, failures: int) -> float:
        """Seconds to wait after so many ends in a row (1: the first)."""
        return min(self.first_seconds * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS), self.most_seconds)

    def failures_after(self, failures: int, ran_seconds: float) -> int:
        """The ends in a row, with the one of a run that lasted so long."""
        return 1 if ran_seconds >= self.reset_seconds else failures + 1
