"""What an allocation did at which moments: the line of moments in its usage file, and the readings beside it."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hypervisor.limits import UsageFile
from hypervisor.limits.aligned import LOOKED_BACK, Aligned
from hypervisor.limits.control import Reading
from hypervisor.limits.coverage import TICK_NS, TICKS_A_ROUND, TICKS_A_WORD, WORDS, covered_ns
from hypervisor.limits.usage import WorkAccount

MS = 1_000_000
NS = 1_000_000_000
WINDOW = 1 / 6


class Line:
    """A line of moments, written bit by bit as the header describes it."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(8 * WORDS * 2))
        self.descriptor = os.open(path, os.O_RDWR)

    def lay(self, begin_ns: int, end_ns: int, *, device: int = 0) -> None:
        for tick in range((begin_ns + TICK_NS // 2) // TICK_NS, (end_ns + TICK_NS // 2) // TICK_NS):
            place = 8 * (device * WORDS + tick % TICKS_A_ROUND // TICKS_A_WORD)
            (word,) = struct.unpack("<Q", os.pread(self.descriptor, 8, place))
            turn = tick // TICKS_A_ROUND % 2**16
            bits = word & 2**TICKS_A_WORD - 1 if word >> TICKS_A_WORD == turn else 0
            bits |= 1 << tick % TICKS_A_ROUND % TICKS_A_WORD
            os.pwrite(self.descriptor, struct.pack("<Q", turn << TICKS_A_WORD | bits), place)

    def covered(self, begin_ns: int, end_ns: int, *, device: int = 0) -> int:
        return covered_ns(self.descriptor, 0, device, begin_ns, end_ns)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    line = Line(tmp_path / "line")
    yield line
    os.close(line.descriptor)


def test_what_was_laid_down_is_found(line: Line) -> None:
    chance = random.Random(3)
    at = 987_654_321_000
    for _ in range(60):
        begin = at + chance.randrange(40 * MS)
        end = begin + chance.randrange(1, 120) * MS
        line.lay(begin, end)
        assert line.covered(at, begin) == 0
        assert line.covered(begin, end) == pytest.approx(end - begin, abs=2 * TICK_NS)
        assert line.covered(begin, end, device=1) == 0
        at = end


def test_the_round_before_counts_as_none(line: Line) -> None:
    start = 5 * TICKS_A_ROUND * TICK_NS - 20 * MS  # across the end of the ring
    line.lay(start, start + 100 * MS)
    assert line.covered(start, start + 100 * MS) == 100 * MS
    later = start + TICKS_A_ROUND * TICK_NS
    assert line.covered(later, later + 100 * MS) == 0


@given(
    some.randoms(use_true_random=False),
    some.integers(0, 2**62),
    some.integers(-10 * NS, 100 * NS),
    some.integers(0, 8 * WORDS),
)
def test_whatever_the_file_holds_it_is_at_most_the_time(
    chance: random.Random, begin: int, length: int, size: int
) -> None:
    descriptor = os.memfd_create("line")
    try:
        os.write(descriptor, chance.randbytes(size))
        assert 0 <= covered_ns(descriptor, 0, 0, begin, begin + length) <= max(length, 0) + TICK_NS
    finally:
        os.close(descriptor)


class Usage(UsageFile):
    """An account in which one process has had a long launch under way since the start, and half of each window it had
    its turn."""

    def __init__(self, account: WorkAccount | None) -> None:
        self.account = account

    def work(self, device: int) -> WorkAccount | None:
        return self.account

    def covered_ns(self, device: int, begin_ns: int, end_ns: int) -> int:
        return end_ns - begin_ns


def reading(window: int) -> Reading:
    return Reading(
        busy_ratio=0.5,
        busy_at=100 + window * WINDOW,
        charged_ns=10**12,
        a_launch_ns=2e7,
        charged_at=100.05 + window * WINDOW,
        share=0.5,
    )


def test_a_reading_waits_for_the_next_window_and_has_others_turns_taken_off() -> None:
    usage, aligned = Usage(WorkAccount(1, 0, 0)), Aligned()
    assert aligned.after(reading(0), usage, 0) is None
    given: list[Reading] = []
    for window in range(1, 6):
        laid = round(window * WINDOW * NS)
        usage.account = WorkAccount(1, laid, laid)
        ready = aligned.after(reading(window), usage, 0)
        assert ready is not None
        assert ready.busy_at == reading(window - 1).busy_at
        given.append(ready)
    assert aligned.turns.value == pytest.approx(1.0, abs=0.02)
    assert given[-1].covered_ns - given[-2].covered_ns == pytest.approx(WINDOW * NS / 2, rel=0.02)
    assert given[-1].charged_ns == 1


def test_a_change_that_is_told_in_a_window_or_just_after_it_marks_its_reading() -> None:
    """A reading is judged when the next window has ended, and what was found out in that is known by then."""
    usage, aligned = Usage(WorkAccount(1, 0, 0)), Aligned()
    marked: list[bool] = []
    for window in range(8):
        usage.account = WorkAccount(1, 0, 0, 7 if window >= 4 else 0)
        ready = aligned.after(reading(window), usage, 0)
        marked.append(ready is not None and ready.relearned)
    assert marked == [False] * 4 + [True] * 2 + [False] * 2


def test_a_limiter_that_tells_no_moments_is_read_as_before() -> None:
    usage, aligned = Usage(None), Aligned()
    assert aligned.after(reading(0), usage, 0) == reading(0)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.8])
def test_processes_that_tell_no_moments_beside_one_that_does_are_read_as_before(part: float) -> None:
    """A second's charges come each second, and only a part of them is told."""
    usage, aligned = Usage(WorkAccount(1, 0, 0)), Aligned()
    for window in range(150):
        told = round(window * WINDOW * NS * part)
        usage.account = WorkAccount(1 + told, 0, 0)
        now = replace(reading(window), charged_ns=round(window * WINDOW * NS))
        ready = aligned.after(now, usage, 0)
        assert (ready is now) == (window >= LOOKED_BACK)


def test_a_few_long_launches_among_many_short_ones_are_not_taken_for_it_either() -> None:
    """Eight graphs of a second are charged and not on the line; the mean launch is short."""
    usage, aligned = Usage(WorkAccount(1, 0, 0)), Aligned()
    charged, late = 0, 8 * NS
    for window in range(300):
        charged = round(window * WINDOW * NS / 2)
        usage.account = WorkAccount(1, max(charged - late, 0), max(charged - late, 0))
        now = replace(reading(window), charged_ns=charged, a_launch_ns=1e7, processes=8, unfinished_ns=late)
        assert aligned.after(now, usage, 0) is not now


def test_long_launches_that_are_under_way_are_not_taken_for_processes_that_tell_nothing() -> None:
    """Eight processes have two launches of a second each that are charged and not on the line yet."""
    usage, aligned = Usage(WorkAccount(1, 0, 0)), Aligned()
    charged, late = 0, 16 * NS
    for window in range(300):
        charged = round(window * WINDOW * NS / 2)
        usage.account = WorkAccount(1, max(charged - late, 0), max(charged - late, 0))
        now = replace(reading(window), charged_ns=charged, a_launch_ns=1e9, processes=8)
        assert aligned.after(now, usage, 0) is not now
