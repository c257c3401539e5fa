"""What is lent of a device's time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hypervisor.limits.lending import Demand, contract, lend


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


def asks(request: float, limit: float, weight: int = 1, *, active: bool = True) -> Demand:
    return Demand(limit=limit, request=request, weight=weight, active=active, borrows=False)


def test_limits_hold_as_long_as_they_fit_the_device() -> None:
    assert contract([asks(0.2, 0.4), asks(0.2, 0.6)]) == (None, None)
    assert contract([asks(0.25, 1.0), asks(0.75, 1.0, active=False)]) == (None, None)


def test_whoever_asks_has_what_was_guaranteed_and_the_rest_goes_by_weight() -> None:
    assert contract([asks(0.25, 1.0), asks(0.75, 1.0)]) == pytest.approx((0.25, 0.75))
    assert contract([asks(0.2, 1.0, 1), asks(0.2, 1.0, 3)]) == pytest.approx((0.35, 0.65))
    assert contract([asks(0.2, 0.3, 4), asks(0.1, 1.0, 1)]) == (None, pytest.approx(0.7))
    assert contract([asks(0.0, 1.0), asks(0.5, 0.5)]) == (pytest.approx(0.5), None)


def test_strangers_leave_less_and_then_what_was_promised_shrinks() -> None:
    assert contract([asks(0.3, 0.5), asks(0.3, 0.5)], foreign=0.2) == pytest.approx((0.4, 0.4))
    assert contract([asks(0.4, 0.5), asks(0.4, 0.5)], foreign=0.6) == pytest.approx((0.2, 0.2))


@given(
    some.lists(
        some.builds(asks, some.floats(0, 1), some.floats(0.01, 1), some.integers(0, 4), active=some.booleans()),
        max_size=8,
    ),
    some.floats(0, 2),
)
def test_never_above_the_limit_and_no_time_is_left(demands: list[Demand], foreign: float) -> None:
    shares = contract(demands, foreign=foreign)
    if any(share is not None for share in shares):
        active = [at for at, each in enumerate(demands) if each.active]
        given_out = [demands[at].limit if shares[at] is None else shares[at] for at in active]
        there_is = max(1 - foreign, 0.0)
        assert sum(share or 0 for share in given_out) == pytest.approx(there_is, abs=0.006 * len(active))
    for each, share in zip(demands, shares, strict=True):
        assert share is None or (each.active and 0 < share <= max(each.limit, 0.005))
