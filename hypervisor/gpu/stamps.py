"""Which samples of processes are news, and when they were made by our clock, from the driver's stamps. Pure.

A driver gives what was stamped after a moment that it is told. It stamps with wall time, or with a clock of its own
that was set by wall time once; either may be set, back or forward, at any moment, and a stamp may be garbage. So who
asks from the newest stamp on may hear nothing for an hour, and who believes any stamp may do so because of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypervisor.gpu.wire import Sample

AHEAD_US = 1_000_000  # a stamp may be so far ahead of the clock
LATE_US = 1_500_000  # and, of a process that is at work, so far behind: the longest window, and some time to ask
# Answers whose stamps go on with the clock, and are as far off it each time: the driver's clock is another one.
IN_A_ROW = 3
FIRST_SAMPLES_US = 2_000_000
SILENCE_SECONDS = 2.0
NO_PERCENT = -1  # of a sample that can't be believed
MOST_KNOWN = 4096  # processes


@dataclass(frozen=True, slots=True)
class _Row:
    """Answers in a row that were equally far off the clock."""

    count: int = 0
    newest_us: int = 0
    lead_us: int = 0

    def after(self, newest_us: int, lead_us: int) -> _Row:
        if newest_us == self.newest_us:
            return self  # nothing new
        follows = newest_us > self.newest_us and abs(lead_us - self.lead_us) <= AHEAD_US
        return _Row(self.count + 1 if follows else 1, newest_us, lead_us)


@dataclass(slots=True)
class Stamps:
    """What is known of the stamps of one driver's samples of one GPU. offset_us: of its clock to wall time; 0 unless
    they are further apart than stamps may be."""

    offset_us: int = 0
    _newest_us: int = 0  # of all that was believed; what is asked from
    _heard_at: float | None = None
    _told: dict[int, int] = field(default_factory=dict)  # by pid, the stamp that was told last
    _row: _Row = _Row()

    def since(self, *, wall_us: int, now: float) -> int:
        """From which stamp on to ask. now: CLOCK_MONOTONIC, in seconds."""
        theirs = wall_us + self.offset_us
        if self._heard_at is None:
            self._heard_at = now
        if self._newest_us > theirs + AHEAD_US:
            self._newest_us = theirs - LATE_US  # the clock was set back
        elif now - self._heard_at > SILENCE_SECONDS:
            # Perhaps theirs was. Nobody is told a sample twice by that.
            self._newest_us = min(self._newest_us, theirs, wall_us)
        return max(self._newest_us, 0)

    def news(self, samples: Sequence[Sample], *, wall_us: int, now: float) -> list[Sample]:
        """Samples that were not told before, stamped with wall time. Of a process with nothing but a sample of the
        future the share is NO_PERCENT: who was busy is told, and not how much. Left out, it would be taken for idle."""
        latest = wall_us + self.offset_us + AHEAD_US
        first = self._newest_us == 0
        fresh = [each for each in samples if each.time_us > 0 and self._told.get(each.pid) != each.time_us]
        sane = [each for each in fresh if self._newest_us < each.time_us <= latest]
        future = {each.pid: each.time_us for each in samples if each.time_us > latest}
        told = [Sample(each.pid, each.time_us - self.offset_us, each.busy_percent) for each in sane]
        told_pids = {each.pid for each in sane}
        if first:
            # The first answer reaches back as far as the driver remembers; old activity is no news.
            told = [each for each in told if each.time_us >= wall_us - FIRST_SAMPLES_US]
        if sane:
            self._newest_us = max(each.time_us for each in sane)
            self._heard_at = now
            if len(self._told) > MOST_KNOWN:
                self._told.clear()
            self._told.update((each.pid, each.time_us) for each in sane)
        if not (first and sane):
            self._compare(max((each.time_us for each in sane), default=max(future.values(), default=None)), wall_us)
        return told + [Sample(pid, wall_us, NO_PERCENT) for pid in sorted(future) if pid not in told_pids]

    def _compare(self, newest_us: int | None, wall_us: int) -> None:
        """Hold the driver's clock against ours."""
        if newest_us is None:
            return
        lead_us = newest_us - wall_us
        if -LATE_US <= lead_us - self.offset_us <= AHEAD_US:
            self._row = _Row()
            return
        self._row = self._row.after(newest_us, lead_us)
        if self._row.count >= IN_A_ROW:
            self.offset_us = 0 if -LATE_US <= lead_us <= AHEAD_US else lead_us
            self._row = _Row()
