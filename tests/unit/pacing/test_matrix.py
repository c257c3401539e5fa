"""The matrix: which cells there are, and choices in which values come together."""

from __future__ import annotations

import itertools
import math

import pytest

from tests.pacing import Cell, Load, Result
from tests.pacing.matrix import (
    FACTORS,
    cell_of,
    covering_choices,
    every_choice,
    left_out,
    other_choices,
    tuples_of,
    why_not,
    words_of,
)


def test_every_combination_is_a_cell_or_left_out_for_a_reason() -> None:
    combinations = math.prod(map(len, FACTORS.values()))
    assert len(every_choice()) + sum(left_out().values()) == combinations
    assert all(left_out())
    assert "" not in left_out()


def test_of_the_matrix_only_what_the_driver_refuses_is_left_out() -> None:
    out = [words_of(choice) for choice in itertools.product(*FACTORS.values()) if why_not(choice)]
    assert {(words["form"], words["grid"]) for words in out} == {("cooperative", "10000")}


def test_no_two_cells_have_the_same_name() -> None:
    assert len({str(cell_of(choice)) for choice in every_choice()}) == len(every_choice())


@pytest.mark.parametrize("seed", range(1, 6))
def test_all_values_of_any_two_factors_that_a_cell_has_come_together(seed: int) -> None:
    chosen = covering_choices(2, seed=seed, candidates=10)
    pairs = (
        {
            (one, other, choice[one], choice[other])
            for choice in every_choice()
            for one, other in itertools.combinations(range(len(FACTORS)), 2)
        }
        if seed == 1
        else set()
    )
    assert pairs <= {(*columns, *values) for columns, values in tuples_of(chosen)}
    assert tuples_of(chosen) == tuples_of(every_choice())
    assert set(chosen) <= set(every_choice())
    assert len(chosen) <= 60


def test_a_choice_among_some_has_what_they_have() -> None:
    some = every_choice()[:500:7]
    chosen = covering_choices(2, among=some)
    assert set(chosen) <= set(some)
    assert tuples_of(chosen) == tuples_of(some)
    assert covering_choices(2, among=[]) == []


def test_other_cells_are_of_exchanges_too_and_those_of_before_come_first() -> None:
    choices = other_choices(100_000)
    assert choices[:400] == other_choices(400)
    wide = [words_of(choice) for choice in choices if words_of(choice)["devices"] == "2"][-1]
    assert (wide["processes"], wide["form"], wide["beside"]) != ("1", "plain", "nobody")
    assert not any(why_not(choice) for choice in choices)


@pytest.mark.parametrize(
    ("processes", "own", "job", "on_a_device"), [(1, 4, 1, 1), (2, 2, 2, 1), (4, 1, 4, 1), (8, 1, 4, 2)]
)
def test_devices_of_an_exchange_are_dealt_to_processes(processes: int, own: int, job: int, on_a_device: int) -> None:
    load = Load(percent=50, devices=4, processes=processes)
    assert (load.own_devices, load.job, load.on_a_device) == (own, job, on_a_device)


def test_ranks_have_a_device_each_and_without_an_exchange_all_processes_have_one() -> None:
    ranks = Load(percent=50, devices=4, ranks=True)
    assert (ranks.own_devices, ranks.job, ranks.on_a_device) == (1, 4, 1)
    alone = Load(percent=50, processes=8)
    assert (alone.own_devices, alone.job, alone.on_a_device) == (1, 1, 8)


def _of(
    limit: float, shares: tuple[float, ...], *, idle: float = 1.0, neighbours: tuple[Load, ...] = (Load(percent=20),)
) -> Result:
    """Of an exchange that has these shares of its devices; on the first one a process of two has nothing queued for
    part of the time."""
    marks = tuple(float(mark) for mark in range(12))

    def over_time(share: float) -> tuple[float, ...]:
        return tuple(share * mark for mark in marks)

    return Result(
        cell=Cell(pods=(Load(percent=limit, devices=len(shares)), *neighbours)),
        marks=marks,
        busy=(tuple(map(over_time, shares)),) * (1 + len(neighbours)),
        queued=(
            (over_time(1.0), over_time(1 - idle)),
            *((over_time(1.0), over_time(1.0)) for _ in shares[1:]),
        ),
        longest_stall_ms=1,
        longest_later_stall_ms=1,
        launches=(1,),
        correction=1,
    )


@pytest.mark.parametrize(
    ("limit", "idle", "wanted", "error"), [(50, 1, 50, -20), (50, 0.15, 45, -15), (50, 0, 30, 0), (25, 0, 25, 5)]
)
def test_an_exchange_beside_others_is_held_by_its_limit_only_where_it_has_nothing_queued(
    limit: float, idle: float, wanted: float, error: float
) -> None:
    """30 % of the time, and never more than the limit."""
    result = _of(limit, (0.3,) * 4, idle=idle)
    assert result.idle() == pytest.approx(100 * idle)
    assert result.most_percent() == pytest.approx(30)
    assert result.error() == pytest.approx(error)
    assert result.errors() == pytest.approx([error] * 10)
    assert result.stall_bound_ms == pytest.approx(20 + 1 / (wanted / 100))


def test_an_exchange_is_not_asked_for_more_than_its_turns_and_may_have_those_of_neighbours_who_wait() -> None:
    free = (Load(percent=None),)
    assert _of(90, (0.5, 0.5), idle=1, neighbours=free).error() == pytest.approx(0)
    assert _of(90, (0.6, 0.6), idle=1, neighbours=free).error() == pytest.approx(0)
    assert _of(90, (0.4, 0.4), idle=1, neighbours=free).error() == pytest.approx(-10)
    assert _of(50, (0.6, 0.6), idle=1, neighbours=free).error() == pytest.approx(10)


def test_alone_an_exchange_has_its_limit_whatever_it_has_queued() -> None:
    assert _of(50, (0.3,) * 4, idle=0, neighbours=()).error() == pytest.approx(-20)


@pytest.mark.parametrize(
    ("shares", "error"), [((0.5, 0.3, 0.25, 0.25), 0), ((0.4, 0.4, 0.3, 0.2), -10), ((0.3, 0.6), 10)]
)
def test_of_an_exchange_the_device_that_sets_the_pace_is_judged(shares: tuple[float, ...], error: float) -> None:
    """All end as many rounds; where they take less of a device's time, no more of them can be had there."""
    assert _of(50, shares).error() == pytest.approx(error)
