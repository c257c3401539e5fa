"""What is lent of a device's time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hypervisor.limits.lending import Demand, lend


def demand(limit: float, weight: int = 1, *, active: bool = True, borrows: bool = True) -> Demand:
    return Demand(limit=limit, weight=weight, active=active, borrows=borrows)


def test_an_idle_device_is_lent_whole() -> None:
    assert lend([demand(0.4), demand(0.6, active=False)]) == pytest.approx((0.6, 0.0))


def test_an_owner_that_works_has_all_of_its_share() -> None:
    assert lend([demand(0.4), demand(0.6, borrows=False)]) == (0.0, 0.0)


def test_a_hard_cap_borrows_nothing() -> None:
    assert lend([demand(0.4, borrows=False)]) == (0.0,)


def test_borrowers_share_by_weight() -> None:
    assert lend([demand(0.2, 1), demand(0.2, 3)]) == pytest.approx((0.15, 0.45))


def test_what_one_has_no_room_for_goes_to_the_others() -> None:
    assert lend([demand(0.0, 1), demand(0.9, 4, active=True)]) == pytest.approx((0.02, 0.08))
    assert lend([demand(0.1, 1), demand(0.1, 4), demand(0.05, 4)]) == pytest.approx((0.75 / 9, 3 / 9, 3 / 9))


def test_what_strangers_use_is_not_lent() -> None:
    assert lend([demand(0.4)], foreign=0.5) == pytest.approx((0.1,))
    assert lend([demand(0.4)], foreign=7.0) == (0.0,)


@given(
    some.lists(
        some.builds(
            Demand,
            limit=some.floats(0.01, 1),
            weight=some.integers(0, 4),
            active=some.booleans(),
            borrows=some.booleans(),
        ),
        max_size=8,
    ),
    some.floats(0, 2),
)
def test_never_more_than_there_is(demands: list[Demand], foreign: float) -> None:
    lent = lend(demands, foreign=foreign)
    used = sum(each.limit for each in demands if each.active)
    assert sum(lent) <= max(0.0, 1 - used - foreign) + 1e-9
    for each, share in zip(demands, lent, strict=True):
        assert share == 0 or (each.active and each.borrows and each.limit + share <= 1 + 1e-9)
