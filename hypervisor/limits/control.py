"""The correction of learned costs: what one allocation's work on one device really takes, over what was charged for it.

The limiter charges each launch a low quantile of what it was measured to take. That is too little where times scatter
and too much where streams overlap or neighbours take turns. The driver tells how long the processes were busy; the
ratio of busy time to charges, over the same time, is what charges have to be multiplied by.

The ratio does not depend on the correction in force, so the loop has no gain that could make it swing: the correction
follows an estimate: a ratio of sums over readings that fade, with its standard error, and it moves only when that
proves it wrong. A second rule is for accounts that don't tell the truth: where busy time stays above the share for
OVER_SECONDS, the correction is raised by what it is above, and again after as long; it is never lowered meanwhile.

Pure: no clock, no files. Times are CLOCK_MONOTONIC in seconds; shares and ratios are of GPU time, 1 is a whole device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hypervisor.limits.evidence import FADING, NO_EVIDENCE, Evidence, Sight, where_it_leads

LEAST, MOST = 1 / 8, 8.0  # what the limiter takes
IN_A_ROW_SECONDS = 0.3  # between the ends of two windows: no other lay between them
DOUBT = 2.0  # standard errors within which an estimate proves nothing against the correction in force,
DOUBT_TO_LOWER = 3.0  # and where it would open the limit
LEAST_READINGS = 2.0
READINGS_TO_LOWER = 3
READINGS_TO_LOWER_IN_A_ROW = 2
DEAD_BAND = 0.004  # of the correction
WHOLE_PERCENTS = 0.02  # what a few processes of a window may be off, as the driver tells whole percents
UNLIKE = 0.06  # of a reading: less is no other work
MOST_STEP = 2.0
RECOIL = 1.25  # times the share: a correction below 1 is taken back by as much, at once
BUSY_FLOOR = 0.005  # below this neither side says anything
MOST_BUSY = 1.05  # drivers round up; beyond it is no share
STALE_SECONDS = 5.0  # between two readings: too long for one rate
SURPRISE = 4.0  # standard deviations of one reading that mean other work than before
WINDOW_SECONDS = 1 / 6  # of the driver's samples, the shortest
MOST_RETURNED_NS = 1_000_000_000  # of charges that turned out too high, between two readings
EDGE = 0.3  # standard deviation of what a window's edges cut off a launch, in launches
OVER_POINTS = 0.05  # above the share, in readings in a row over OVER_SECONDS: the limit does not hold
OVER_SECONDS = 10.0
ABOVE_POINTS = 0.01  # of the mean above the share: then the last few readings are enough to raise the correction
BELOW_POINTS = 0.01  # and below it, to lower it
MEAN_SECONDS = 1.0
FADING_LATELY = 0.8
ALIKE = 0.2  # of the mean busy ratio: readings that scatter by no more say the same
ENOUGH_TO_HOLD_BACK = 3.0  # readings
IN_A_ROW_ALIKE = 3  # readings that say the same, each within
A_TENTH = 0.1  # of itself; and so far
FAR = 0.25  # of the correction from it,
NOT_SO_FAR = 0.05  # and where it lets more through than the share
CALM = 0.3  # of what is left to 1, with each reading that leaves it open
OWNED_UP_TO = 0.2  # of the busy time
WORD_SECONDS = 1.5  # for so long the limiter's word that work has changed leaves readings out,
NO_WORD_SECONDS = 10.0  # once in so long: it is only its word
LEVEL_SECONDS = 0.3  # windows of a sixth of a second hold one launch of 20 ms more or less


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look: the share of time that the driver saw the processes busy in the window that ended at busy_at (None: it
    does not say), GPU time charged so far at charged_at and how much of that a launch was in the mean, and the share in
    force, what was lent included. covered_ns: on top of that, the time up to busy_at in which long launches were under
    way. under_way: charged work has not ended, and none was charged, since a while before. processes: how many there
    are. off: what busy_ratio may be off beyond half a percent, in the same way in each reading (see narrowed.py).
    by_moments: charged_ns leaves out what covered_ns tells. relearned: the limiter found out in it, or just after it,
    that work takes much longer or shorter than before. unfinished_ns: of what was charged, so much had not been seen to
    end a while ago."""

    busy_ratio: float | None
    busy_at: float
    charged_ns: int
    a_launch_ns: float
    charged_at: float
    share: float
    under_way: bool = False
    covered_ns: int = 0
    processes: int = 1
    off: float = 0.0
    by_moments: bool = False
    relearned: bool = False
    unfinished_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The correction in force and what it rests on. frozen says why the last reading changed nothing, "" when it was
    used. level: the busy ratio over about the last LEVEL_SECONDS. over_since, over_until: the first and the last of the
    readings in a row that were above the share; raised_at: when the correction was raised for that."""

    value: float = 1.0
    frozen: str = ""
    over_since: float | None = None
    over_until: float | None = None
    raised_at: float | None = None
    last: Reading | None = None
    level: float | None = None
    evidence: Evidence = NO_EVIDENCE
    lately: Evidence = NO_EVIDENCE  # of the last few readings only
    mean: float = 0.0  # busy ratio over about the last MEAN_SECONDS
    surprises: tuple[Sight, ...] = ()
    row: tuple[Sight, ...] = ()  # the last few readings one by one
    relearned_at: float | None = None  # when readings were first left out because work had changed
    lowered: tuple[float, float] | None = None  # value and ratio when it was lowered, the last move of all
    led: bool = False  # lowered just now to where that leads: what was charged before says nothing of it

    @property
    def last_share(self) -> float:
        """The share in force at the last reading; a whole device before the first."""
        return self.last.share if self.last is not None else 1.0

    @property
    def does_not_hold(self) -> bool:
        """Has the busy time been above the share for so long that the limit can't be said to hold?"""
        return (
            self.over_since is not None
            and self.over_until is not None
            and self.over_until - self.over_since >= OVER_SECONDS
        )

    @property
    def is_unseen(self) -> bool:
        """Does the driver see nothing of what is charged, so that nothing it says shows that the limit holds?"""
        return self.frozen == _SEES_NOTHING

    @property
    def settled(self) -> float:
        """What to take once nobody corrects any more: the likeliest value, not the last one that was proven.

        While there will be more readings it is right to wait for a proof. After the last one an error stays for good,
        so what they say counts, unless it is no further off than chance may have it: by the standard error, and by what
        whole percents leave open, any of which is as likely. As it is where somebody does not tell the truth.
        """
        later = self.evidence.later_half
        if later.count < LEAST_READINGS or later.u < BUSY_FLOOR * later.count or self.raised_at is not None:
            return self.value
        off = self._off(later)
        if abs(later.ratio - self.value) <= max(math.hypot(later.error, off / math.sqrt(3)), DEAD_BAND * self.value):
            return self.value
        return _within(min(max(later.ratio, self.value / MOST_STEP), self.value * MOST_STEP))

    @property
    def _is_above(self) -> bool:
        """Is more than the share used now? Then it is no time to let more through: what seems to be charged too much
        waits to run, behind long launches for instance."""
        now = self.last is not None and (self.level or 0.0) > self.last.share + ABOVE_POINTS
        return now or self.does_not_hold

    @property
    def _is_owned_up_to(self) -> bool:
        """Do the accounts say what the driver sees? Then it is work that was let go before its cost was known, which is
        owed, and a higher correction would make it owed many times."""
        lately = self.lately
        return lately.count >= ENOUGH_TO_HOLD_BACK and abs(lately.ratio - 1) <= OWNED_UP_TO

    def after(self, reading: Reading) -> Correction:
        """The correction after one more reading. What can't be right changes nothing and is no evidence."""
        last = self.last
        why = _unusable(reading, last)
        if why:
            keep = last if why == _SAME else reading
            if why == _COUNTED_ANEW:
                return replace(self, frozen=why, last=keep, evidence=NO_EVIDENCE, lately=NO_EVIDENCE, row=())
            return replace(self, frozen=why, last=keep)
        assert last is not None
        assert reading.busy_ratio is not None
        x, share = min(reading.busy_ratio, 1.0), reading.share
        passed = reading.busy_at - last.busy_at  # above 0, as _unusable() sees to
        level = x if self.level is None else self.level + (x - self.level) * -math.expm1(-passed / LEVEL_SECONDS)
        over = level > share + OVER_POINTS
        watched = replace(
            self,
            last=reading,
            level=level,
            mean=self.mean + (x - self.mean) * -math.expm1(-passed / MEAN_SECONDS),
            over_since=(self.over_since if self.over_since is not None else reading.busy_at) if over else None,
            over_until=reading.busy_at if over else None,
        )
        if (
            watched.does_not_hold
            and not self._is_owned_up_to
            and (self.raised_at is None or reading.busy_at - self.raised_at >= OVER_SECONDS)
        ):
            raised = _within(self.value * min(level / share, MOST_STEP))
            watched = replace(watched, value=raised, raised_at=reading.busy_at, evidence=NO_EVIDENCE)
        in_a_row = passed < IN_A_ROW_SECONDS  # then held_back() is as quick, and knows what was charged
        if self.value < 1 and level > share * RECOIL + OVER_POINTS and not in_a_row:
            # What was learned to cost too much costs less now; charges are right again before more is learned.
            watched = replace(watched, value=min(1.0, self.value * level / share), evidence=NO_EVIDENCE)
        left_out_at = self.relearned_at
        if left_out_at is None or reading.busy_at - left_out_at >= NO_WORD_SECONDS:
            left_out_at = reading.busy_at
        if reading.relearned and reading.busy_at - left_out_at <= WORD_SECONDS:
            # Charged as what it was, it took what it is now.
            watched = replace(watched, relearned_at=left_out_at, surprises=(), row=(), lately=NO_EVIDENCE)
            return replace(watched, frozen="work that has changed")
        if self.led:
            return replace(watched, led=False, frozen="charges of before it was lowered")
        u = (reading.charged_ns - last.charged_ns) / 1e9 / (reading.charged_at - last.charged_at)
        u = max(u + (reading.covered_ns - last.covered_ns) / 1e9 / passed, 0.0)
        if u == 0 and reading.by_moments and reading.under_way:
            return replace(watched, frozen="work that is told of when it has ended")
        if u == 0 and reading.under_way and last.under_way:
            u = 1.0  # one piece of work fills the window, and will be charged all of it when it ends
        if u < BUSY_FLOOR and x < BUSY_FLOOR:
            return replace(watched, frozen="nothing to do")
        if x == 0.0 and last.busy_ratio == 0.0 and u > 2 * BUSY_FLOOR + reading.off:
            # Charged a second time, and not seen: costs are never too high by so much, and what waited runs by now.
            return replace(watched, frozen=_SEES_NOTHING, surprises=(), row=(), lately=NO_EVIDENCE)
        one = min(max(reading.a_launch_ns / 1e9 / WINDOW_SECONDS, 0.0), 1.0)
        sight = Sight(x, u, EDGE * one, follows=in_a_row, off=reading.off)
        row = (*self.row, sight)[-IN_A_ROW_ALIKE:] if in_a_row else ()
        watched = replace(watched, lately=watched.lately.after(sight, fade=FADING_LATELY), row=row)
        return watched.told_by_a_row(share) or watched.held_back(share) or watched.weighed(sight)

    def told_by_a_row(self, share: float) -> Correction | None:
        """Moved by the last three readings where all say the same, far from what is in force: other work, for which no
        earlier reading says anything, and fading alone would forget too slowly; or not so far, where the limit is not
        held meanwhile. None where it is not so."""
        if len(self.row) < IN_A_ROW_ALIKE:
            return None
        x, u = sum(each.x for each in self.row), sum(each.u for each in self.row)
        if u < BUSY_FLOOR * len(self.row):
            return None
        ratio = x / u
        alike = all(abs(each.x - ratio * each.u) <= max(A_TENTH * each.x, WHOLE_PERCENTS / 2) for each in self.row)
        evidence = NO_EVIDENCE
        for each in self.row:
            evidence = evidence.after(each)
        far = abs(ratio - self.value) - self._off(evidence)
        not_held = ratio > self.value and x > (share + ABOVE_POINTS) * len(self.row)
        if (
            not alike
            or far <= (NOT_SO_FAR if not_held else FAR) * self.value
            or (self.does_not_hold and ratio < self.value)
        ):
            return None
        return replace(self, evidence=evidence, lately=evidence, surprises=()).moved_to(ratio)

    def held_back(self, share: float) -> Correction | None:
        """Raised by the last few readings alone, where they say that the limit is not held now, or lowered where the
        share is not reached; None where they don't prove it.

        What work really takes depends on what runs beside it, so the readings of before may be no help. Only where
        windows come in a row: readings once a second are too few to be so quick.
        """
        lately = self.lately
        if not lately.last.follows or lately.count < ENOUGH_TO_HOLD_BACK or lately.u <= 0:
            return None
        ratio = lately.ratio
        dead = self._dead(lately)
        raises = self.mean > share + ABOVE_POINTS and ratio - self.value > max(DOUBT * lately.error, dead)
        lowers = self.mean < share - BELOW_POINTS and self.value - ratio > max(DOUBT_TO_LOWER * lately.error, dead)
        lowers = lowers and lately.scatter < ALIKE * lately.x / lately.count
        if not raises and not (lowers and not self._is_above):
            return None
        aim = ratio + self._off(lately) * (-1 if raises else 1)
        return replace(self, evidence=lately, surprises=()).moved_to(aim)

    def _off(self, evidence: Evidence) -> float:
        """What the ratio may be off by, so that no more than the rest of a difference is proven: several whole percents
        may all be off in the same way, which no number of readings takes away."""
        return evidence.off / evidence.u

    def _dead(self, evidence: Evidence) -> float:
        """What of a difference is no reason to move."""
        return max(DEAD_BAND * self.value, self._off(evidence))

    def weighed(self, new: Sight) -> Correction:
        """With one more reading as evidence."""
        before = self.evidence
        if before.count > LEAST_READINGS:
            allowed = max(SURPRISE * before.scatter, UNLIKE * new.x, WHOLE_PERCENTS)
            if abs(new.x - before.ratio * new.u) > allowed:
                strange = (*self.surprises, new)
                if len(strange) < 2:
                    return replace(self, frozen="a reading unlike those before", surprises=strange)
                # Two in a row: other work than before, for which the old readings say nothing.
                evidence = NO_EVIDENCE
                for each in strange:
                    evidence = evidence.after(each)
                return replace(self, surprises=(), evidence=evidence).decided()
        return replace(self, surprises=(), evidence=before.after(new)).decided()

    def _less_far(self, evidence: Evidence) -> float:
        """The correction, nearer to 1 as far as whole percents leave that open: it may have been found out while costs
        were still being learned, and no reading would ever disprove it."""
        off = self._off(evidence) - DOUBT_TO_LOWER * evidence.error
        if off <= 0 or evidence.count < ENOUGH_TO_HOLD_BACK or self.does_not_hold:
            return self.value
        aim = min(max(1.0, evidence.ratio - off), evidence.ratio + off)
        return self.value + (aim - self.value) * CALM

    def decided(self) -> Correction:
        """With the value that the evidence demands."""
        evidence = self.evidence
        if evidence.count < LEAST_READINGS * FADING or evidence.u < BUSY_FLOOR * evidence.count:
            return replace(self, frozen="too few readings with charges")
        lowers = evidence.ratio < self.value
        doubt = DOUBT_TO_LOWER if lowers else DOUBT
        if abs(evidence.ratio - self.value) <= max(doubt * evidence.error, self._dead(evidence)):
            return replace(self, value=self._less_far(evidence), frozen="")
        wanted = READINGS_TO_LOWER_IN_A_ROW if evidence.last.follows else READINGS_TO_LOWER
        if lowers and evidence.count < sum(FADING**age for age in range(wanted)):
            return replace(self, frozen="too few readings to lower it")
        aim = evidence.ratio + self._off(evidence) * (1 if lowers else -1)
        if self._is_above and aim < self.value:
            return replace(self, frozen="the driver sees more than the share")
        return self.moved_to(aim)

    def moved_to(self, aim: float) -> Correction:
        """With a value that is proven, in steps that are not too large; lowered for the second time in a row while the
        share is not reached, with the one that this leads to."""
        now = (self.value, aim)
        leads_to = aim
        if self.lowered is not None and aim < self.value and self.mean < self.last_share - BELOW_POINTS:
            leads_to = where_it_leads(self.lowered, now)
        value = _within(min(max(leads_to, self.value / MOST_STEP), self.value * MOST_STEP))
        moved = replace(self, value=value, frozen="", lowered=now if value < self.value else None)
        if leads_to < aim:
            return replace(moved, lowered=None, led=True, evidence=NO_EVIDENCE, lately=NO_EVIDENCE, row=())
        if moved.lowered is not None and self.mean < self.last_share - BELOW_POINTS and self.lately.last.follows:
            # What that leads to is told by readings from now on; those of before would say that it leads half as far.
            return replace(moved, evidence=NO_EVIDENCE, lately=NO_EVIDENCE, row=())
        return moved


_SAME = "the driver says nothing new"
_SEES_NOTHING = "the driver sees nothing of the work"
_COUNTED_ANEW = "charges that are counted otherwise than before"


def _unusable(reading: Reading, last: Reading | None) -> str:
    """Why nothing follows from a reading; "" when it can be used."""
    numbers = (reading.busy_at, reading.charged_at, reading.share, reading.a_launch_ns, reading.off)
    if reading.busy_ratio is None:
        return "the driver does not say how busy the processes are"
    if not all(math.isfinite(number) for number in (*numbers, reading.busy_ratio)):
        return "a figure that is no number"
    least = min(reading.charged_ns, reading.off)
    if not 0 <= reading.busy_ratio <= MOST_BUSY or least < 0 or not 0 < reading.share <= 1:
        return "a figure that can't be"
    if last is None:
        return "the first reading"
    if reading.busy_at > reading.charged_at + STALE_SECONDS:
        return "a reading from the future"
    if last.busy_ratio is None or not math.isfinite(last.busy_at + last.charged_at):
        return "no reading before it"
    if reading.busy_at <= last.busy_at or reading.charged_at <= last.charged_at:
        return _SAME
    if reading.by_moments != last.by_moments:
        return _COUNTED_ANEW
    if reading.charged_at - last.charged_at > STALE_SECONDS or reading.charged_at - reading.busy_at > STALE_SECONDS:
        return "a reading too long after the one before"
    if reading.charged_ns < last.charged_ns - MOST_RETURNED_NS or reading.covered_ns < last.covered_ns:
        return "charges that went back"
    return ""


def _within(value: float) -> float:
    return min(max(value, LEAST), MOST)
