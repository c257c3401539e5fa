"""What is published of a GPU follows from what the driver says and what was granted, and never from a guess."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.model import (
    Condition,
    ConditionStatus,
    Figure,
    HealthCode,
    HealthState,
    IsolationMode,
    Revision,
)
from hypervisor.node.derive import NEVER, Ratios, derive_gpus, settle
from tests import node_values as v

ONE = Ratios(tflops=1.0, vram=1.0)
# What the driver keeps of each card for itself.
KEPT = v.GIB


def derive(inventory, allocations=(), *, foreign=0, ratios=ONE, previous=None, now=5.0):
    """foreign: bytes of processes of no allocation on each device, None where that can't be said."""
    held = {device.identity.uuid: foreign for device in inventory.devices}
    return derive_gpus(inventory, allocations, foreign=held, ratios=ratios, previous=previous or {}, now=now)


def test_idle_card_is_available_whole() -> None:
    (gpu,) = derive(v.inventory(v.device()))
    assert gpu.allocatable
    assert (gpu.used_by, gpu.active_isolation, gpu.allocation_ids) == ("", None, ())
    assert gpu.available_tflops.value == 989.0
    assert gpu.available_vram_bytes.value == v.VRAM - KEPT
    assert gpu.unattributed_bytes.value == 0


def test_requests_and_strangers_are_subtracted() -> None:
    """A process of nobody's doesn't make the card foreign; what it holds can't be granted."""
    (gpu,) = derive(v.inventory(v.device()), [v.allocation("a"), v.allocation("b")], foreign=3 * v.GIB)
    assert gpu.allocation_ids == ("a", "b")
    assert gpu.requested_share_ppm == 500_000
    assert gpu.requested_tflops == 494.5
    assert gpu.available_tflops.value == 494.5
    assert gpu.unattributed_bytes.value == 3 * v.GIB
    assert gpu.available_vram_bytes.value == (80 - 16 - 3) * v.GIB - KEPT
    assert gpu.used_by == "tensor-fusion"
    assert gpu.active_isolation is IsolationMode.SOFT
    assert gpu.allocatable


def test_unknown_use_holds_grants_and_leaves_capacity() -> None:
    device = v.device(readings=v.readings(processes=None, reason="the driver lists no processes here"))
    (gpu,) = derive(v.inventory(device), foreign=None)
    assert not gpu.allocatable
    assert gpu.vram_bytes.value == v.VRAM
    assert gpu.available_vram_bytes.value is None
    assert gpu.available_vram_bytes.absent_reason == "the driver lists no processes here"
    assert gpu.used_by == "unknown"
    (condition,) = gpu.conditions
    assert condition.code is HealthCode.USE_UNKNOWN
    assert "the driver lists no processes here" in condition.message


@pytest.mark.parametrize("code", [HealthCode.USE_UNKNOWN, HealthCode.FOREIGN_USE])
def test_a_condition_that_holds_grants_is_not_told_twice(code: HealthCode) -> None:
    held = Condition(
        type=code.value, status=ConditionStatus.TRUE, code=code, message="said by the driver", last_transition_at=3.0
    )
    (gpu,) = derive(v.inventory(v.device(conditions=(held,))), foreign=None if code is HealthCode.USE_UNKNOWN else 0)
    assert not gpu.allocatable
    assert gpu.conditions == (held,)


def test_unknown_capacity_is_absent_and_not_zero() -> None:
    device = v.device(tflops=Figure.absent("the model is not in the catalogue"))
    (gpu,) = derive(v.inventory(device))
    assert gpu.available_tflops.value is None
    assert gpu.available_tflops.absent_reason == "the model is not in the catalogue"
    assert gpu.available_vram_bytes.value == v.VRAM - KEPT


@pytest.mark.parametrize(
    ("health", "allocatable"),
    [
        (HealthState.HEALTHY, True),
        (HealthState.DEGRADED, True),
        (HealthState.UNHEALTHY, False),
        (HealthState.LOST, False),
        (HealthState.BLIND, False),
        (HealthState.DRAINING, False),
        (HealthState.UNKNOWN, False),
    ],
)
def test_health_decides_on_new_grants(health: HealthState, *, allocatable: bool) -> None:
    (gpu,) = derive(v.inventory(v.device(health=health)))
    assert gpu.allocatable is allocatable
    assert gpu.available_vram_bytes.value == v.VRAM - KEPT


def test_ratios_stretch_capacity() -> None:
    (gpu,) = derive(v.inventory(v.device()), [v.allocation()], ratios=Ratios(tflops=2.0, vram=1.5))
    assert gpu.available_tflops.value == 989.0 * 1.75
    assert gpu.available_vram_bytes.value == (120 - 8) * v.GIB - KEPT


def test_devices_are_ordered_by_index() -> None:
    gpus = derive(v.inventory(v.device(2), v.device(0), v.device(1)))
    assert [gpu.identity.index for gpu in gpus] == [0, 1, 2]


def test_only_what_changed_gets_a_new_revision() -> None:
    first = derive(v.inventory(v.device(0), v.device(1)))
    published = {gpu.identity.uuid: gpu for gpu in first}
    second = derive(v.inventory(v.device(0), v.device(1)), [v.allocation(index=1)], previous=published, now=9.0)
    assert second[0] is first[0]
    assert second[1].revision == NEVER
    assert second[1].allocation_ids == ("a",)


def test_conditions_keep_the_time_of_their_transition() -> None:
    def condition(code: HealthCode, at: float = 0.0) -> Condition:
        return Condition(type="UseKnown", status=ConditionStatus.UNKNOWN, code=code, message="m", last_transition_at=at)

    (first,) = settle([condition(HealthCode.USE_UNKNOWN)], (), 5.0)
    (same,) = settle([condition(HealthCode.USE_UNKNOWN)], [first], 9.0)
    (other,) = settle([condition(HealthCode.FOREIGN_USE)], [first], 9.0)
    (own,) = settle([condition(HealthCode.FOREIGN_USE, at=7.0)], [first], 9.0)
    assert [each.last_transition_at for each in (first, same, other, own)] == [5.0, 5.0, 9.0, 7.0]


sizes = st.integers(min_value=0, max_value=200 * v.GIB)


@given(
    requests=st.lists(st.tuples(st.integers(0, 1_000_000), sizes), max_size=8),
    foreign=st.one_of(st.none(), sizes),
    ratio=st.sampled_from([0.5, 1.0, 1.1, 3.0]),
)
def test_available_is_what_is_left_and_never_negative(requests, foreign, ratio) -> None:
    allocations = [
        v.allocation(f"a{number}", share_ppm=share, vram_bytes=size, revision=Revision(1, number))
        for number, (share, size) in enumerate(requests)
    ]
    ratios = Ratios(tflops=ratio, vram=ratio)
    (gpu,) = derive(v.inventory(v.device()), allocations, foreign=foreign, ratios=ratios)
    if foreign is None:
        assert gpu.available_vram_bytes.value is None
        assert not gpu.allocatable
    else:
        asked = sum(size for _, size in requests)
        capacity = int(v.VRAM * Decimal(str(ratio)))
        assert gpu.available_vram_bytes.value == max(0, capacity - asked - foreign - KEPT)
    shares = sum(share for share, _ in requests) / 1_000_000
    assert gpu.available_tflops.value == pytest.approx(max(0.0, 989.0 * (ratio - shares)), abs=1e-5)
