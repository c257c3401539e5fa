"""The recent past of each row, for sparklines and rates."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

POINTS = 120


class History:
    """The last values of many series; one writer. What is not recorded any more is forgotten."""

    def __init__(self) -> None:
        self._series: dict[str, deque[tuple[float, float | None]]] = {}

    def record(self, at: float, values: Iterable[tuple[str, float | None]]) -> None:
        """One value of each series, at a monotonic time in seconds; series that are not named end."""
        kept: dict[str, deque[tuple[float, float | None]]] = {}
        for key, value in values:
            series = self._series.get(key) or deque(maxlen=POINTS)
            series.append((at, value))
            kept[key] = series
        self._series = kept

    def values(self, key: str) -> Sequence[float | None]:
        """The values, oldest first."""
        return [value for _at, value in self._series.get(key, ())]

    def rate(self, key: str, over_seconds: float) -> float | None:
        """Growth a second of a counter over about the last so many seconds; None where that is not known."""
        series = [(at, value) for at, value in self._series.get(key, ()) if value is not None]
        if len(series) < 2:
            return None
        last_at, last = series[-1]
        first_at, first = next(
            ((at, value) for at, value in series if last_at - at <= over_seconds and at < last_at), series[-2]
        )
        # A counter that fell was begun anew.
        return max(0.0, last - first) / (last_at - first_at)
