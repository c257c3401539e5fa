"""A reset is seen by counts that only a reset makes smaller, and a driver that lies is no reset."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hypervisor.gpu.health.facts import HealthFacts
from hypervisor.gpu.health.resets import Energy, seems_reset

ILL = HealthFacts(
    ecc_corrected_volatile=4,
    ecc_uncorrected_volatile=3,
    ecc_corrected_aggregate=9,
    ecc_uncorrected_aggregate=3,
    rows_corrected=1,
    rows_uncorrected=0,
    pcie_replays=7,
    throttled_seconds=(("power_cap", 12.5), ("hardware_thermal", 0.0)),
)
RESET = replace(ILL, ecc_corrected_volatile=0, ecc_uncorrected_volatile=0)
ZEROS = HealthFacts(
    ecc_corrected_volatile=0,
    ecc_uncorrected_volatile=0,
    ecc_corrected_aggregate=0,
    ecc_uncorrected_aggregate=0,
    rows_corrected=0,
    rows_uncorrected=0,
    pcie_replays=0,
    throttled_seconds=(("power_cap", 0.0), ("hardware_thermal", 0.0)),
)


@pytest.mark.parametrize("let_go", [False, True])
def test_a_reset_is_seen_by_a_count_that_falls(let_go: bool) -> None:
    assert seems_reset(ILL, RESET, let_go=let_go)
    assert not seems_reset(RESET, ILL, let_go=let_go)
    assert not seems_reset(ILL, ILL, let_go=let_go)
    assert not seems_reset(ILL, HealthFacts(), let_go=let_go)
    assert not seems_reset(HealthFacts(), ILL, let_go=let_go)


@pytest.mark.parametrize("let_go", [False, True])
def test_what_can_never_fall_tells_a_lie(let_go: bool) -> None:
    assert not seems_reset(ILL, ZEROS, let_go=let_go)


@pytest.mark.parametrize(
    "fallen", [{"pcie_replays": 0}, {"throttled_seconds": (("hardware_thermal", 0.0), ("power_cap", 0.1))}]
)
def test_further_counts_tell_only_of_a_card_that_nobody_held(fallen: dict) -> None:
    after = replace(ILL, **fallen)
    assert seems_reset(ILL, after, let_go=True)
    assert not seems_reset(ILL, after, let_go=False)


def test_a_reason_that_is_no_longer_told_has_not_fallen() -> None:
    assert not seems_reset(ILL, replace(ILL, throttled_seconds=()), let_go=True)


def started(*values: float) -> list[bool]:
    energy, told = Energy(), []
    for value in values:
        energy, one = energy.after(value)
        told.append(one)
    return told


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ((5, 6, 6, 7), [False] * 4),
        ((500, 1, 2, 3), [False, False, True, False]),
        ((500, 0, 0, 0, 501), [False] * 5),  # zero without cause
        ((500, 3, 501, 4, 502), [False] * 5),  # one answer that no second confirms
        ((500, 9, 3, 4), [False, False, False, True]),
    ],
)
def test_energy_that_begins_anew(values: tuple[float, ...], told: list[bool]) -> None:
    assert started(*values) == told
