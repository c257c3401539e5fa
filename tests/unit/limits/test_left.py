"""What was taken off long launches for others' turns, against what the driver saw over some seconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hypervisor.limits.left import LEAST, MOST, Left

WINDOW = 1 / 6


def test_nothing_is_known_before_the_first_window() -> None:
    assert Left().ratio is None
    assert Left().after(busy=WINDOW, brief=0.0, told=0.0).ratio is None


def test_turns_that_are_told_as_they_are_need_no_more() -> None:
    left = Left()
    for _ in range(6):
        left = left.after(busy=WINDOW * 2 / 3, brief=WINDOW / 6, told=WINDOW / 2)
    assert left.ratio == pytest.approx(1.0)


def test_what_was_told_too_late_is_made_up_for() -> None:
    """Turns become fewer all the time; what is told is of two windows before, so too much was taken off."""
    left, turns = Left(), [2.0 - 0.1 * number for number in range(12)]
    for told, true in zip(turns, turns[2:], strict=False):
        left = left.after(busy=WINDOW / (1 + true), brief=0.0, told=WINDOW / (1 + told))
    assert left.ratio is not None
    assert 1.05 < left.ratio < 1.12


def test_what_is_told_a_window_later_is_made_good() -> None:
    left = Left()
    for number in range(40):
        left = left.after(
            busy=WINDOW / 2, brief=WINDOW / 4 if number % 2 else 0.0, told=0.0 if number % 2 else WINDOW * 0.75
        )
    assert left.ratio == pytest.approx(1.0, abs=0.03)


def test_it_follows_within_seconds() -> None:
    left = Left()
    for had in (WINDOW / 3, WINDOW / 2):
        for _ in range(60):
            left = left.after(busy=had, brief=0.0, told=WINDOW / 2)
    assert left.ratio == pytest.approx(1.0, abs=0.03)


@given(some.lists(some.tuples(some.floats(0, 1), some.floats(0, 2), some.floats(0.01, 1))))
def test_it_stays_within_bounds(windows: list[tuple[float, float, float]]) -> None:
    left = Left()
    for busy, brief, told in windows:
        left = left.after(busy=busy, brief=brief, told=told)
        assert left.ratio is not None
        assert LEAST <= left.ratio <= MOST
