"""The correction against a plant: charges are wrong by a factor, readings are as coarse as a driver's."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from hypervisor.limits.control import LEAST, MOST, OVER_SECONDS, Correction, Reading
from hypervisor.limits.evidence import LEAST_MOVE, where_it_leads
from hypervisor.limits.narrowed import off_of

NS = 1_000_000_000


class Plant:
    """A workload that uses all of its share as the limiter counts it; a launch takes `factor` of what it is charged."""

    def __init__(self, *, share: float, factor: float, noise: float = 0.0, launch_seconds: float = 0.0001) -> None:
        self.share, self.factor, self.noise, self.launch_seconds = share, factor, noise, launch_seconds
        self.random = random.Random(5)
        self.correction = Correction()
        self.at, self.charged = 100.0, 0.0
        self.achieved: list[float] = []

    def second(self) -> None:
        rate = self.share / self.correction.value
        busy = min(rate * self.factor, 1.0)
        self.achieved.append(busy)
        self.at += 1.0
        self.charged += min(rate, 1 / self.factor)
        seen = round(100 * min(max(busy + self.random.gauss(0, self.noise), 0.0), 1.0)) / 100
        self.correction = self.correction.after(self.reading(seen))

    def reading(self, seen: float | None) -> Reading:
        return Reading(
            busy_ratio=seen,
            busy_at=self.at - 0.1,
            charged_ns=round(self.charged * NS),
            a_launch_ns=self.launch_seconds * NS,
            charged_at=self.at,
            share=self.share,
        )

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second()


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75, 0.9])
@pytest.mark.parametrize("factor", [0.25, 0.5, 0.9, 1.0, 1.5, 3.0])
def test_step_response(share: float, factor: float) -> None:
    """Four readings after the first, the share is met within a point and stays so; it never swings past it."""
    plant = Plant(share=share, factor=factor)
    plant.run(30)
    reachable = min(share, 1.0)
    assert all(abs(busy - reachable) <= 0.01 + 0.005 for busy in plant.achieved[5:])
    first = plant.achieved[0] - reachable
    assert all((busy - reachable) * first >= -0.015 * abs(first) - 0.0002 for busy in plant.achieved)


def test_other_work_in_the_middle_settles_again() -> None:
    plant = Plant(share=0.5, factor=1.0)
    plant.run(60)
    plant.factor = 2.0
    plant.run(6)
    assert plant.achieved[-1] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_scatter_is_no_reason_to_move(noise: float) -> None:
    """Readings of one window in six scatter; a correction that was right stays about right."""
    plant = Plant(share=0.5, factor=1.0, noise=noise)
    plant.run(300)
    assert sum(plant.achieved) / 300 == pytest.approx(0.5, abs=0.01)
    assert all(0.44 < busy < 0.56 for busy in plant.achieved)


@pytest.mark.parametrize(
    "change",
    [
        {"busy_ratio": None},
        {"busy_ratio": math.nan},
        {"busy_ratio": math.inf},
        {"busy_ratio": -0.2},
        {"busy_ratio": 1e18},
        {"busy_at": math.inf},
        {"busy_at": 1e9},
        {"busy_at": 0.0},
        {"charged_at": 0.0},
        {"charged_at": 1e9},
        {"charged_ns": 0},
        {"charged_ns": -5},
        {"share": 0.0},
        {"share": math.nan},
    ],
)
def test_absurd_readings_freeze(change: dict[str, float]) -> None:
    plant = Plant(share=0.5, factor=2.0)
    plant.run(20)
    before = plant.correction
    for _ in range(50):
        plant.at += 1
        plant.correction = plant.correction.after(replace(plant.reading(0.0), **change))
    assert plant.correction.value == before.value
    assert plant.correction.frozen
    plant.charged += 25
    plant.run(20)
    assert plant.achieved[-1] == pytest.approx(0.5, abs=0.01)


def test_stale_readings_freeze() -> None:
    plant = Plant(share=0.5, factor=2.0)
    plant.run(20)
    before, at = plant.correction, plant.at
    for _ in range(50):
        plant.at += 1
        plant.charged += 0.5
        plant.correction = plant.correction.after(replace(plant.reading(0.0), busy_at=at))
    assert plant.correction.value == before.value


@given(
    some.lists(
        some.builds(
            Reading,
            busy_ratio=some.none() | some.floats(),
            busy_at=some.floats(),
            charged_ns=some.integers(-(2**64), 2**64),
            a_launch_ns=some.floats(),
            charged_at=some.floats(),
            share=some.floats(),
        ),
        max_size=30,
    )
)
def test_no_history_takes_it_out_of_bounds(readings: list[Reading]) -> None:
    correction = Correction()
    for reading in readings:
        correction = correction.after(reading)
        assert LEAST <= correction.value <= MOST


@pytest.mark.parametrize("interval", [1 / 6, 1.0])
@pytest.mark.parametrize("before", [0, 20])
def test_a_driver_that_sees_nothing_of_what_is_charged_does_not_open_the_limit(interval: float, before: int) -> None:
    correction, at, charged = Correction(value=0.9), 100.0, 0.0
    for number in range(before + 60):
        at, charged = at + interval, charged + 0.2 * interval
        seen = 0.18 if number < before else 0.0
        correction = correction.after(
            Reading(
                busy_ratio=seen, busy_at=at, charged_ns=round(charged * NS), a_launch_ns=1e6, charged_at=at, share=0.18
            )
        )
        assert correction.value >= 0.89
    assert correction.is_unseen
    assert correction.frozen == "the driver sees nothing of the work"
    assert correction.settled >= 0.89


def test_a_false_account_does_not_open_the_limit() -> None:
    """Charges that are made up make the ratio look low; the busy time that the driver sees holds against that."""
    plant = Plant(share=0.25, factor=1.0)
    plant.run(10)
    for second in range(60):
        plant.at += 1
        plant.charged += 5.0
        plant.correction = plant.correction.after(plant.reading(0.9))
        assert plant.correction.does_not_hold == (second >= OVER_SECONDS)
    assert plant.correction.value > 1


def test_windows_in_a_row_prove_a_small_error() -> None:
    """Launches of 20 ms in windows of a sixth of a second: what a window has too much the next has too little."""
    plant = Plant(share=0.25, factor=0.93, launch_seconds=0.02)
    correction, charged, at = Correction(), 0.0, 100.0
    for window in range(60):
        at += 1 / 6
        charged += 0.25 / 6
        plant.at, plant.charged = at, charged
        swing = 0.05 if window % 2 else -0.05
        correction = correction.after(plant.reading(round(0.25 * 0.93 + swing, 2)))
    # The driver's whole percents are 18 and 28 by turns.
    assert correction.value == pytest.approx(0.23 / 0.25, abs=0.02)


@pytest.mark.parametrize("left_open", [0.0, 0.01, 0.035])
def test_what_readings_leave_open_is_not_taken_for_proven(left_open: float) -> None:
    """Of eight processes, each told in whole percents, seven may be off by half of one in the same way."""
    plant, correction, busy = Plant(share=0.25, factor=1.2), Correction(), 0.25 * 1.2
    for _ in range(60):
        plant.at += 1 / 6
        plant.charged += 0.25 / 6
        correction = correction.after(replace(plant.reading(busy), off=left_open))
    assert correction.value == pytest.approx((busy - left_open) / 0.25, abs=0.01)


def test_work_that_fills_the_window_is_known_before_it_ends() -> None:
    """A graph of seconds is charged when it ends; until then its part of the time is what the device gives it."""
    plant = Plant(share=0.75, factor=1.0)
    correction = Correction()
    for _ in range(8):
        plant.at += 1 / 6
        correction = correction.after(replace(plant.reading(0.5), under_way=True))
    assert correction.value == pytest.approx(0.5, abs=0.01)
    ended = replace(plant.reading(0.5), charged_ns=2 * NS, charged_at=plant.at + 1 / 6, busy_at=plant.at + 1 / 6)
    assert correction.after(ended).value == pytest.approx(0.5, abs=0.01)


def test_readings_above_the_share_must_come_in_a_row() -> None:
    plant = Plant(share=0.25, factor=1.0)
    plant.run(3)
    for second in range(60):
        plant.at += 1
        plant.charged += 0.25
        plant.correction = plant.correction.after(plant.reading(0.9 if second % 8 else 0.2))
        assert not plant.correction.does_not_hold


def test_three_windows_that_say_the_same_end_what_came_before() -> None:
    """Sixteen times as much was done before, of which fading readings alone would tell for seconds."""
    plant = Plant(share=0.25, factor=1.0)
    correction, charged, at = Correction(), 0.0, 100.0
    values: list[float] = []
    for busy, rate in [*[(1.0, 0.1)] * 8, *[(0.06, 0.06)] * 6]:
        at += 1 / 6
        charged += rate / 6
        plant.at, plant.charged = at, charged
        correction = correction.after(plant.reading(busy))
        values.append(correction.value)
    assert values[7] == MOST
    assert values[-1] == pytest.approx(1.0, rel=0.02)


def test_what_was_found_out_at_the_start_is_soon_given_up_where_the_limit_is_not_held() -> None:
    """While a program begins, its processes are not at work the whole window; what they were charged then is too much
    only for that time."""
    plant = Plant(share=0.75, factor=1.0)
    correction, charged, at = Correction(), 0.0, 100.0
    values: list[float] = []
    for busy, rate in [(0.36, 0.8), (0.49, 0.75), (0.6, 0.75), (0.62, 0.75), *[(0.88, 0.96)] * 4]:
        at += 1 / 6
        charged += rate / 6
        plant.at, plant.charged = at, charged
        correction = correction.after(replace(plant.reading(busy), off=off_of(8)))
        values.append(correction.value)
    assert values[3] < 0.8
    assert values[-1] == pytest.approx(0.88 / 0.96, abs=0.005 * 7 / 0.96 + 0.01)


def test_it_is_not_lowered_while_more_than_the_share_is_used() -> None:
    """What is charged and waits to run looks as if it were charged too much, while the device is full."""
    plant = Plant(share=0.9, factor=1.0)
    correction, charged, at = Correction(), 0.0, 100.0
    values: list[float] = []
    for busy, rate in [*[(1.0, 1.06)] * 10, *[(0.84, 0.9)] * 10]:
        at += 1 / 6
        charged += rate / 6
        plant.at, plant.charged = at, charged
        correction = correction.after(plant.reading(busy))
        values.append(correction.value)
    assert min(values[:10]) == 1.0
    assert values[-1] == pytest.approx(0.84 / 0.9, abs=0.01)


def test_work_that_is_told_of_when_it_has_ended_says_nothing_before() -> None:
    plant = Plant(share=0.45, factor=1.0)
    correction = Correction()
    for _ in range(8):
        plant.at += 1 / 6
        correction = correction.after(replace(plant.reading(0.5), by_moments=True, under_way=True))
    assert correction.value == 1
    assert correction.frozen


def test_charges_that_are_counted_otherwise_are_no_evidence() -> None:
    """From one count to another there is no difference that says how much was charged."""

    def reading(window: int, charged_ns: int, *, by_moments: bool) -> Reading:
        at = 100 + window / 6
        return Reading(
            busy_ratio=0.3,
            busy_at=at,
            charged_ns=charged_ns,
            a_launch_ns=1e6,
            charged_at=at + 0.05,
            share=0.3,
            by_moments=by_moments,
        )

    correction, window_ns = Correction(), 10**9 // 6
    for window in range(60):
        correction = correction.after(reading(window, round(window * window_ns * 0.15), by_moments=True))
    assert correction.value == pytest.approx(2, rel=0.05)
    seen = []
    for window in range(60, 90):
        correction = correction.after(reading(window, 10**12 + round(window * window_ns * 0.3), by_moments=False))
        seen.append(correction.value)
    assert seen[0] == pytest.approx(2, rel=0.05)
    assert seen[-1] == pytest.approx(1, rel=0.05)
    assert min(seen) > 0.95


def told_of_a_change(relearned: list[bool]) -> list[Correction]:
    """Readings of a Pod that is charged a quarter of what it takes, with its limiter's word that work has changed."""
    plant = Plant(share=0.25, factor=1.0)
    correction, corrections = Correction(), []
    for word in relearned:
        plant.at += 1 / 6
        plant.charged += 0.25 / 6
        correction = correction.after(replace(plant.reading(1.0), relearned=word))
        corrections.append(correction)
    return corrections


def test_readings_of_work_that_has_changed_are_left_out() -> None:
    """Charged as what it was, it took what it is: no other work is like that."""
    assert told_of_a_change([False] * 4)[-1].value > 1.5
    corrections = told_of_a_change([False, True, True, False])
    assert corrections[-1].value == 1.0
    assert corrections[2].frozen == "work that has changed"


def test_the_word_alone_does_not_hold_readings_off() -> None:
    """It is only the limiter's word: said without end it is heard for a while in ten seconds."""
    assert told_of_a_change([True] * 20)[-1].value > 1.5
    assert told_of_a_change([True] * 80)[-1].does_not_hold


def test_time_above_the_share_that_the_accounts_tell_of_raises_nothing() -> None:
    """Work of half a minute that was let go before its cost was known: it is owed, and not owed many times."""
    plant = Plant(share=0.25, factor=1.0)
    plant.run(3)
    for _ in range(40):
        plant.at += 1
        plant.charged += 0.98
        plant.correction = plant.correction.after(plant.reading(1.0))
    assert plant.correction.does_not_hold
    assert plant.correction.value == pytest.approx(1.0, abs=0.05)


def test_what_whole_percents_leave_open_goes_back_to_one() -> None:
    """Eight processes, 0.75 together: found out while costs were being learned, and never disproved."""
    plant = Plant(share=0.75, factor=1.0)
    correction = Correction(value=1.03)
    for _ in range(30):
        plant.at += 1 / 6
        plant.charged += 0.75 / 6
        correction = correction.after(replace(plant.reading(0.75), off=off_of(8)))
    assert correction.value == pytest.approx(1.0, abs=0.005)


def test_launches_that_take_no_more_time_when_there_are_more_of_them_are_let_go_in_a_second() -> None:
    """Four launches in each turn take the time of one, so the share is not reached with one; three more change
    nothing, and step by step it would take five seconds."""
    plant, correction, at = Plant(share=0.9, factor=1.0), Correction(), 100.0
    values = []
    for _ in range(12):
        at += 1 / 6
        rate = 0.9 / correction.value
        plant.at, plant.charged = at, plant.charged + rate / 6
        correction = correction.after(plant.reading(0.81 if rate < 1.6 else 0.889))
        values.append(correction.value)
    assert values[-1] == pytest.approx(0.889 / rate, abs=0.06)
    assert rate > 1.6


@given(some.floats(0.2, 1), some.floats(0.0, 0.85), some.floats(0.7, 0.97), some.floats(0.6, 0.99))
def test_where_lowering_leads_is_where_ratio_and_correction_are_the_same(
    value_before: float, elasticity: float, step: float, scale: float
) -> None:
    value = value_before * step
    ratio_before, ratio = (scale * value_before * (each / value_before) ** elasticity for each in (value_before, value))
    moves = (1 - step, 1 - ratio / value)
    assume(all(abs(move - LEAST_MOVE) > 1e-9 for move in moves))  # on the edge either is right
    found = where_it_leads((value_before, ratio_before), (value, ratio))
    if min(moves) > LEAST_MOVE and ratio < ratio_before:
        assert scale * value_before * (found / value_before) ** elasticity == pytest.approx(found, rel=1e-3)
    else:
        assert found == ratio


def test_what_a_lowering_leads_to_is_told_by_the_readings_after_it() -> None:
    """More launches beside each other take less than as much more: six readings a second, the first of which are of
    another ratio than the second lowering is for. With them in it, it would be two readings later and half as far."""
    plant = Plant(share=0.9, factor=1.0)
    busy = 0.0
    for _ in range(6):
        used = plant.share / plant.correction.value
        busy = 0.9 * plant.correction.value**0.6 * used
        plant.at, plant.charged = plant.at + 1 / 6, plant.charged + used / 6
        plant.correction = plant.correction.after(plant.reading(round(100 * busy) / 100))
    assert busy == pytest.approx(plant.share, abs=0.02)


def in_a_row(ratios: list[float], *, share: float = 0.75, off: float = 0.0) -> Correction:
    """The correction after windows of a sixth of a second in which the work took so many times its charges."""
    correction, at, charged = Correction(), 100.0, 0.0
    for ratio in [1.0, *ratios]:
        at, charged = at + 1 / 6, charged + share / 6
        correction = correction.after(
            Reading(
                busy_ratio=share * ratio,
                busy_at=at,
                charged_ns=round(charged * NS),
                a_launch_ns=0.0,
                charged_at=at,
                share=share,
                off=off,
            )
        )
    return correction


def test_what_is_left_behind_is_the_likeliest_though_not_proven() -> None:
    """Four hundredths below, in readings that scatter by as much: no proof yet, but the best that is known."""
    correction = in_a_row([0.84, 0.94, 0.98, 1.0, 0.98, 0.96, 0.96, 0.94, 0.98], share=0.5)
    assert correction.value == 1.0
    assert correction.settled == pytest.approx(0.964, abs=0.002)


def test_what_is_left_behind_is_of_the_later_readings() -> None:
    """While limits begin to hold, what was let go before they did runs on top of what is charged."""
    correction = in_a_row([1.03, 1.08, 1.08, 1.06, 1.04, 1.0, 1.01, 1.0, 1.0, 1.01])
    assert correction.value > 1.03
    assert correction.settled == pytest.approx(1.005, abs=0.005)


@pytest.mark.parametrize(
    ("ratios", "off"),
    [([0.95, 1.06, 0.97, 1.04, 0.96, 1.05, 0.97, 1.04], 0.0), ([0.98] * 8, 0.03), ([0.997] * 8, 0.0), ([], 0.0)],
    ids=["scatter", "whole percents", "hardly off", "nothing known"],
)
def test_what_is_left_behind_is_what_counts_unless_readings_say_otherwise(ratios: list[float], off: float) -> None:
    correction = in_a_row(ratios, off=off)
    assert correction.settled == correction.value


def test_what_is_left_behind_is_not_of_work_as_it_was() -> None:
    correction = in_a_row([1.0] * 12 + [2.0] * 4, share=0.25)
    assert correction.settled == pytest.approx(2.0)


def test_whoever_lies_about_charges_leaves_nothing_better_behind() -> None:
    plant = Plant(share=0.5, factor=1.0)
    plant.run(5)
    raised = replace(plant.correction, value=2.0, raised_at=plant.at)
    assert raised.settled == 2.0


@given(some.lists(some.floats(0.0, 1.0), max_size=40))
def test_what_is_left_behind_is_one_that_can_be(busy: list[float]) -> None:
    correction = in_a_row([share / 0.75 for share in busy])
    assert LEAST <= correction.settled <= MOST
