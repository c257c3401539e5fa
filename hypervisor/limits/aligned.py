"""What an allocation says it did, at the moments that the driver's windows are of.

A launch is charged when it starts. Of long ones, a window of a sixth of a second holds some that were charged before
it, and the charges of some that run after it, so charges and busy time of a window have little to do with each other.
Where a long launch was is on the line of moments a little later; so each reading waits for the next window.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypervisor.limits.control import Reading
from hypervisor.limits.left import Left
from hypervisor.limits.turns import Seen, Turns
from hypervisor.limits.usage import UsageFile, WorkAccount

_NS = 1_000_000_000
MOST_BRIEF_NS = 4_000_000.0  # a longer launch is on the line of moments
LOOKED_BACK = 60  # readings before it is judged who writes: ten seconds
MOST_MISSING_NS = 1_000_000_000  # beside the launches that are under way
UNDER_WAY = 2  # launches of a process that may be charged and not yet on the line
TOLD_APART = 8  # a part of the charges as large as this is noticed


@dataclass(frozen=True, slots=True)
class _Waiting:
    reading: Reading
    work: WorkAccount
    others: float = 1.0


@dataclass(slots=True)
class Aligned:
    """The readings of one allocation on one device, and what they say of others' turns. clock_ahead: of the limiter's
    clock to that of the readings."""

    clock_ahead: float = 0.0
    turns: Turns = field(default_factory=Turns)
    left: Left = field(default=Left(), init=False)
    _waiting: _Waiting | None = field(default=None, init=False)
    _last: _Waiting | None = field(default=None, init=False)
    _others: float = field(default=1.0, init=False)
    _covered_ns: float = field(default=0.0, init=False)
    _since: tuple[int, WorkAccount, int] | None = field(default=None, init=False)
    _mixed: bool = field(default=False, init=False)

    def after(self, reading: Reading, usage: UsageFile, device: int) -> Reading | None:
        """The reading of the window before, with what was done in it; None when there was none.

        reading is of the window that has ended now, with charged_ns as usage says it. Where the limiter of some
        processes is of a version that tells no moments, that is all that is known, and reading itself is given. Raises
        LimitFileError.
        """
        work = usage.work(device)
        if work is None or self._others_write_too(reading, work):
            self._waiting = self._last = None
            return reading
        brief = replace(
            reading,
            charged_ns=work.brief_ns,
            a_launch_ns=min(reading.a_launch_ns, MOST_BRIEF_NS),
            by_moments=True,
        )
        ready, self._waiting = self._waiting, _Waiting(brief, work, self._others)
        self._others = 1.0
        if ready is None:
            return None
        last, self._last = self._last, ready
        relearned = last is not None and work.relearned_at_ns != last.work.relearned_at_ns
        if last is not None and ready.reading.busy_at > last.reading.busy_at:
            begin, end = (round((each.reading.busy_at + self.clock_ahead) * _NS) for each in (last, ready))
            self._covered_ns += self._own(last, ready, usage.covered_ns(device, begin, end))
        return replace(ready.reading, covered_ns=round(self._covered_ns), relearned=relearned)

    def expect(self, turns: float, busy: float) -> None:
        """Of the window whose reading comes next: others' turns as they look from outside, which is all there is until
        a long launch tells; and for what share of it they had the device at the most."""
        self._others = busy
        self.turns = self.turns.expected(turns)

    def _others_write_too(self, reading: Reading, work: WorkAccount) -> bool:
        """Is a good part of the charges of processes that tell no moments? A launch is charged before it is on the
        line, so some are always missing there, but no more however long one looks."""
        charged, before, count = self._since or (reading.charged_ns, work, 0)
        told = work.brief_ns - before.brief_ns + work.laid_ns - before.laid_ns
        passed = reading.charged_ns - charged
        missing = passed - told
        # Where launches differ, those under way are much longer than the mean.
        late = MOST_MISSING_NS + max(UNDER_WAY * reading.processes * reading.a_launch_ns, 2 * reading.unfinished_ns)
        if count >= LOOKED_BACK and (missing > late or passed > TOLD_APART * late):
            self._mixed = missing > late and TOLD_APART * missing > passed
            self._since = (reading.charged_ns, work, 0)
        else:
            self._since = (charged, before, count + 1)
        return self._mixed

    def _own(self, last: _Waiting, ready: _Waiting, covered_ns: int) -> float:
        """What of the covered time of a window was the allocation's."""
        window = ready.reading.busy_at - last.reading.busy_at
        laid = ready.work.laid_ns - last.work.laid_ns
        own = (ready.work.crowd_ns - last.work.crowd_ns) / laid if laid > 0 else 1.0
        if ready.reading.busy_ratio is not None and 0 <= ready.reading.busy_ratio <= 1:
            seen = Seen(
                busy=ready.reading.busy_ratio * window,
                brief=(ready.work.brief_ns - last.work.brief_ns) / _NS,
                laid=covered_ns / _NS,
                own=own,
                window=window,
                off=ready.reading.off,
                others=ready.others,
            )
            if seen.had is not None:
                told = (ready.work.turns_ns - last.work.turns_ns) / _NS
                self.left = self.left.after(busy=seen.busy, brief=seen.brief, told=told)
            self.turns = self.turns.after(seen)
        return covered_ns * self.turns.own_part(max(own, 1.0))
