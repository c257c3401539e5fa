"""What whole percents of processes leave open of a Pod's time, and how much of that the card's own figure closes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hypervisor.limits.narrowed import HALF_A_PERCENT, Busy, busy_of, off_of


def whole(share: float) -> float:
    return round(100 * share) / 100


def about(ratio: float, off: float) -> Busy:
    return Busy(pytest.approx(ratio), pytest.approx(off, abs=1e-9))  # type: ignore[arg-type]


def test_without_the_card_each_process_but_one_leaves_half_a_percent_open() -> None:
    told = dict.fromkeys(range(8), 0.09)
    assert busy_of(told, range(8), None) == about(0.72, 7 * HALF_A_PERCENT)
    assert busy_of({1: 0.5}, [1], None) == Busy(0.5, 0.0)
    assert busy_of({}, [], None) == Busy(0.0, 0.0)


def test_alone_on_the_card_nothing_is_left_but_what_the_card_is_rounded_by() -> None:
    """Eight processes of 9.4 % say 9 for ever: together 72 of 75.2."""
    told = {pid: whole(0.094) for pid in range(8)}
    assert busy_of(told, range(8), whole(8 * 0.094)) == about(0.75, 0.0)


def test_each_other_process_opens_as_much_as_it_may_be_off() -> None:
    told = {pid: whole(0.054) for pid in range(8)} | {100: whole(0.254), 101: whole(0.254)}
    # Of 40 +- 4, and of 94 - 50 +- 1.5, as far as both allow it.
    assert busy_of(told, range(8), whole(8 * 0.054 + 2 * 0.254)) == about(0.4325, 0.0025)


def test_one_process_alone_is_what_it_says() -> None:
    for percent in range(101):
        assert busy_of({1: percent / 100}, [1], percent / 100) == about(percent / 100, 0.0)


@pytest.mark.parametrize("card", [0.9, 0.3, 1e18, -0.5, math.nan, math.inf, 1.01])
def test_a_card_that_says_something_else_says_nothing(card: float) -> None:
    """Who is not told of was there too, processes ran at the same time, or it is garbage."""
    told = dict.fromkeys(range(8), 0.07)
    assert busy_of(told, range(8), card) == busy_of(told, range(8), None)


percents = some.integers(0, 100).map(lambda percent: percent / 100)


@given(
    some.dictionaries(some.integers(1, 30), percents, max_size=20),
    some.sets(some.integers(1, 30), max_size=12),
    some.none() | percents | some.floats(),
)
def test_it_is_never_outside_of_what_the_own_samples_leave_open(
    told: dict[int, float], own: set[int], card: float | None
) -> None:
    busy = busy_of(told, own, card)
    total = sum(told.get(pid, 0.0) for pid in own)
    if total <= 1:
        assert abs(busy.ratio - total) <= len(own) * HALF_A_PERCENT + 1e-9
    assert 0 <= busy.ratio <= 1
    assert 0 <= busy.off <= off_of(len(own)) + 1e-9


@given(
    some.lists(some.floats(0.001, 1.0), min_size=1, max_size=16),
    some.lists(some.floats(0.001, 1.0), max_size=8),
    some.floats(0.05, 0.99),
)
def test_the_truth_is_always_within_what_is_left_open(own: list[float], others: list[float], full: float) -> None:
    """Processes that have turns: their times add up to the card's."""
    scale = full / (sum(own) + sum(others))
    shares = {pid: share * scale for pid, share in enumerate([*own, *others])}
    told, mine = {pid: whole(share) for pid, share in shares.items()}, range(len(own))
    busy = busy_of(told, mine, whole(sum(shares.values())))
    truth = sum(shares[pid] for pid in mine)
    assert abs(busy.ratio - truth) <= busy.off + HALF_A_PERCENT + 1e-9
    assert busy.off <= off_of(len(own)) + 1e-9
