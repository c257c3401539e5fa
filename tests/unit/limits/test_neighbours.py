"""What a window of the driver says of others on the device."""

from __future__ import annotations

import pytest

from hypervisor.limits.neighbours import expected_turns, holds_until_ms, neighbours, others_busy


def test_who_was_at_work_and_is_not_ours_is_a_neighbour() -> None:
    assert neighbours({1: 0.2, 2: 0.1, 3: 0.0, 4: 0.7}, {1, 5}) == 2
    assert neighbours({1: 0.2}, {1}) == neighbours({}, {1}) == 0
    assert neighbours(dict.fromkeys(range(5000), 0.1), ()) == 1000


@pytest.mark.parametrize(
    ("ratios", "turns"),
    [
        ({1: 0.25}, 0),
        ({1: 0.25, 2: 0.75}, 1),  # always there when its turn comes
        ({1: 0.1, 2: 0.45, 3: 0.45}, 2),  # each of them, for the card is full
        ({1: 0.5, 2: 0.2}, 0.25),  # a fifth of the time, beside a launch of ours that fills the rest
        ({1: 0.9, 2: 0.1}, 1 / 9),  # the card is full, but not by this one
        ({1: 0.2, 2: float("nan"), 3: -1.0, 4: 7.0}, 0),
    ],
)
def test_turns_that_others_may_be_expected_to_have(ratios: dict[int, float], turns: float) -> None:
    assert expected_turns(ratios, {1}) == pytest.approx(turns)


def test_how_long_others_may_have_had_the_device() -> None:
    assert others_busy({1: 0.25, 2: 0.5, 3: 0.1}, {1}) == pytest.approx(0.6 + 2 * 0.005)
    assert others_busy({1: 0.25, 2: 0.0, 3: float("nan"), 4: 7.0}, {1}) == 0
    assert others_busy({2: 0.9, 3: 0.9}, ()) == 1


def test_the_word_ends_by_itself() -> None:
    assert holds_until_ms(100.0) == 100_600
