"""What came of a cell."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from dataclasses import dataclass

from tests.pacing.cell import Cell

SETTLED_POINTS = 1.0
PARTS = 10  # of a window, each of at least ten charges over the share


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """busy: of each Pod and device, GPU seconds at each mark; marks are seconds since launching began.

    longest_stall_ms is of one launch of the first Pod, longest_later_stall_ms of one that began after the first second;
    launches are by process of the first Pod; told_launches are what its limiter says of all its functions; queued: of
    each device and process of the first Pod, seconds at each mark in which something was in one of its streams.

    Of an exchange over several devices the one of which it has most is judged: all end as many rounds, so that one sets
    the pace, and on another one, where more of a round's launches run beside each other, the same rounds take less.
    """

    cell: Cell
    marks: tuple[float, ...]
    busy: tuple[tuple[tuple[float, ...], ...], ...]
    longest_stall_ms: float
    longest_later_stall_ms: float
    launches: tuple[int, ...]
    correction: float
    queued: tuple[tuple[tuple[float, ...], ...], ...] = ()
    told_launches: int = 0

    def percent(self, begin: float, end: float, *, pod: int = 0, device: int = 0) -> float:
        """Share of GPU time between two moments, by the marks next to them."""
        first, last = self._mark(begin), self._mark(end)
        series = self.busy[pod][device]
        return 100 * (series[last] - series[first]) / (self.marks[last] - self.marks[first])

    def most_percent(self, begin: float = 1.0, end: float = math.inf, *, pod: int = 0) -> float:
        """Of the device of which the Pod has most between two moments: from one second after launching on."""
        end = min(end, self.marks[-1])
        return max(self.percent(begin, end, pod=pod, device=device) for device in range(len(self.busy[pod])))

    def idle(self, begin: float = 1.0, end: float = math.inf) -> float:
        """Percent of the time in which some process of the first Pod had nothing in any stream of some device, at most:
        the sum over the devices."""
        first, last = self._mark(begin), self._mark(min(end, self.marks[-1]))
        seconds = self.marks[last] - self.marks[first]
        return sum(100 * max(1 - (each[last] - each[first]) / seconds for each in device) for device in self.queued)

    def _wanted(self, begin: float, end: float, pod: int) -> float:
        """In percent: the limit, unless neighbours leave less.

        What they leave an exchange nobody knows: it waits for devices on which it is not its turn. But it is held by
        its limit only while it has nothing queued, so it can have no more than what it has and that time; nor is it
        asked for more than its turns. What it may have in those of neighbours who wait is below the limit, so no fault.
        """
        reachable = 100 * self.cell.reachable(pod)
        if not self.cell.leaves_unknown or pod != 0:
            return reachable
        most = self.most_percent(begin, end)
        return min(100 * self.cell.pods[0].share, max(most, min(reachable, most + self.idle(begin, end))))

    def error(self, *, pod: int = 0) -> float:
        """Points from what limit and neighbours leave, from one second after launching."""
        return self._off(1.0, math.inf, pod)

    def _off(self, begin: float, end: float, pod: int = 0) -> float:
        return self.most_percent(begin, end, pod=pod) - self._wanted(begin, end, pod)

    def errors(self) -> tuple[float, ...]:
        """The same of each tenth of the time from one second on: how steady it is."""
        ends = sorted({self._mark(1.0 + (self.marks[-1] - 1.0) * part / PARTS) for part in range(PARTS + 1)})
        return tuple(self._off(self.marks[a], self.marks[b]) for a, b in itertools.pairwise(ends))

    @property
    def holds(self) -> bool:
        """Is the error within what the cell allows?"""
        return abs(self.error()) <= self.cell.points

    @property
    def stall_bound_ms(self) -> float:
        """20 ms, and the own time of all launches that may wait together, over the share that the Pod can have."""
        first = self.cell.pods[0]
        return 20 + first.on_a_device * first.longest_us / 1000 / (self._wanted(1.0, math.inf, 0) / 100)

    @property
    def settle_seconds(self) -> float:
        """From when on the mean over the rest of the run stays within a point of the limit."""
        settled = float("inf")
        for mark in reversed(self.marks[: -len(self.marks) // 4]):
            if abs(self._off(mark, mark + self.cell.window_seconds / 2)) > SETTLED_POINTS:
                break
            settled = mark
        return settled

    def _mark(self, moment: float) -> int:
        """The mark next to a moment; of two that are as near the earlier one."""
        after = bisect_left(self.marks, moment)
        near = range(max(after - 1, 0), min(after + 1, len(self.marks)))
        return min(near, key=lambda at: abs(self.marks[at] - moment))
