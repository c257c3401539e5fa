"""Admission: grants never sum to more than there is, and each refusal says which figure, why and what to do."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.allocations.admission import Rules, admit, admit_change
from hypervisor.allocations.foreign import foreign_bytes
from hypervisor.model import (
    Allocation,
    AllocationPhase,
    AllocationSpec,
    Compute,
    DeviceObservation,
    Figure,
    FigureSource,
    HealthCode,
    HealthState,
    Inventory,
    IsolationMode,
    Partition,
    ProcessOnGpu,
    Refusal,
    RefusalReason,
    Revision,
)
from tests.unit.allocations.builders import (
    CARD_BYTES,
    CARD_TFLOPS,
    GIB,
    device,
    inventory,
    named,
    percent,
    request,
    tflops,
    uuid_of,
)

RULES = Rules(tflops_ratio=1.0, vram_ratio=1.0, context_bytes=lambda _: 300 * 2**20)
ONE = inventory(device(0))
TWO = inventory(device(0), device(1))


def granted(spec: AllocationSpec, stock: Inventory, others: list[Allocation], rules: Rules = RULES) -> Allocation:
    grants = admit(spec, stock, others, rules)
    allocation = Allocation(
        spec=spec,
        uid=f"uid-{len(others)}",
        phase=AllocationPhase.ACTIVE,
        grants=grants,
        created_at=0.0,
        revision=Revision(1, 1),
        directory="",
    )
    others.append(allocation)
    return allocation


def refused(
    spec: AllocationSpec, stock: Inventory = ONE, others: list[Allocation] | None = None, rules: Rules = RULES
) -> Refusal:
    with pytest.raises(Refusal) as caught:
        admit(spec, stock, others or [], rules)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    ("compute", "ppm"),
    [
        (percent("40"), 400_000),
        (percent("12.5"), 125_000),
        (percent("33.3333"), 333_333),
        (percent("99.99999"), 1_000_000),
        (tflops("989"), 1_000_000),
        (tflops("247.25"), 250_000),
        (tflops("312"), 315_470),
        (None, 1_000_000),
    ],
)
def test_amounts_come_to_shares_without_truncation(compute: Compute | None, ppm: int) -> None:
    (grant,) = admit(named("job", request("0", compute=compute)), ONE, [], RULES)
    assert grant.limit_share_ppm == ppm


def test_a_request_that_is_left_out_is_the_limit_and_nothing_without_one() -> None:
    (grant,) = admit(named("job", request("0", compute=percent(40))), ONE, [], RULES)
    assert (grant.request_share_ppm, grant.limit_share_ppm) == (400_000, 400_000)
    assert (grant.request_vram_bytes, grant.limit_vram_bytes) == (0, None)


@pytest.mark.parametrize(
    ("compute", "parts"),
    [(tflops("164.833333"), 6), (percent("33.333333"), 3), (percent("14.285714"), 7), (tflops("329.666666"), 3)],
)
def test_parts_that_sum_to_the_card_are_all_granted(compute: Compute, parts: int) -> None:
    """Rounded to parts per million they would sum to more than the card."""
    others: list[Allocation] = []
    for part in range(parts):
        granted(named(f"job-{part}", request("0", compute=compute)), ONE, others)


def test_parts_that_sum_to_more_than_the_card_by_a_hair_are_not() -> None:
    others: list[Allocation] = []
    for part in range(2):
        granted(named(f"job-{part}", request("0", compute=percent("33.333334"))), ONE, others)
    assert refused(named("last", request("0", compute=percent("33.333333"))), ONE, others).reason is (
        RefusalReason.INSUFFICIENT_TFLOPS
    )


def test_vram_is_counted_to_the_byte() -> None:
    others: list[Allocation] = []
    granted(named("a", request("0", vram=CARD_BYTES - 400 * 2**20)), ONE, others)
    refusal = refused(named("b", request("0", vram=400 * 2**20 + 1)), ONE, others)
    assert refusal.reason is RefusalReason.INSUFFICIENT_VRAM
    assert f"{400 * 2**20} bytes" in refusal.remedy
    granted(named("b", request("0", vram=400 * 2**20)), ONE, others)


CASES: list[tuple[str, AllocationSpec, RefusalReason, str]] = [
    ("no device", replace(named(), devices=()), RefusalReason.INVALID_ARGUMENT, "devices"),
    ("unknown UUID", named("j", request("GPU-nope")), RefusalReason.GPU_NOT_FOUND, "devices[0].gpu"),
    ("unknown index", named("j", request("7")), RefusalReason.GPU_NOT_FOUND, "devices[0].gpu"),
    ("odd digits", named("j", request("²")), RefusalReason.GPU_NOT_FOUND, "devices[0].gpu"),
    (
        "duplicate",
        named("j", request("0"), request(uuid_of(0))),
        RefusalReason.INVALID_ARGUMENT,
        "devices[1].gpu",
    ),
    (
        "limit above card",
        named("j", request("0", compute=tflops("989.1"))),
        RefusalReason.LIMIT_ABOVE_CAPACITY,
        "devices[0].limits.compute",
    ),
    (
        "percent above 100",
        named("j", request("0", compute=percent("100.1"))),
        RefusalReason.LIMIT_ABOVE_CAPACITY,
        "devices[0].limits.compute",
    ),
    (
        "limit below request",
        named("j", request("0", compute=percent(10), compute_request=percent(20))),
        RefusalReason.LIMIT_BELOW_REQUEST,
        "devices[0].requests.compute",
    ),
    (
        "share too small",
        named("j", request("0", compute=percent("0.5"))),
        RefusalReason.INVALID_ARGUMENT,
        "devices[0].limits.compute",
    ),
    (
        "not a number",
        named("j", request("0", compute=Compute(percent=Decimal("NaN")))),
        RefusalReason.INVALID_ARGUMENT,
        "devices[0].limits.compute",
    ),
    (
        "negative",
        named("j", request("0", compute=percent(-1))),
        RefusalReason.INVALID_ARGUMENT,
        "devices[0].limits.compute",
    ),
    (
        "zero bytes",
        named("j", request("0", vram=0)),
        RefusalReason.INVALID_ARGUMENT,
        "devices[0].limits.vram_bytes",
    ),
    (
        "negative bytes",
        named("j", request("0", vram=-GIB)),
        RefusalReason.INVALID_ARGUMENT,
        "devices[0].limits.vram_bytes",
    ),
    (
        "more than a file can hold",
        named("j", request("0", vram=2**44)),
        RefusalReason.INVALID_ARGUMENT,
        "devices[0].limits.vram_bytes",
    ),
    (
        "vram above card",
        named("j", request("0", vram=CARD_BYTES + 1)),
        RefusalReason.LIMIT_ABOVE_CAPACITY,
        "devices[0].limits.vram_bytes",
    ),
    (
        "vram below context",
        named("j", request("0", vram=300 * 2**20 - 1)),
        RefusalReason.VRAM_BELOW_CONTEXT,
        "devices[0].limits.vram_bytes",
    ),
    (
        "vram limit below request",
        named("j", request("0", vram=GIB, vram_request=2 * GIB)),
        RefusalReason.LIMIT_BELOW_REQUEST,
        "devices[0].requests.vram_bytes",
    ),
    (
        "vram request above card",
        named("j", request("0", vram_request=CARD_BYTES + 1)),
        RefusalReason.INSUFFICIENT_VRAM,
        "devices[0].requests.vram_bytes",
    ),
    (
        "hard isolation",
        named("j", request("0"), isolation=IsolationMode.HARD),
        RefusalReason.ISOLATION_UNSUPPORTED,
        "isolation",
    ),
    (
        "partitioned without MIG",
        named("j", request("0"), isolation=IsolationMode.PARTITIONED),
        RefusalReason.ISOLATION_UNSUPPORTED,
        "isolation",
    ),
]


@pytest.mark.parametrize(("spec", "reason", "field"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_contradicts_is_refused_with_its_field(spec: AllocationSpec, reason: RefusalReason, field: str) -> None:
    refusal = refused(spec)
    assert (refusal.reason, refusal.field) == (reason, field)


def test_seventeen_devices_are_too_many_for_a_file() -> None:
    stock = inventory(*(device(index) for index in range(17)))
    refusal = refused(named("j", *(request(str(index)) for index in range(17))), stock)
    assert refusal.reason is RefusalReason.TOO_MANY_DEVICES
    assert len(admit(named("j", *(request(str(index)) for index in range(16))), stock, [], RULES)) == 16


def test_more_devices_than_the_node_has() -> None:
    refusal = refused(named("j", request(), request(), request()), TWO)
    assert refusal.reason is RefusalReason.TOO_MANY_DEVICES


def test_no_inventory_yet_is_not_a_missing_gpu() -> None:
    for gpu in ("", "0"):
        assert refused(named("j", request(gpu)), inventory()).reason is RefusalReason.NOT_READY


@pytest.mark.parametrize(
    ("observed", "reason"),
    [
        (device(health=HealthState.UNHEALTHY, code=HealthCode.GPU_UNREADABLE), RefusalReason.GPU_UNHEALTHY),
        (device(health=HealthState.LOST, code=HealthCode.GPU_LOST), RefusalReason.GPU_UNHEALTHY),
        (device(health=HealthState.DRAINING, code=HealthCode.GPU_DETACHED), RefusalReason.GPU_UNHEALTHY),
        (device(health=HealthState.BLIND, code=HealthCode.READER_HUNG), RefusalReason.USE_UNKNOWN),
        (device(health=HealthState.UNKNOWN), RefusalReason.USE_UNKNOWN),
        (device(code=HealthCode.USE_UNKNOWN), RefusalReason.USE_UNKNOWN),
        (device(code=HealthCode.FOREIGN_USE), RefusalReason.GPU_IN_USE),
        (device(vram_bytes=None), RefusalReason.USE_UNKNOWN),
    ],
)
def test_a_card_that_can_not_be_vouched_for_is_held_back(observed: DeviceObservation, reason: RefusalReason) -> None:
    for gpu in ("0", ""):
        assert refused(named("j", request(gpu, vram=GIB)), inventory(observed)).reason is reason


def test_a_degraded_card_is_granted() -> None:
    admit(named(), inventory(device(health=HealthState.DEGRADED, code=HealthCode.MODEL_UNKNOWN)), [], RULES)


def test_unknown_tflops_refuse_tflops_and_take_percent() -> None:
    stock = inventory(device(tflops=None))
    assert refused(named("j", request("0", compute=tflops(100))), stock).reason is RefusalReason.TFLOPS_UNKNOWN
    admit(named("j", request("0", compute=percent(10))), stock, [], RULES)


def test_two_modes_never_share_a_card() -> None:
    others: list[Allocation] = []
    granted(named("a", request("0", compute=percent(10))), TWO, others)
    shared = named("b", request("0", compute=percent(10)), isolation=IsolationMode.SHARED)
    refusal = refused(shared, TWO, others)
    assert refusal.reason is RefusalReason.ISOLATION_CONFLICT
    assert "'a'" in refusal.message
    (grant,) = admit(replace(shared, devices=(request("", compute=percent(10)),)), TWO, others, RULES)
    assert grant.gpu_index == 1


def test_a_mig_instance_is_asked_for_by_uuid_and_takes_partitioned() -> None:
    part = Partition(parent_uuid=uuid_of(0), gpu_instance_id=1, compute_instance_id=0, profile="1g.10gb")
    stock = inventory(device(0, partition=part))
    (grant,) = admit(
        named("j", request("mig-00000000", vram=GIB), isolation=IsolationMode.PARTITIONED), stock, [], RULES
    )
    assert grant.gpu_uuid == "MIG-00000000"
    assert refused(named("j", request("0")), stock).reason is RefusalReason.GPU_NOT_FOUND


def test_the_daemon_chooses_the_card_with_the_least_room_that_fits() -> None:
    others: list[Allocation] = []
    granted(named("a", request("1", compute=percent(60), vram=GIB)), TWO, others)
    assert granted(named("b", request(compute=percent(40), vram=GIB)), TWO, others).grants[0].gpu_index == 1
    assert granted(named("c", request(compute=percent(40), vram=GIB)), TWO, others).grants[0].gpu_index == 0


def test_a_choice_takes_no_card_that_the_request_names() -> None:
    grants = admit(named("j", request(), request("0")), TWO, [], RULES)
    assert [grant.gpu_index for grant in grants] == [1, 0]


def test_a_refused_choice_says_what_the_nearest_card_lacks() -> None:
    others: list[Allocation] = []
    granted(named("a", request("0", compute=percent(90), vram=GIB)), TWO, others)
    granted(named("b", request("1", compute=percent(70), vram=79 * GIB)), TWO, others)
    refusal = refused(named("c", request(compute=percent(20), vram=2 * GIB)), TWO, others)
    assert refusal.reason is RefusalReason.INSUFFICIENT_VRAM
    assert "none of 2 GPUs" in refusal.message


def test_what_strangers_hold_is_subtracted() -> None:
    held = device(processes=(ProcessOnGpu(pid=5, memory_bytes=10 * GIB, busy_ratio=None),), used_bytes=10 * GIB)
    stock = inventory(held)
    rules = replace(RULES, foreign_bytes=foreign_bytes(stock, {}, {}))
    refusal = refused(named("j", request("0", vram=71 * GIB)), stock, [], rules)
    assert refusal.reason is RefusalReason.INSUFFICIENT_VRAM
    assert "10Gi held by processes of no allocation" in refusal.message
    admit(named("j", request("0", vram=70 * GIB)), stock, [], rules)
    ours = replace(RULES, foreign_bytes=foreign_bytes(stock, {uuid_of(0): {5}}, {}))
    admit(named("j", request("0", vram=80 * GIB)), stock, [], ours)


def test_what_the_driver_keeps_for_itself_is_not_granted() -> None:
    whole = device()
    kept = Figure(551 * 2**20, FigureSource.DRIVER, 1.0)
    stock = inventory(replace(whole, readings=replace(whole.readings, memory_reserved_bytes=kept)))
    refusal = refused(named("j", request("0", vram=80 * GIB)), stock)
    assert refusal.reason is RefusalReason.INSUFFICIENT_VRAM
    assert "551Mi kept by the driver" in refusal.message
    admit(named("j", request("0", vram=80 * GIB - 551 * 2**20)), stock, [], RULES)


def test_use_that_can_not_be_read_holds_grants() -> None:
    stock = inventory(device(processes=None, used_bytes=None))
    rules = replace(RULES, foreign_bytes=foreign_bytes(stock, {}, {}))
    assert refused(named("j", request("0", vram=GIB)), stock, [], rules).reason is RefusalReason.USE_UNKNOWN


def test_without_process_figures_what_the_card_uses_beyond_our_accounts_is_foreign() -> None:
    unsaid = device(processes=(ProcessOnGpu(pid=5, memory_bytes=None, busy_ratio=None),), used_bytes=12 * GIB)
    assert foreign_bytes(inventory(unsaid), {}, {uuid_of(0): 2 * GIB}) == {uuid_of(0): 10 * GIB}
    # What the driver keeps comes on top of what is used: taking it off would grant memory that others hold.
    kept = replace(
        unsaid, readings=replace(unsaid.readings, memory_reserved_bytes=Figure(GIB, FigureSource.DRIVER, 1.0))
    )
    assert foreign_bytes(inventory(kept), {}, {uuid_of(0): 2 * GIB}) == {uuid_of(0): 10 * GIB}


def test_ratios_are_the_decimals_that_were_written() -> None:
    rules = replace(RULES, tflops_ratio=1.1, vram_ratio=1.1)
    others: list[Allocation] = []
    for part in range(11):
        granted(named(f"j{part}", request("0", compute=percent(10), vram=8 * GIB)), ONE, others, rules)
    assert refused(named("l", request("0", compute=percent(1))), ONE, others, rules).reason is (
        RefusalReason.INSUFFICIENT_TFLOPS
    )


# Figures whose sums meet the card exactly, or miss it by a hair, and any others.
COMPUTES = st.one_of(
    st.none(),
    st.sampled_from([percent(text) for text in ("50", "50.0001", "33.333333", "33.333334", "25", "100", "1.0001")]),
    st.sampled_from([tflops(text) for text in ("494.5", "494.500001", "329.666666", "329.666667", "989")]),
    st.decimals("0.5", "100", places=4).map(lambda value: Compute(percent=value)),
    st.decimals("5", "989", places=6).map(lambda value: Compute(tflops=value)),
)
VRAMS = st.one_of(st.none(), st.integers(2**28, CARD_BYTES), st.sampled_from([20 * GIB, 40 * GIB, 40 * GIB + 1]))
REQUESTS = st.builds(
    request,
    st.sampled_from(["", "0", "1", uuid_of(0)]),
    compute=COMPUTES,
    vram=VRAMS,
    compute_request=COMPUTES,
    vram_request=VRAMS,
)
SPECS = st.lists(st.lists(REQUESTS, min_size=1, max_size=2), min_size=1, max_size=25)


def asked_share(allocation: Allocation, place: int) -> Fraction:
    """What was asked for on a device, from the request and not from the grant."""
    wanted = allocation.spec.devices[place]
    compute = wanted.requests.compute or wanted.limits.compute
    if compute is None:
        return Fraction(0)
    if compute.percent is not None:
        return Fraction(compute.percent) / 100
    assert compute.tflops is not None
    return Fraction(compute.tflops) / Fraction(Decimal(str(CARD_TFLOPS)))


@given(SPECS, st.sampled_from([1.0, 1.5, 0.3]), st.sampled_from([1.0, 1.25, 0.7]))
def test_no_sequence_of_grants_promises_more_than_there_is(
    lists: list[list[object]], tflops_ratio: float, vram_ratio: float
) -> None:
    rules = replace(RULES, tflops_ratio=tflops_ratio, vram_ratio=vram_ratio)
    others: list[Allocation] = []
    refusals: list[Refusal] = []
    for number, devices in enumerate(lists):
        spec = named(f"job-{number}", *devices)  # type: ignore[arg-type]
        try:
            granted(spec, TWO, others, rules)
        except Refusal as refusal:
            refusals.append(refusal)
    assert all(refusal.remedy and refusal.field for refusal in refusals)
    for index in range(2):
        mine = [
            (allocation, place, grant)
            for allocation in others
            for place, grant in enumerate(allocation.grants)
            if grant.gpu_index == index
        ]
        assert sum(asked_share(allocation, place) for allocation, place, _ in mine) <= Fraction(str(tflops_ratio))
        assert sum(grant.request_vram_bytes for _, _, grant in mine) <= CARD_BYTES * Fraction(str(vram_ratio))
        for _, _, grant in mine:
            assert 0 <= grant.request_share_ppm <= grant.limit_share_ppm <= 1_000_000
            assert grant.limit_share_ppm >= 10_000
            assert grant.request_vram_bytes <= (grant.limit_vram_bytes or CARD_BYTES) <= CARD_BYTES


@given(SPECS)
def test_a_refusal_is_never_for_want_of_what_is_there(lists: list[list[object]]) -> None:
    """An independent sum says that there was no room when there is said to be none."""
    others: list[Allocation] = []
    for number, devices in enumerate(lists):
        spec = named(f"job-{number}", *devices[:1])  # type: ignore[arg-type]
        try:
            granted(spec, ONE, others)
        except Refusal as refusal:
            if refusal.reason is RefusalReason.INSUFFICIENT_VRAM:
                wanted = spec.devices[0].requests.vram_bytes or spec.devices[0].limits.vram_bytes
                assert wanted is not None
                assert sum(entry.grants[0].request_vram_bytes for entry in others) + wanted > CARD_BYTES


def test_a_change_that_shrinks_is_granted_on_a_sick_card() -> None:
    allocation = granted(named(), ONE, [])
    sick = inventory(device(health=HealthState.UNHEALTHY, code=HealthCode.GPU_UNREADABLE))
    (grant,) = admit_change(allocation, (request("0", compute=percent(20), vram=GIB),), sick, [], RULES)
    assert grant.limit_share_ppm == 200_000
    with pytest.raises(Refusal) as caught:
        admit_change(allocation, (request("0", compute=percent(50), vram=8 * GIB),), sick, [], RULES)
    assert caught.value.reason is RefusalReason.GPU_UNHEALTHY


def test_a_change_moves_no_device() -> None:
    allocation = granted(named(), TWO, [])
    with pytest.raises(Refusal) as caught:
        admit_change(allocation, (request("1", compute=percent(20), vram=GIB),), TWO, [], RULES)
    assert caught.value.field == "devices[0].gpu"
