"""The verdict holds only when the share achieved is the share promised."""

import io

import pytest

from hypervisor.demo.screen import Screen
from hypervisor.demo.table import Row, format_table
from hypervisor.demo.truth import Sample, Usage
from hypervisor.demo.verdict import achieved, judge_compute, judge_memory, why_starved


def samples(share: float, *, seconds: int = 10, peak: int = 100) -> list[Sample]:
    return [
        Sample(
            at_seconds=float(second),
            programs={"a": Usage(busy_seconds=share * second, held_bytes=50, peak_bytes=peak)},
        )
        for second in range(seconds + 1)
    ]


def test_share_is_busy_time_over_the_window() -> None:
    assert achieved(samples(0.25), "a", begin=2, end=6) == (pytest.approx(0.25), 4.0)


def test_a_machine_with_too_much_to_do_is_told() -> None:
    assert why_starved(3.9, 2) == ""
    assert "a load of 23 on 2 processors" in why_starved(23.1, 2)


def test_no_share_without_two_samples() -> None:
    assert achieved(samples(0.25), "a", begin=2, end=2.5) is None
    assert achieved(samples(0.25), "b", begin=0, end=9) is None


@pytest.mark.parametrize(("share", "holds"), [(0.25, True), (0.295, True), (0.32, False), (0.18, False), (0.0, False)])
def test_compute_is_judged_within_five_points(share: float, holds: bool) -> None:
    assert judge_compute(samples(share), "a", limit=0.25, begin=0, end=10, phase="").holds is holds


def test_too_short_a_window_does_not_count_as_held() -> None:
    assert not judge_compute(samples(0.25), "a", limit=0.25, begin=0, end=2, phase="").holds


@pytest.mark.parametrize(("peak", "holds"), [(100, True), (101, False), (0, False)])
def test_memory_is_judged_by_the_peak(peak: int, holds: bool) -> None:
    assert judge_memory(samples(0.25, peak=peak), "a", limit_bytes=100).holds is holds


def test_table_fits_a_terminal_of_80_columns() -> None:
    row = Row(
        name="x" * 30,
        gpu=7,
        limit_share=1.0,
        achieved_share=None,
        vram_limit_bytes=2**44 - 1,
        held_bytes=2**44 - 1,
        peak_bytes=2**44 - 1,
    )
    lines = format_table([row], title="t" * 100)
    assert all(len(line) <= 80 for line in lines)


def test_elsewhere_than_on_a_terminal_there_are_no_control_characters() -> None:
    out = io.StringIO()
    now = 0.0
    screen = Screen(out, clock=lambda: now)
    screen.show(["one"])
    screen.show(["two"])
    now = 5.0
    screen.show(["three"])
    screen.say("end")
    assert out.getvalue() == "one\nthree\nend\n"
