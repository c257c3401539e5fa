"""What whole percents leave open, and what the card's own one narrows it to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.limits.narrowed import HALF_A_PERCENT, Busy, busy_of, off_of

EIGHT = range(1, 9)
OTHER = 99
HAIR = 1e-9


def whole(share: float) -> float:
    return round(share * 100) / 100


def test_eight_processes_of_one_percent_and_a_quarter_are_ten_percent_where_the_card_says_so() -> None:
    told = {pid: whole(0.0125) for pid in EIGHT}
    assert busy_of(told, EIGHT, None) == Busy(pytest.approx(0.08), pytest.approx(0.035))
    alone = busy_of(told, EIGHT, 0.10)
    assert alone.ratio == pytest.approx(0.10, abs=HALF_A_PERCENT)
    assert alone.off == pytest.approx(0, abs=HAIR)
    beside = busy_of(told | {OTHER: 0.9}, EIGHT, 1.0)
    assert beside.ratio == pytest.approx(0.0975, abs=HALF_A_PERCENT)
    assert beside.off <= HALF_A_PERCENT / 2 + HAIR


@pytest.mark.parametrize("card", [0.2, 0.03, -0.1, 1.01, 1e18, float("nan"), float("inf")])
def test_a_figure_of_the_card_that_contradicts_the_processes_says_nothing(card: float) -> None:
    told = dict.fromkeys(EIGHT, 0.01)
    assert busy_of(told, EIGHT, card) == busy_of(told, EIGHT, None)


def test_time_of_processes_that_run_at_once_adds_up_to_more_than_the_card() -> None:
    """As under MPS: no turns, nothing to take off."""
    told = {1: 0.6, 2: 0.6, OTHER: 0.5}
    assert busy_of(told, (1, 2), 0.7) == Busy(1.0, off_of(2))


def test_who_is_not_told_of_may_have_had_less_than_half_a_percent() -> None:
    assert busy_of({1: 0.2}, (1, 2), None).off == HALF_A_PERCENT


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=10),
    st.lists(st.floats(0, 1), max_size=4),
    st.floats(0.1, 1),
)
def test_the_truth_is_never_shut_out(own: list[float], others: list[float], full: float) -> None:
    """Any processes that have turns, each told in whole percents, and the card as well."""
    scale = full / max(sum(own) + sum(others), 1e-3)
    own, others = [each * scale for each in own], [each * scale for each in others]
    told = {pid: whole(each) for pid, each in enumerate(own)}
    told |= {100 + pid: whole(each) for pid, each in enumerate(others)}
    busy = busy_of(told, range(len(own)), whole(min(sum(own) + sum(others), 1.0)))
    assert abs(busy.ratio - sum(own)) <= busy.off + HALF_A_PERCENT + HAIR
    assert busy.off <= off_of(len(own)) + HAIR


@given(
    st.dictionaries(st.integers(1, 6), st.floats(allow_nan=False), max_size=6),
    st.sets(st.integers(1, 6), max_size=4),
    st.none() | st.floats(),
)
def test_the_card_never_leads_out_of_what_the_own_figures_leave_open(
    ratios: dict[int, float], own: set[int], card: float | None
) -> None:
    as_told, narrowed = busy_of(ratios, own, None), busy_of(ratios, own, card)
    if 0 <= as_told.ratio <= 1:
        assert abs(narrowed.ratio - as_told.ratio) <= as_told.off + HALF_A_PERCENT + HAIR
    assert 0 <= narrowed.off <= as_told.off + HAIR or narrowed == as_told
