"""GPM's windows of a device, and whose they are: of an allocation that was alone there all the while, or nobody's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hypervisor.allocations import Allocations
from hypervisor.allocations.witness import is_alone
from hypervisor.model import DeviceUsage, DeviceWindow, Enforcement, FigureSource, ProcessOnGpu
from tests.unit.allocations.builders import GIB, Node, device, inventory, start_time, uuid_of
from tests.unit.allocations.test_rounds import MAPPER
from tests.unit.allocations.test_steering import Clock, Pod, attached, granted, owner
from tests.unit.limits.tenant import Tenant, own_namespace

OWN = os.getpid()
FULL = 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def window(clock: Clock, busy: float, *, pids: frozenset[int] | None, others: tuple[str, ...] = ()) -> DeviceWindow:
    return DeviceWindow(
        begun_at=clock.now - 1 / 6,
        ended_at=clock.now,
        ratio=busy,
        uuids=frozenset({uuid_of(0), *others}),
        pids=pids,
    )


def windows(
    allocations: Allocations,
    clock: Clock,
    pod: Pod,
    *,
    busy: float = 0.5,
    charged: float = 0.25,
    count: int = 12,
    pids: frozenset[int] | None = frozenset({OWN}),
    changed: dict[str, object] | None = None,
) -> DeviceUsage:
    """Windows of a sixth of a second with two control steps in each, and a round with each window."""
    process = ProcessOnGpu(pid=OWN, memory_bytes=GIB // 2, busy_ratio=None)
    for _ in range(count):
        pod.charge(charged / 6)
        told = replace(window(clock, busy, pids=pids), **(changed or {}))
        for _ in range(2):
            clock.now += 1 / 12
            found = inventory(device(processes=(process,)), sequence=round(clock.now * 60), observed_at=clock.now)
            usages = allocations.step(found, {uuid_of(0): told})
    mine = next(each for each in usages if each.processes)
    return mine.devices[0]


def enforcement(allocations: Allocations) -> Enforcement:
    return next(each.enforcement for each in allocations.usages if each.allocation_id == "job")


def test_who_is_alone_is_corrected_and_verified_by_gpm(node: Node, clock: Clock) -> None:
    allocations = node.start()
    pod = attached(allocations)
    usage = windows(allocations, clock, pod)
    assert pod.control.correction_ppm == pytest.approx(2_000_000, rel=0.02)
    assert usage.pacing is not None
    assert (usage.pacing.correction_frozen, usage.busy_ratio.source) == ("", FigureSource.GPM)
    assert usage.pacing.achieved_ratio.value == pytest.approx(0.5)
    assert usage.pacing.achieved_ratio.source is FigureSource.GPM
    assert enforcement(allocations) is Enforcement.VERIFIED
    assert pod.control.measured_busy_ns == pytest.approx(0.5 * (12 - 1) / 6 * 1e9, rel=0.1)


def test_who_is_alone_is_told_that_there_are_no_neighbours(node: Node, clock: Clock) -> None:
    allocations = node.start()
    pod = attached(allocations)
    windows(allocations, clock, pod)
    assert (pod.control.neighbours, pod.control.neighbours_until_ms > clock.now * 1000) == (0, True)
    windows(allocations, clock, pod, pids=frozenset({OWN, 1}), count=12)
    assert pod.control.neighbours_until_ms < clock.now * 1000, "of others nothing is known"


def test_time_above_the_limit_is_seen_by_gpm(node: Node, clock: Clock) -> None:
    allocations = node.start()
    pod = attached(allocations, 25)
    windows(allocations, clock, pod, busy=0.9, charged=0.25, count=6 * 13)
    assert enforcement(allocations) is Enforcement.VIOLATED
    assert "ComputeOverLimit" in node.reasons()


@pytest.mark.parametrize("pids", [None, frozenset({OWN, 1}), frozenset({1})])
def test_with_a_stranger_or_without_a_list_nothing_is_attributed(
    node: Node, clock: Clock, pids: frozenset[int] | None
) -> None:
    allocations = node.start()
    pod = attached(allocations)
    usage = windows(allocations, clock, pod, pids=pids)
    unchanged(allocations, pod, usage)


def unchanged(allocations: Allocations, pod: Pod, usage: DeviceUsage, before: int = 0) -> None:
    assert pod.control.correction_ppm in {before, before or FULL}
    assert usage.pacing is not None
    assert usage.pacing.correction_frozen
    assert usage.busy_ratio.value is None
    assert enforcement(allocations) is Enforcement.UNVERIFIED


@contextmanager
def neighbour(allocations: Allocations) -> Iterator[None]:
    """Another allocation on the same GPU, with a process that has mapped its file."""
    allocation, _ = allocations.allocate(owner("other", 20), inventory(device()))
    path = Path(allocation.directory) / "usage"
    command = [sys.executable, "-ISc", MAPPER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{path}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "mapped\n"
        Tenant(path).attach(0, pid=process.pid, start=start_time(process.pid), namespace=own_namespace())
        yield
        process.kill()


def test_a_neighbour_that_is_attached_spoils_it_also_unlisted(node: Node, clock: Clock) -> None:
    allocations = node.start()
    pod = attached(allocations)
    granted(allocations, owner("unused", 10))
    windows(allocations, clock, pod)
    assert enforcement(allocations) is Enforcement.VERIFIED, "an allocation without processes is no neighbour"
    before = pod.control.correction_ppm
    with neighbour(allocations):
        usage = windows(allocations, clock, pod, busy=0.9, count=30)
    unchanged(allocations, pod, usage, before)


def test_a_neighbour_in_another_part_of_the_same_instance_spoils_it(node: Node, clock: Clock) -> None:
    allocations = node.start()
    pod = attached(allocations)
    with neighbour(allocations):
        elsewhere = windows(allocations, clock, pod, changed={"uuids": frozenset({"MIG-a"})})
        assert elsewhere.busy_ratio.source is FigureSource.GPM, "the neighbour is on none of these devices"
        usage = windows(allocations, clock, pod, changed={"uuids": frozenset({"MIG-a", uuid_of(0)})}, count=30)
    assert usage.busy_ratio.value is None


def test_one_window_with_a_stranger_is_left_out_and_the_rest_counts(node: Node, clock: Clock) -> None:
    allocations = node.start()
    pod = attached(allocations)
    windows(allocations, clock, pod)
    before = pod.control.correction_ppm
    usage = windows(allocations, clock, pod, busy=1.0, pids=frozenset({OWN, 1}), count=6)
    assert pod.control.correction_ppm == before
    assert usage.busy_ratio.value == 0.5, "what was last seen of it alone"
    windows(allocations, clock, pod, count=6)
    assert pod.control.correction_ppm == pytest.approx(before, rel=0.02)
    assert enforcement(allocations) is Enforcement.VERIFIED


def test_without_new_windows_what_was_said_gets_old(node: Node, clock: Clock) -> None:
    allocations = node.start()
    pod = attached(allocations)
    windows(allocations, clock, pod)
    before = pod.control.correction_ppm
    old = {"begun_at": clock.now - 0.2, "ended_at": clock.now - 0.1}
    usage = windows(allocations, clock, pod, busy=0.1, changed=old, count=24)
    assert pod.control.correction_ppm == pytest.approx(before, rel=0.02)
    assert usage.busy_ratio.value is None
    assert enforcement(allocations) is Enforcement.UNVERIFIED


@pytest.mark.parametrize("ratio", [float("nan"), -1.0, 1e18])
def test_a_figure_that_can_not_be_never_opens_the_limit(node: Node, clock: Clock, ratio: float) -> None:
    allocations = node.start()
    pod = attached(allocations)
    windows(allocations, clock, pod)
    before = pod.control.correction_ppm
    windows(allocations, clock, pod, busy=ratio, count=12)
    assert pod.control.correction_ppm == before


def test_who_is_not_known_to_be_alone_is_not(node: Node, clock: Clock) -> None:
    allocations = node.start()
    pod = attached(allocations)
    windows(allocations, clock, pod, count=1)
    (held,) = allocations._held.values()
    told = window(clock, 0.5, pids=frozenset({OWN}))
    assert is_alone(held, told, [held])
    assert is_alone(held, replace(told, pids=frozenset()), [held])
    assert not is_alone(held, replace(told, pids=None), [held])
    held.unknown_slots = 1
    assert not is_alone(held, told, [held])
    held.unknown_slots = 0
    held.processes = (replace(held.processes[0], host_pid=None),)
    assert not is_alone(held, told, [held])
