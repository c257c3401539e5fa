"""Circuits: what opens them, what closes them, and what the node's capacity needs to fall."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.gpu.health.circuit import CLOSED, CapacityGuard, Circuit, CircuitState, Panel


def after(readings: str) -> Circuit:
    circuit = CLOSED
    for reading in readings:
        circuit = circuit.after_good() if reading == "g" else circuit.after_bad()
    return circuit


@pytest.mark.parametrize(
    ("readings", "state", "trips"),
    [
        ("", CircuitState.CLOSED, 0),
        ("bb", CircuitState.CLOSED, 0),
        ("bbgbb", CircuitState.CLOSED, 0),
        ("bbb", CircuitState.OPEN, 1),
        ("bbbg", CircuitState.HALF_OPEN, 1),
        ("bbbgg", CircuitState.HALF_OPEN, 1),
        ("bbbggb", CircuitState.OPEN, 1),
        ("bbbggbgg", CircuitState.HALF_OPEN, 1),
        ("bbbggg", CircuitState.CLOSED, 1),
        ("bbbgggbb", CircuitState.CLOSED, 1),
        ("bbbgggbbb", CircuitState.OPEN, 2),
    ],
)
def test_three_bad_ones_open_and_three_good_ones_close(readings: str, state: CircuitState, trips: int) -> None:
    circuit = after(readings)
    assert (circuit.state, circuit.trips) == (state, trips)


@given(st.text("gb", max_size=60))
def test_the_last_three_readings_decide_or_nothing_does(readings: str) -> None:
    circuit = after(readings)
    if readings.endswith("bbb"):
        assert circuit.state is CircuitState.OPEN
    if readings.endswith("ggg"):
        assert circuit.state is CircuitState.CLOSED
    assert circuit.trips <= readings.count("bbb") + 1


def test_a_panel_holds_a_good_reading_while_its_circuit_is_open() -> None:
    panel = Panel({"power": after("bbb"), "energy": after("bb")})
    assert not panel.lets_pass("power", known=True, problem="", reason="")
    assert panel.lets_pass("energy", known=True, problem="", reason="")
    assert panel.lets_pass("temperature", known=False, problem="", reason="")
    assert panel.lets_pass("power", known=False, problem="power of 0", reason="zero")
    assert panel.rejections == [("power", "zero")]
    assert panel.circuits["power"].state is CircuitState.OPEN
    assert panel.circuits["energy"] == CLOSED
    assert "temperature" not in panel.circuits


def never(_: str) -> bool:
    return False


CARDS = {f"GPU-{index}": 80 for index in range(8)}


def test_one_card_of_many_may_get_smaller() -> None:
    guard = CapacityGuard()
    assert guard.check(CARDS, never, now=0.0) == {}
    assert guard.check(CARDS | {"GPU-0": 40}, never, now=0.0) == {}
    assert guard.accepted["GPU-0"] == 40
    assert guard.summary == ""


def test_a_fall_of_the_node_takes_two_sources() -> None:
    guard = CapacityGuard()
    guard.check(CARDS, never, now=0.0)
    half = dict.fromkeys(CARDS, 40)
    assert guard.check(half, never, now=0.0) == CARDS
    assert guard.check({}, never, now=0.0) == {}
    assert (guard.trips, len(guard.holding)) == (1, 8)
    assert "lost 320 of the node's 640 bytes" in guard.summary
    assert guard.check(half, lambda _: True, now=0.0) == {}
    assert (guard.holding, guard.accepted) == ({}, half)


def test_a_fall_that_was_none_is_forgotten() -> None:
    guard = CapacityGuard()
    guard.check(CARDS, never, now=0.0)
    guard.check(dict.fromkeys(CARDS, 40), never, now=0.0)
    assert guard.check(CARDS, never, now=0.0) == {}
    assert (guard.holding, guard.summary) == ({}, "")


def test_a_fall_in_portions_is_one_fall() -> None:
    """Each of them would be believed by itself: a tenth of the node each."""
    guard = CapacityGuard()
    guard.check(CARDS, never, now=0.0)
    told = dict(CARDS)
    for index in range(3):
        told[f"GPU-{index}"] = 40
        assert guard.check(told, never, now=index * 5.0) == {}
        assert guard.accepted == told
    told["GPU-3"] = 40
    assert guard.check(told, never, now=15.0) == {f"GPU-{index}": 80 for index in range(4)}
    assert guard.accepted == CARDS
    assert guard.trips == 1
    assert guard.check(CARDS, never, now=16.0) == {}
    assert guard.summary == ""


def test_portions_that_are_silent_for_a_round_count_as_well() -> None:
    guard = CapacityGuard()
    guard.check(CARDS, never, now=0.0)
    guard.check({"GPU-0": 10}, never, now=1.0)
    assert guard.check({"GPU-1": 10}, never, now=2.0) == {"GPU-0": 80, "GPU-1": 80}


def test_falls_long_apart_are_single_ones() -> None:
    guard = CapacityGuard()
    guard.check(CARDS, never, now=0.0)
    told = dict(CARDS)
    for index in range(4):
        told[f"GPU-{index}"] = 40
        assert guard.check(told, never, now=index * 61.0) == {}


def test_a_fall_that_is_confirmed_later_is_no_portion_of_another() -> None:
    guard = CapacityGuard()
    guard.check(CARDS, never, now=0.0)
    guard.check(CARDS | {"GPU-0": 10}, never, now=1.0)
    told = CARDS | {"GPU-0": 10, "GPU-1": 10}
    assert guard.check(told, lambda uuid: uuid == "GPU-0", now=2.0) == {}
    assert guard.accepted == told


def test_growth_needs_no_second_source() -> None:
    guard = CapacityGuard()
    guard.check({"GPU-0": 40}, never, now=0.0)
    assert guard.check({"GPU-0": 80}, never, now=0.0) == {}
    assert guard.accepted == {"GPU-0": 80}
