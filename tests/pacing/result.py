"""What came of a cell."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from tests.pacing.cell import Cell

SETTLED_POINTS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """busy: of each Pod and device, GPU seconds at each mark; marks are seconds since launching began.

    longest_stall_ms is of one launch of the first Pod, longest_later_stall_ms of one that began after the first second;
    launches are by process of the first Pod; told_launches are what its limiter says of all its functions.
    """

    cell: Cell
    marks: tuple[float, ...]
    busy: tuple[tuple[tuple[float, ...], ...], ...]
    longest_stall_ms: float
    longest_later_stall_ms: float
    launches: tuple[int, ...]
    correction: float
    told_launches: int = 0

    def percent(self, begin: float, end: float, *, pod: int = 0, device: int = 0) -> float:
        """Share of GPU time between two moments, by the marks next to them."""
        first, last = self._mark(begin), self._mark(end)
        series = self.busy[pod][device]
        return 100 * (series[last] - series[first]) / (self.marks[last] - self.marks[first])

    def error(self, *, pod: int = 0) -> float:
        """Points from what limit and neighbours leave, from one second after launching; of the worst device."""
        wanted = 100 * self.cell.reachable(pod)
        errors = [
            self.percent(1.0, self.marks[-1], pod=pod, device=device) - wanted for device in range(len(self.busy[pod]))
        ]
        return max(errors, key=abs)

    @property
    def holds(self) -> bool:
        """Is the error within what the cell allows?"""
        return abs(self.error()) <= self.cell.points

    @property
    def stall_bound_ms(self) -> float:
        """20 ms, and the own time of all launches that may wait together, over the share that the Pod can have."""
        first = self.cell.pods[0]
        return 20 + first.processes * first.longest_us / 1000 / self.cell.reachable(0)

    @property
    def settle_seconds(self) -> float:
        """From when on the mean over the rest of the run stays within a point of the limit."""
        wanted = 100 * self.cell.reachable(0)
        settled = float("inf")
        for mark in reversed(self.marks[: -len(self.marks) // 4]):
            if abs(self.percent(mark, mark + self.cell.window_seconds / 2) - wanted) > SETTLED_POINTS:
                break
            settled = mark
        return settled

    def _mark(self, moment: float) -> int:
        """The mark next to a moment; of two that are as near the earlier one."""
        after = bisect_left(self.marks, moment)
        near = range(max(after - 1, 0), min(after + 1, len(self.marks)))
        return min(near, key=lambda at: abs(self.marks[at] - moment))
