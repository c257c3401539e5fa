"""The past of a row: values for sparklines, growth for rates."""

from __future__ import annotations

import pytest

from hypervisor.top.history import POINTS, History


def test_a_rate_is_growth_over_time() -> None:
    history = History()
    for at, value in ((0.0, 10.0), (1.0, 10.5), (2.0, 11.0)):
        history.record(at, [("a", value)])
    assert history.rate("a", 3.0) == pytest.approx(0.5)


def test_a_rate_needs_two_points() -> None:
    history = History()
    history.record(0.0, [("a", 10.0)])
    assert history.rate("a", 3.0) is None
    assert history.rate("b", 3.0) is None


def test_a_counter_that_began_anew_is_not_negative() -> None:
    history = History()
    history.record(0.0, [("a", 10.0)])
    history.record(1.0, [("a", 0.0)])
    assert history.rate("a", 3.0) == 0.0


def test_what_is_gone_is_forgotten_and_the_rest_is_bounded() -> None:
    history = History()
    for at in range(POINTS + 5):
        history.record(float(at), [("a", float(at)), *([("b", 1.0)] if at == 0 else [])])
    assert len(history.values("a")) == POINTS
    assert history.values("b") == []
