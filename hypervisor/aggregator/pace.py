"""A token bucket: how long to pause before the next message is taken."""

from __future__ import annotations

from collections.abc import Callable


class Pace:
    """Lets `at_once` pass, then `per_second`. Keeps two numbers, so that there may be one for each stream."""

    __slots__ = ("_at", "_at_once", "_monotonic", "_per_second", "_tokens")

    def __init__(self, *, per_second: float, at_once: float, monotonic: Callable[[], float]) -> None:
        self._per_second = per_second
        self._at_once = at_once
        self._monotonic = monotonic
        self._tokens = at_once
        self._at = monotonic()

    @property
    def ready(self) -> int:
        """How many may be taken now without a pause."""
        refilled = self._tokens + (self._monotonic() - self._at) * self._per_second
        return max(0, int(min(self._at_once, refilled)))

    def take(self) -> float:
        """Takes one; returns the seconds to pause first, 0 mostly."""
        now = self._monotonic()
        self._tokens = min(self._at_once, self._tokens + (now - self._at) * self._per_second) - 1
        self._at = now
        return max(0.0, -self._tokens / self._per_second)
