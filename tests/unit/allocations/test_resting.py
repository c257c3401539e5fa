"""Allocations at rest: their figures stay what they were, as of now, and the first thing that moves ends the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hypervisor.allocations import measuring, rounds
from hypervisor.allocations.resting import STILL_ROUNDS, Moment
from hypervisor.model import AllocationUsage, ComputePolicy, Figure, FigureSource
from tests.unit.allocations.builders import GIB, Node, device, inventory, named, percent, request, start_time
from tests.unit.limits.tenant import Tenant, own_namespace

JOB = named("job", request("0", compute=percent(40), vram=2 * GIB))


@pytest.fixture(autouse=True)
def rounds_follow_each_other_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "ROUND_SECONDS", 0.0)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def figures(usage: AllocationUsage) -> list[object]:
    """Without their times."""
    (told,) = usage.devices
    return [
        usage.enforcement,
        usage.tampering,
        told.gpu_uuid,
        told.over,
        *((figure.value, figure.source, figure.absent_reason) for figure in _timed(usage)),
        told.pacing and (told.pacing.correction, told.pacing.correction_frozen, told.pacing.lent_ratio),
    ]


def _timed(usage: AllocationUsage) -> list:
    (told,) = usage.devices
    assert told.pacing is not None
    return [
        told.reserved_bytes,
        told.overhead_bytes,
        told.busy_ratio,
        told.throttled_seconds_total,
        told.launches_total,
        told.denials_total,
        told.pacing.achieved_ratio,
        told.pacing.balance_seconds,
    ]


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many devices were measured in full."""
    count: list[int] = []
    whole = measuring._device_usage

    def counted(*arguments: object) -> object:
        count.append(1)
        return whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(measuring, "_device_usage", counted)
    return count


def test_one_at_rest_has_the_figures_of_before_as_of_now(node: Node, worked_out: list[int]) -> None:
    allocations = node.start()
    allocations.allocate(JOB, inventory(device(0)))
    told = [allocations.step(inventory(device(0)))[0] for _ in range(STILL_ROUNDS + 3)]
    assert len(worked_out) < len(told)
    first, last = told[0], told[-1]
    assert figures(first) == figures(last)
    for before, after in zip(_timed(first), _timed(last), strict=True):
        if after.source is FigureSource.LIMITER:
            assert after.observed_at > before.observed_at


def test_who_attaches_ends_the_rest_at_once(node: Node, worked_out: list[int]) -> None:
    allocations = node.start()
    allocation, _ = allocations.allocate(JOB, inventory(device(0)))
    for _ in range(STILL_ROUNDS + 2):
        allocations.step(inventory(device(0)))
    before = len(worked_out)
    tenant = Tenant(Path(allocation.directory) / "usage")
    tenant.attach(0, pid=os.getpid(), start=start_time(os.getpid()), namespace=own_namespace())
    (usage,) = allocations.step(inventory(device(0)))
    tenant.close()
    assert len(worked_out) == before + 1
    assert usage.tampering == ""


def test_changed_limits_end_the_rest(node: Node, worked_out: list[int]) -> None:
    allocations = node.start()
    allocations.allocate(JOB, inventory(device(0)))
    for _ in range(STILL_ROUNDS + 2):
        allocations.step(inventory(device(0)))
    before = len(worked_out)
    allocations.update_limits(
        "job", (request("0", compute=percent(20), vram=GIB),), inventory(device(0)), expected=None
    )
    allocations.step(inventory(device(0)))
    assert len(worked_out) == before + 1


def test_a_file_that_was_tampered_with_ends_the_rest(node: Node) -> None:
    allocations = node.start()
    allocation, _ = allocations.allocate(JOB, inventory(device(0)))
    for _ in range(STILL_ROUNDS + 2):
        allocations.step(inventory(device(0)))
    with (Path(allocation.directory) / "usage").open("r+b") as file:
        file.truncate(4096)
    (usage,) = allocations.step(inventory(device(0)))
    assert usage.tampering


def test_figures_that_say_the_same_are_told_apart_by_kind_and_source() -> None:
    """A count of 0 and 0.0 seconds are no one figure, nor what limiter and driver say; each has its own time."""
    moment = Moment(accounted_at=5.0, driver_at=7.0)
    old = [
        Figure(value, source, 1.0) for value in (0, 0.0, 1) for source in (FigureSource.LIMITER, FigureSource.DRIVER)
    ]
    new = [moment.of(figure) for figure in old]
    for before, after in zip(old, new, strict=True):
        assert (after.value, type(after.value), after.source) == (before.value, type(before.value), before.source)
        assert after.observed_at == (5.0 if before.source is FigureSource.LIMITER else 7.0)
    absent: Figure[int] = Figure.absent("nobody says")
    assert moment.of(absent) == absent


def test_the_node_is_calm_until_compute_is_limited_or_shared_out(node: Node) -> None:
    allocations = node.start()
    allocation, _ = allocations.allocate(JOB, inventory(device(0)))
    allocations.step(inventory(device(0)))
    assert allocations.calm
    tenant = Tenant(Path(allocation.directory) / "usage")
    tenant.attach(0, pid=os.getpid(), start=start_time(os.getpid()), namespace=own_namespace())
    allocations.step(inventory(device(0)))
    assert not allocations.calm
    tenant.close()


@pytest.mark.parametrize("policy", list(ComputePolicy))
def test_whoever_may_borrow_is_looked_after_with_each_step(node: Node, policy: ComputePolicy) -> None:
    allocations = node.start()
    allocations.allocate(named("job", request("0", compute=percent(40), vram=GIB), policy=policy), inventory(device(0)))
    allocations.step(inventory(device(0)))
    assert allocations.calm == (policy is not ComputePolicy.WORK_CONSERVING)
