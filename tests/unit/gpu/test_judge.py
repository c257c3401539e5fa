from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.gpu import judge
from hypervisor.gpu.judge import AGREEING_READINGS, NO_CAPACITY, NO_MEMORY_USE, Capacity
from hypervisor.gpu.wire import Answer, Memory
from hypervisor.model import Figure, FigureSource

TOTAL = 80 * 2**30
BOUNDS = (TOTAL // 2, TOTAL * 21 // 20)
ABSURD = (0, -1, 1, 2**63 - 1, 2**64 - 1, 0x5BADC0DE5BADC0DE, TOTAL * 2)
CODES = (3, 4, 7, 10, 13, 15, 16, 25, 999, -1)

absurd_answers = st.one_of(
    st.sampled_from(ABSURD).map(lambda total: Answer(Memory(total, 0, 0, 0))),
    st.sampled_from(CODES).map(lambda code: Answer(None, code)),
)


def memory(total: int = TOTAL, used: int = 0, reserved: int | None = 2**29) -> Answer[Memory]:
    return Answer(Memory(total, total - used - (reserved or 0), used, reserved))


@given(st.lists(absurd_answers, max_size=50))
def test_no_row_of_bad_readings_changes_a_capacity(answers: list[Answer[Memory]]) -> None:
    capacity, _ = judge.judge_capacity(NO_CAPACITY, memory(), BOUNDS, 1.0)
    assert capacity.figure == Figure(TOTAL, FigureSource.DRIVER, 1.0)
    for answer in answers:
        capacity, problem = judge.judge_capacity(capacity, answer, BOUNDS, 2.0)
        assert capacity.figure == Figure(TOTAL, FigureSource.DRIVER, 1.0, stale=True)
        assert problem
    capacity, problem = judge.judge_capacity(capacity, memory(), BOUNDS, 3.0)
    assert (capacity.figure, problem) == (Figure(TOTAL, FigureSource.DRIVER, 3.0), "")


@given(st.lists(absurd_answers, min_size=1, max_size=20))
def test_no_bad_reading_makes_a_capacity(answers: list[Answer[Memory]]) -> None:
    capacity = NO_CAPACITY
    for answer in answers:
        capacity, _ = judge.judge_capacity(capacity, answer, BOUNDS, 1.0)
        assert capacity.figure.value is None
        assert capacity.figure.absent_reason


def test_a_plausible_change_is_believed_after_readings_that_agree() -> None:
    less = TOTAL * 15 // 16  # ECC switched on
    capacity = Capacity(Figure(TOTAL, FigureSource.DRIVER, 1.0))
    for _ in range(AGREEING_READINGS - 1):
        capacity, problem = judge.judge_capacity(capacity, memory(less), BOUNDS, 2.0)
        assert capacity.figure.value == TOTAL
        assert capacity.figure.stale
        assert problem
    capacity, problem = judge.judge_capacity(capacity, memory(less), BOUNDS, 3.0)
    assert (capacity.figure.value, capacity.figure.stale, problem) == (less, False, "")


@given(st.lists(st.sampled_from([TOTAL * 15 // 16, TOTAL * 14 // 16, 0]), max_size=30))
def test_readings_that_do_not_agree_change_nothing(totals: list[int]) -> None:
    capacity = Capacity(Figure(TOTAL, FigureSource.DRIVER, 1.0))
    streak, last = 0, None
    for total in totals:
        capacity, _ = judge.judge_capacity(capacity, memory(total), BOUNDS, 2.0)
        streak = streak + 1 if total == last else 1
        last = total
        if total and streak >= AGREEING_READINGS:
            return
        assert capacity.figure.value == TOTAL


def test_what_a_gpu_lacks_is_absent_and_no_problem() -> None:
    capacity, problem = judge.judge_capacity(NO_CAPACITY, Answer(None, 3), BOUNDS, 1.0)
    assert capacity.figure.value is None
    assert "not supported" in capacity.figure.absent_reason
    assert problem == ""


@given(
    st.sampled_from([judge.UTILIZATION, judge.TEMPERATURE, judge.POWER, judge.ENERGY, judge.SM_CLOCK]),
    st.integers(-(2**63), 2**64),
)
def test_a_reading_out_of_range_leaves_the_last_one(allowed: judge.Range, value: int) -> None:
    last = Figure(5.0, FigureSource.DRIVER, 1.0)
    judged = judge.judge(Answer(value), last, allowed, 2.0)
    if allowed.low <= value <= allowed.high:
        assert judged.figure == Figure(value * allowed.scale, FigureSource.DRIVER, 2.0)
        assert judged.problem == ""
    else:
        assert judged.figure == last.as_stale()
        assert allowed.name in judged.problem


@pytest.mark.parametrize("allowed", [judge.TEMPERATURE, judge.POWER, judge.POWER_LIMIT])
def test_zero_is_no_reading_where_a_gpu_can_not_be_at_zero(allowed: judge.Range) -> None:
    judged = judge.judge(Answer(0), Figure.absent("not read yet"), allowed, 1.0)
    assert judged.figure.value is None
    assert judged.problem


# ---- memory in use ----


@given(st.integers(0, TOTAL - 2**29))
def test_used_never_contains_reserved_whichever_way_the_driver_counts(used: int) -> None:
    free = TOTAL - used - 2**29
    apart = Memory(TOTAL, free, used, 2**29)
    together = Memory(TOTAL, free, used + 2**29, 2**29)
    assert judge.split_used(apart) == (used, 2**29)
    assert judge.split_used(together) == (used, 2**29)
    assert judge.split_used(Memory(TOTAL, free, used + 2**29, None)) == (used + 2**29, None)


@given(st.integers(0, TOTAL), st.integers(0, TOTAL), st.integers(0, TOTAL))
def test_use_is_never_told_below_what_the_driver_said(free: int, used: int, reserved: int) -> None:
    told, _ = judge.split_used(Memory(TOTAL, free, used, reserved))
    assert max(used - reserved, 0) <= told <= max(used, TOTAL - free - reserved)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(Memory(TOTAL, 0, 0, 0)),
        Answer(Memory(TOTAL, 2**63 - 1, 0, 0)),
        Answer(Memory(TOTAL, 0, 2**64 - 1, 0)),
        Answer(Memory(TOTAL, 5, 5, 2**63 - 1)),
    ],
)
def test_absurd_use_stands_as_the_last_one(answer: Answer[Memory]) -> None:
    capacity = Capacity(Figure(TOTAL, FigureSource.DRIVER, 1.0))
    good, problem = judge.judge_memory_use(NO_MEMORY_USE, memory(used=7), capacity=capacity, now=1.0)
    assert (good.used.value, problem) == (7, "")
    told, problem = judge.judge_memory_use(good, answer, capacity=capacity, now=2.0)
    assert problem
    assert (told.used.value, told.used.stale, told.used.observed_at) == (7, True, 1.0)
    nothing, _ = judge.judge_memory_use(NO_MEMORY_USE, answer, capacity=capacity, now=2.0)
    assert nothing.used.value is None


def test_use_of_a_reading_whose_total_is_not_believed_is_not_believed() -> None:
    stale = Capacity(Figure(TOTAL, FigureSource.DRIVER, 1.0, stale=True))
    good, _ = judge.judge_memory_use(
        NO_MEMORY_USE, memory(used=7), capacity=Capacity(Figure(TOTAL, FigureSource.DRIVER, 1.0)), now=1.0
    )
    told, _ = judge.judge_memory_use(good, Answer(Memory(0, 0, 0, 0)), capacity=stale, now=2.0)
    assert (told.used.value, told.used.stale) == (7, True)
