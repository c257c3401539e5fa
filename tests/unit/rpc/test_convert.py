"""Model to API: nothing is lost or invented, ages come from the monotonic clock, unknown is never zero."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.model import (
    AllocationSpec,
    Compute,
    ComputePolicy,
    DeviceRequest,
    Figure,
    FigureSource,
    IsolationMode,
    Owner,
    OwnerKind,
    QosClass,
    Resources,
)
from hypervisor.rpc import convert
from hypervisor.rpc.convert import enums
from hypervisor.rpc.convert.moment import wall_timestamp
from hypervisor.rpc.convert.to_proto import bytes_to_proto, figure_to_proto
from hypervisor.v1 import types_pb2 as pb
from tests import builders

NOW = convert.Moment(monotonic=builders.OBSERVED_AT + 2.5, wall=builders.CREATED_AT + 100)


@pytest.mark.parametrize(
    "table",
    [value for name, value in vars(enums).items() if name.isupper()],
    ids=[n for n in vars(enums) if n.isupper()],
)
def test_tables_of_enumerations_are_complete(table) -> None:
    model = type(next(iter(table)))
    assert set(table) == set(model)
    assert len(set(table.values())) == len(table)
    assert 0 not in table.values()


def test_every_value_of_the_api_has_a_model() -> None:
    for enum, table in (
        (pb.HealthState, enums.HEALTH_STATES),
        (pb.IsolationMode, enums.ISOLATION_MODES),
        (pb.Enforcement, enums.ENFORCEMENTS),
        (pb.FigureSource, enums.FIGURE_SOURCES),
        (pb.PcieLevel, enums.PCIE_LEVELS),
        (pb.EventType, enums.EVENT_TYPES),
    ):
        assert set(enum.values()) - {0} == set(table.values())


def test_ages_and_wall_times_come_from_the_monotonic_clock() -> None:
    figure = figure_to_proto(builders.driver(41.0), NOW)
    assert (figure.value, figure.age_seconds, figure.source) == (41.0, 2.5, pb.FIGURE_SOURCE_DRIVER)
    assert figure.observed_at.ToNanoseconds() == round((builders.CREATED_AT + 97.5) * 1e9)
    later = convert.Moment(monotonic=builders.OBSERVED_AT - 1, wall=0.0)
    assert figure_to_proto(builders.driver(41.0), later).age_seconds == 0


def test_what_stands_in_a_table_has_no_age() -> None:
    figure = figure_to_proto(Figure(989.0, FigureSource.CATALOGUE), NOW)
    assert not figure.HasField("observed_at")
    assert figure.age_seconds == 0


def test_unknown_is_absent_with_its_reason() -> None:
    for message in (
        figure_to_proto(Figure.absent("not supported"), NOW),
        bytes_to_proto(Figure.absent("not supported"), NOW),
    ):
        assert message.absent_reason == "not supported"
        assert not message.HasField("value" if isinstance(message, pb.Figure) else "bytes")
    zero = figure_to_proto(builders.driver(0.0), NOW)
    assert zero.HasField("value")


def test_one_unknown_part_makes_the_sum_unknown() -> None:
    gpus = (builders.make_gpu(0), builders.make_gpu(1, tflops=Figure.absent("model unknown")))
    node = convert.node_to_proto(builders.make_snapshot(gpus=gpus), NOW)
    assert not node.tflops.HasField("value")
    assert node.tflops.absent_reason == "model unknown"
    assert node.vram.bytes == 2 * builders.VRAM


def test_a_stale_part_makes_the_sum_stale() -> None:
    gpus = (builders.make_gpu(0), builders.make_gpu(1, vram_bytes=builders.driver(builders.VRAM).as_stale()))
    node = convert.node_to_proto(builders.make_snapshot(gpus=gpus), NOW)
    assert node.vram.stale
    assert not node.tflops.stale


def test_a_node_without_gpus() -> None:
    node = convert.node_to_proto(builders.make_snapshot(gpus=0), NOW)
    assert (node.gpu_count, node.tflops.value, node.vram.bytes) == (0, 0.0, 0)


def test_a_whole_card_has_no_limit_figure() -> None:
    spec = builders.make_spec(devices=(DeviceRequest(gpu="0"),))
    allocation = builders.make_allocation(spec=spec, grants=(builders.make_grant(limit_vram_bytes=None),))
    (device,) = convert.allocation_to_proto(allocation, None, NOW).devices
    assert not device.limits.HasField("vram_bytes")
    assert not device.limits.HasField("compute")
    assert not device.HasField("usage")


def test_a_request_that_was_left_out_shows_the_limit() -> None:
    (device,) = convert.allocation_to_proto(builders.make_allocation(), builders.make_usage(), NOW).devices
    assert device.requests.compute.percent == "40"
    assert device.requests.vram_bytes == 8 * builders.GIB


def test_tampering_is_a_condition() -> None:
    usage = builders.make_usage(tampering="usage was truncated to 0 bytes")
    (condition,) = convert.allocation_to_proto(builders.make_allocation(), usage, NOW).conditions
    assert (condition.type, condition.status, condition.reason) == ("UsageTrusted", "False", "UsageTampered")


def test_events() -> None:
    message = convert.event_to_proto(builders.make_event(7, epoch=3))
    assert (message.epoch, message.sequence, message.regarding.kind) == (3, 7, "Allocation")
    assert dict(message.fields) == {"vram_bytes": str(8 * builders.GIB)}


@given(st.floats(allow_nan=False))
def test_no_time_breaks_a_timestamp(seconds: float) -> None:
    assert wall_timestamp(seconds).IsInitialized()
    wall_timestamp(seconds).ToJsonString()


AMOUNTS = st.builds(lambda units, places: Decimal(units) / 10**places, st.integers(1, 99_000_000), st.integers(0, 6))
COMPUTES = st.one_of(
    st.builds(lambda amount: Compute(tflops=amount), AMOUNTS.filter(lambda amount: amount <= 1_000_000)),
    st.builds(lambda amount: Compute(percent=amount), AMOUNTS.filter(lambda amount: amount <= 100)),
)
RESOURCES = st.builds(
    lambda compute, vram: Resources(compute=compute, vram_bytes=vram),
    st.none() | COMPUTES,
    st.none() | st.integers(1, 2**44 - 1),
)
SPECS = st.builds(
    lambda name, devices, isolation, qos, policy, labels: AllocationSpec(
        allocation_id=name,
        owner=Owner(kind=OwnerKind.NAMED, name=name),
        devices=tuple(devices),
        isolation=isolation,
        qos=qos,
        policy=policy,
        labels=tuple(sorted(labels.items())),
    ),
    st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z"),
    st.lists(
        st.builds(
            lambda gpu, requests, limits: DeviceRequest(gpu=gpu, requests=requests, limits=limits),
            st.sampled_from(["", "0", builders.uuid(3)]),
            RESOURCES,
            RESOURCES,
        ),
        min_size=1,
        max_size=16,
    ),
    st.sampled_from(IsolationMode),
    st.sampled_from(QosClass),
    st.sampled_from(ComputePolicy),
    st.dictionaries(st.from_regex(r"\A[a-z]{1,8}\Z"), st.from_regex(r"\A[a-z ]{0,8}\Z"), max_size=4),
)


@given(SPECS)
def test_a_spec_survives_the_way_there_and_back_exactly(spec: AllocationSpec) -> None:
    raw = convert.spec_to_proto(spec).SerializeToString()
    assert convert.spec_from_proto(pb.AllocationSpec.FromString(raw)) == spec


def test_labels_of_a_node_are_reported() -> None:
    snapshot = builders.make_snapshot(labels=(("zone", "a"),))
    assert dict(convert.node_to_proto(snapshot, NOW).labels) == {"zone": "a"}
