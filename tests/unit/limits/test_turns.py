"""How many turns others have, from windows of a device that gives each process turns of the same length."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hypervisor.limits.turns import MOST, Seen, Turns

WINDOW = 1 / 6


def seen(turns: Turns, *, own: int, others: float, laid: float = WINDOW, brief: float = 0.0) -> Turns:
    """One window; the driver tells whole percents."""
    busy = brief + laid * own / (own + others)
    told = round(100 * busy / WINDOW) / 100 * WINDOW
    return turns.after(Seen(busy=told, brief=brief, laid=laid, own=own, window=WINDOW))


@pytest.mark.parametrize("others", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("own", [1, 2, 8])
def test_it_is_found_out_with_the_first_windows(own: int, others: float) -> None:
    turns = Turns()
    for _ in range(3):
        turns = seen(turns, own=own, others=others)
    assert turns.own_part(own) == pytest.approx(own / (own + others), abs=0.01)


def test_it_does_not_depend_on_how_many_are_at_work() -> None:
    """What was found out while one process was at work holds for eight."""
    turns = Turns()
    for _ in range(4):
        turns = seen(turns, own=1, others=1.0)
    assert turns.own_part(8) == pytest.approx(8 / 9, abs=0.01)


def test_what_whole_percents_leave_open_is_nobody() -> None:
    turns = Turns()
    for _ in range(6):
        turns = turns.after(Seen(busy=0.97 * WINDOW, brief=0.0, laid=WINDOW, own=2.0, window=WINDOW, off=0.035))
    assert turns.value == 0
    turns = Turns()
    for _ in range(6):
        turns = turns.after(Seen(busy=0.96 * WINDOW, brief=0.0, laid=WINDOW, own=2.0, window=WINDOW))
    assert turns.value == pytest.approx(2 * (1 / 0.96 - 1), abs=0.001)


def test_nobody_has_turns_where_the_driver_sees_nobody() -> None:
    """Brief launches were charged and wait behind the long ones, so less seems to be left for those."""
    turns = Turns()
    for _ in range(6):
        turns = turns.after(Seen(busy=WINDOW, brief=0.1 * WINDOW, laid=WINDOW, own=8.0, window=WINDOW, others=0.0))
    assert turns.value == 0
    for _ in range(20):
        turns = turns.after(Seen(busy=WINDOW / 2, brief=0.2 * WINDOW, laid=WINDOW, own=1.0, window=WINDOW, others=0.5))
    assert turns.value == pytest.approx(1.0, abs=0.01)


def test_brief_launches_are_none_of_it() -> None:
    turns = Turns()
    for _ in range(4):
        turns = seen(turns, own=1, others=1.0, laid=0.1, brief=0.05)
    assert turns.value == pytest.approx(1.0, abs=0.1)


def test_neighbours_who_come_and_go_are_noticed_at_the_second_window() -> None:
    turns = Turns()
    for _ in range(20):
        turns = seen(turns, own=1, others=1.0)
    once = seen(turns, own=1, others=0.0)
    assert once.value == turns.value
    assert seen(once, own=1, others=0.0).value == pytest.approx(0.0, abs=0.02)
    assert seen(once, own=1, others=1.0).value == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    "window",
    [
        {"busy": math.nan},
        {"busy": math.inf},
        {"busy": -1.0},
        {"busy": 0.0},
        {"laid": 1e18},
        {"laid": 0.001},
        {"laid": math.nan},
        {"own": 0.0},
        {"own": math.nan},
        {"window": 0.0},
        {"window": -1.0},
        {"brief": math.inf},
    ],
)
def test_what_cannot_be_changes_nothing(window: dict[str, float]) -> None:
    turns = seen(Turns(), own=1, others=1.0)
    usual = {"busy": WINDOW / 2, "brief": 0.0, "laid": WINDOW, "own": 1.0, "window": WINDOW}
    assert turns.after(Seen(**{**usual, **window})) == turns


@given(some.lists(some.tuples(*[some.floats()] * 5), max_size=20))
def test_no_history_takes_it_out_of_bounds(windows: list[tuple[float, float, float, float, float]]) -> None:
    turns = Turns()
    for busy, brief, laid, own, window in windows:
        turns = turns.after(Seen(busy=busy, brief=brief, laid=laid, own=own, window=window))
        assert 0 <= turns.value <= MOST
        assert 0 < turns.own_part(1) <= 1


def test_what_is_expected_gives_way_to_what_long_launches_tell() -> None:
    assert Turns().expected(1.0).own_part(1) == 0.5
    turns = Turns().expected(1.0)
    for _ in range(4):
        turns = seen(turns, own=1, others=2.0)
    assert turns.own_part(1) == pytest.approx(1 / 3, abs=0.02)
    assert turns.expected(5.0) == turns


def test_what_is_known_from_before_is_not_expected_anew() -> None:
    assert Turns(2.0).expected(1.0) == Turns(2.0)


def test_an_odd_window_does_not_put_aside_what_is_expected() -> None:
    """Most of the window's busy time was charged as brief launches, so what is left for the long one is too little."""
    odd = Turns().expected(1.0).after(Seen(busy=0.08, brief=0.075, laid=0.05, own=1, window=WINDOW))
    assert odd.own_part(1) == pytest.approx(0.5, abs=0.05)
