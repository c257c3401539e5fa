"""The whole matrix in parts, and on from where it stopped; what its outcomes say together."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.bench import bench_compute
from tests.pacing import Cell, Result, campaign
from tests.pacing.matrix import FACTORS, Choice, cell_of, every_choice, like, other_choices, words_of
from tests.pacing.outcome import Outcome, keep, kept, missed, outcome_of
from tests.pacing.summary import summaries, where_it_misses


def outcome(choice: Choice, error: float, *, revision: str = "old") -> Outcome:
    cell = cell_of(choice)
    return Outcome(
        cell=str(cell),
        values=words_of(choice),
        alone=len(cell.pods) == 1,
        points=cell.points,
        error=error,
        settle_seconds=1.0,
        stall_ms=30,
        later_stall_ms=10,
        stall_bound_ms=20,
        revision=revision,
    )


def test_the_order_is_the_whole_matrix_by_chance_and_the_same_each_time() -> None:
    order = campaign.in_order()
    assert order == campaign.in_order() != campaign.in_order(seed=8)
    assert sorted(map(str, order)) == sorted(map(str, every_choice()))
    assert order != list(every_choice())


def test_parts_are_all_of_it_and_have_nothing_in_common() -> None:
    order = campaign.in_order()
    parts = [campaign.part(order, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(str(choice) for part in parts for choice in part) == sorted(map(str, order))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert campaign.part(order, "") == order


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="k from 1 to n"):
        campaign.part([], text)


def test_what_is_known_is_not_run_again_but_what_failed_is(tmp_path: Path) -> None:
    first, second, third = campaign.in_order()[:3]
    file = tmp_path / "results"
    keep(file, outcome(first, 0.1))
    keep(file, outcome_of(cell_of(second), "OSError: no room", values=words_of(second)))
    assert campaign.left([first, second, third], kept(file)) == [second, third]


def test_the_last_outcome_of_a_cell_counts_and_half_a_line_is_none(tmp_path: Path) -> None:
    first, second = campaign.in_order()[:2]
    file = tmp_path / "results"
    keep(file, outcome(first, 9))
    with file.open("a") as torn:
        torn.write('{"cell": "25 %')
    keep(file, outcome(second, 0.2))
    keep(file, outcome(first, 0.5, revision="new"))
    assert kept(file) == [outcome(second, 0.2), outcome(first, 0.5, revision="new")]
    assert kept(tmp_path / "none") == []


def test_of_those_with_the_same_figures_one_is_run_and_tells_of_all() -> None:
    order = campaign.in_order()
    first = next(choice for choice in order if words_of(choice)["form"] == "cooperative")
    alike = [choice for choice in order if like(choice) == like(first)]
    assert {words_of(choice)["form"] for choice in alike} == {"plain", "cooperative"}
    ran = campaign.distinct(order, [])
    assert len(ran) == len({like(choice) for choice in order}) < len(order) / 2
    places = {choice: place for place, choice in enumerate(order)}
    assert ran == sorted(ran, key=places.__getitem__)
    assert campaign.distinct(alike, [outcome(first, 0.3)]) == []
    told = campaign.with_those_alike([outcome(first, 0.3)])
    assert sorted(each.key for each in told) == sorted(outcome(choice, 0.3).key for choice in alike)
    assert {(each.error, each.cell) for each in told} == {(0.3, str(cell_of(choice))) for choice in alike}


def test_wide_kernels_of_several_streams_are_cells_of_their_own() -> None:
    for choice in every_choice():
        words = words_of(choice)
        assert (words_of(like(choice))["grid"] == "108") == (words["grid"] != "10000" or words["streams"] == "1")


def test_only_what_missed_under_another_revision_is_repeated() -> None:
    within, before, now = campaign.in_order()[:3]
    known = [outcome(within, 0.1), outcome(before, -5), outcome(now, -5, revision="new")]
    assert campaign.to_repeat([within, before, now], known, "new") == [before]


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def measured(cell: Cell, **_: bool) -> Result | str:
        ran.append(str(cell))
        return Result(
            cell=cell,
            marks=(0.0, 1.0, 6.0, 11.0, 16.0, 21.0),
            busy=((tuple(cell.reachable(0) * mark for mark in (0, 1, 6, 11, 16, 21)),),),
            longest_stall_ms=1,
            longest_later_stall_ms=1,
            launches=(1,),
            correction=1,
        )

    monkeypatch.setattr(campaign, "measured", measured)
    monkeypatch.setenv("BENCH_COMPUTE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("BENCH_COMPUTE_CELLS", "0")
    monkeypatch.setenv("BENCH_COMPUTE_MATRIX", "4")
    assert bench_compute.measure()[0].holds
    monkeypatch.setenv("BENCH_COMPUTE_MATRIX", "6")
    monkeypatch.setenv("BENCH_COMPUTE_PART", "2/2")
    bench_compute.measure()
    monkeypatch.setenv("BENCH_COMPUTE_LONGEST", "1")
    monkeypatch.setenv("BENCH_COMPUTE_MATRIX", "full")
    bench_compute.measure()  # no window is that short
    monkeypatch.delenv("BENCH_COMPUTE_LONGEST")
    monkeypatch.delenv("BENCH_COMPUTE_PART")
    monkeypatch.setenv("BENCH_COMPUTE_MATRIX", "other-2")
    bench_compute.measure()
    monkeypatch.setenv("BENCH_COMPUTE_MATRIX", "none")
    figures = bench_compute.measure()
    order = [str(cell_of(choice)) for choice in campaign.in_order()[:6]]
    first, *rest = ran  # what is run to build what all need
    others = [str(cell_of(choice)) for choice in other_choices(2)]
    assert sorted(rest) == sorted([*order[:4], first, order[5], first, *others])
    assert len(figures) == 7 + 2 + 3 + 1  # each cell, alone and beside others, what the matrix has, the time


def test_none_is_begun_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "measured", lambda cell: "it was run")
    assert list(campaign.outcomes(campaign.in_order()[:3], workers=1, seconds=0)) == []
    assert len(list(campaign.outcomes(campaign.in_order()[:3], workers=1))) == 3


@pytest.mark.parametrize(("without", "by_itself"), [(400.0, True), (29.0, False)])
def test_a_wait_beyond_the_bound_is_compared_with_the_same_load_without_the_limiter(
    without: float, by_itself: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def measured(cell: Cell, *, limited: bool = True) -> Result | str:
        asked.append(limited)
        return Result(
            cell=cell,
            marks=(0.0, 1.0, 6.0, 11.0, 16.0, 21.0),
            busy=tuple(((0.0, 1.0, 6.0, 11.0, 16.0, 21.0),) * pod.devices for pod in cell.pods),
            longest_stall_ms=30e6 if limited else without * 1e6,
            longest_later_stall_ms=1,
            launches=(1,),
            correction=1,
        )

    monkeypatch.setattr(campaign, "measured", measured)
    found = list(campaign.outcomes(campaign.in_order()[:3], workers=1))
    assert sorted(asked) == [False] * 3 + [True] * 4  # one builds what all need
    assert [each.stalls_by_itself for each in found] == [by_itself] * 3
    of_all = next(iter(summaries(found)))
    assert of_all.stalls_without == (3 if by_itself else 0)


def test_a_summary_says_what_is_worst_and_where_it_lies() -> None:
    choices = campaign.in_order()
    bad = {choice for choice in choices if words_of(choice)["kernels"] == "mix" and words_of(choice)["streams"] == "4"}
    some = [outcome(choice, -9.0 if choice in bad else 0.25) for choice in choices[:300]]
    parts = {part.name: part for part in summaries(some)}
    of_all, of_mix = parts["all"], parts["kernels mix"]
    assert (of_all.count, of_all.within, of_all.worst) == (len(some), sum(each.holds for each in some), -9.0)
    assert of_all.median == 0.25
    assert (of_all.stalls_within, of_all.later_stalls_within) == (0, len(some))
    assert of_mix.within < of_mix.count
    assert parts["kernels 20 us"].within == parts["kernels 20 us"].count
    assert parts["alone"].count + parts["beside others"].count == len(some)
    assert {part.name for part in where_it_misses(some)[:1]} == {"kernels mix, streams 4"}


def test_what_could_not_be_measured_misses_and_is_told_first() -> None:
    some = campaign.in_order()[:3]
    failed = outcome_of(cell_of(some[0]), "OSError: no room", values=words_of(some[0]))
    assert missed([outcome(some[1], 0.1), outcome(some[2], 7.5), failed]) == [failed, outcome(some[2], 7.5)]
    assert math.isnan(failed.error)
    assert not failed.holds


def test_other_cells_have_no_value_that_is_in_the_matrix() -> None:
    choices = other_choices(200)
    assert len(set(choices)) == 200
    factors = {"percent", "kernels", "grid"}
    for choice in choices:
        values = dict(zip(FACTORS, choice, strict=True))
        assert all(values[factor] not in FACTORS[factor] for factor in factors)
        assert values["processes"] in (1, 3, 5)
