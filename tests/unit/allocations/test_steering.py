"""The daemon's hand on the compute limits, seen from the files, on a clock of ours."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import pytest

from hypervisor.allocations import Allocations
from hypervisor.limits import DeviceControl, ShmFile
from hypervisor.model import (
    Allocation,
    AllocationSpec,
    BusyWindow,
    ComputePolicy,
    DeviceUsage,
    Enforcement,
    ProcessOnGpu,
    QosClass,
    Resources,
)
from tests.unit.allocations.builders import (
    BOOT,
    GIB,
    Node,
    device,
    inventory,
    named,
    percent,
    request,
    start_time,
)
from tests.unit.limits.tenant import DEVICES, SLOTS, Tenant, own_namespace

CHARGED = DEVICES + 192
BRIEF, LAID, CROWD = (DEVICES + offset for offset in (200, 208, 216))
COVERAGE = 720896
TICK_NS, TICKS_A_WORD, WORDS = 1_000_000, 48, 512
LAUNCHES = SLOTS + 64 + 24
NS = 1_000_000_000


@dataclass
class Clock:
    now: float = 5000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


class Pod:
    """An allocation seen from its files: it charges, and reads what the daemon wrote."""

    def __init__(self, allocation: Allocation) -> None:
        self.tenant = Tenant(Path(allocation.directory) / "usage")
        self.shm = ShmFile.open(Path(allocation.directory) / "shm", boot_id=BOOT)

    def charge(self, seconds: float) -> None:
        self.tenant.put(CHARGED, self.tenant.get(CHARGED) + round(seconds * NS))
        self.tenant.put(LAUNCHES, self.tenant.get(LAUNCHES) + 1000)

    def lay(self, seconds: float, until: float) -> None:
        """A long launch of one process was under way for so long, until this moment."""
        ticks = range(round((until - seconds) * NS) // TICK_NS, round(until * NS) // TICK_NS)
        for tick in ticks:
            place = COVERAGE + tick // TICKS_A_WORD % WORDS * 8
            turn = tick // TICKS_A_WORD // WORDS
            word = self.tenant.get(place)
            bits = word % 2**TICKS_A_WORD if word >> TICKS_A_WORD == turn else 0
            self.tenant.put(place, turn << TICKS_A_WORD | bits | 1 << tick % TICKS_A_WORD)
        for counter, amount in ((BRIEF, 1), (LAID, len(ticks) * TICK_NS), (CROWD, len(ticks) * TICK_NS)):
            self.tenant.put(counter, self.tenant.get(counter) + amount)

    @property
    def control(self) -> DeviceControl:
        return self.shm.control(0)


def granted(allocations: Allocations, spec: AllocationSpec) -> Pod:
    allocation, _ = allocations.allocate(spec, inventory(device()))
    return Pod(allocation)


def borrower(name: str, share: float, qos: QosClass = QosClass.MEDIUM) -> AllocationSpec:
    devices = (request("0", compute=percent(share), vram=GIB),)
    return named(name, *devices, policy=ComputePolicy.WORK_CONSERVING, qos=qos)


def owner(name: str, share: float) -> AllocationSpec:
    return named(name, request("0", compute=percent(share), vram=GIB))


def steps(allocations: Allocations, clock: Clock, *pods: Pod, count: int = 3) -> None:
    """Control steps of 0.1 s in which these Pods are at work."""
    for _ in range(count):
        for pod in pods:
            pod.charge(0.02)
        clock.now += 0.1
        allocations.step(inventory(device()))


def test_idle_time_is_lent_and_given_back_within_a_step(node: Node, clock: Clock) -> None:
    allocations = node.start()
    eager, lazy = granted(allocations, borrower("eager", 40)), granted(allocations, owner("lazy", 60))
    steps(allocations, clock, eager)
    assert eager.control.borrowed_ppm == 600_000
    assert eager.control.borrowed_until_ms == round(clock.now * 1000) + 200
    assert lazy.control.borrowed_ppm == 0
    steps(allocations, clock, eager, lazy, count=1)
    assert eager.control.borrowed_ppm == 0


def test_borrowers_share_by_weight(node: Node, clock: Clock) -> None:
    allocations = node.start()
    low = granted(allocations, borrower("low", 20, QosClass.LOW))
    critical = granted(allocations, borrower("critical", 20, QosClass.CRITICAL))
    steps(allocations, clock, low, critical)
    assert low.control.borrowed_ppm == pytest.approx(120_000, abs=1)
    assert critical.control.borrowed_ppm == pytest.approx(480_000, abs=1)


def test_a_hard_cap_and_an_idle_borrower_get_nothing(node: Node, clock: Clock) -> None:
    allocations = node.start()
    capped, idle = granted(allocations, owner("capped", 40)), granted(allocations, borrower("idle", 40))
    steps(allocations, clock, capped)
    assert capped.control.borrowed_ppm == 0
    assert idle.control.borrowed_ppm == 0


def eager_for(
    name: str, request_percent: float, limit_percent: float, qos: QosClass = QosClass.MEDIUM
) -> AllocationSpec:
    asked = request("0", compute=percent(limit_percent), vram=GIB)
    requests = Resources(compute=percent(request_percent), vram_bytes=GIB)
    return named(name, replace(asked, requests=requests), qos=qos)


def test_limits_above_the_card_are_contracted_while_all_are_at_work(node: Node, clock: Clock) -> None:
    allocations = node.start()
    small = granted(allocations, eager_for("small", 25, 80))
    large = granted(allocations, eager_for("large", 75, 90))
    generation = small.shm.state.generation
    steps(allocations, clock, small, large)
    assert (small.control.contracted_ppm, large.control.contracted_ppm) == (250_000, 750_000)
    assert small.control.contracted_until_ms == round(clock.now * 1000) + 200
    assert small.shm.state.generation == generation + 1  # also who has no limit of its own looks anew
    for _ in range(6):  # the other one has stopped
        steps(allocations, clock, small, count=1)
    assert small.control.contracted_until_ms <= round(clock.now * 1000)


def reading(
    allocations: Allocations, clock: Clock, pod: Pod, *, busy: float | None, charged: float, count: int
) -> DeviceUsage:
    """Readings once a second of a Pod whose one process is this one."""
    for _ in range(count):
        pod.charge(charged)
        clock.now += 1.0
        process = ProcessOnGpu(
            pid=os.getpid(),
            memory_bytes=GIB // 2,
            busy_ratio=busy,
            busy_observed_at=clock.now if busy is not None else None,
        )
        found = inventory(device(processes=(process,)), sequence=round(clock.now), observed_at=clock.now)
        usages = allocations.step(found)
    return usages[0].devices[0]


def windows(
    allocations: Allocations,
    clock: Clock,
    pod: Pod,
    *,
    busy: float,
    charged: float,
    count: int,
    beside: Mapping[int, float] = MappingProxyType({}),
    doubtful: frozenset[int] = frozenset(),
) -> None:
    """Windows of a sixth of a second, each with two control steps; the inventory stays the same."""
    process = ProcessOnGpu(pid=os.getpid(), memory_bytes=GIB // 2, busy_ratio=busy, busy_observed_at=clock.now)
    found = inventory(device(processes=(process,)), sequence=round(clock.now), observed_at=clock.now)
    (uuid,) = (one.identity.uuid for one in found.devices)
    for _ in range(count):
        pod.charge(charged / 6)
        window = BusyWindow(ended_at=clock.now, ratios={os.getpid(): busy, **beside}, doubtful=doubtful)
        for _ in range(2):
            clock.now += 1 / 12
            allocations.step(found, {uuid: window})


def test_each_window_counts_where_there_are_windows(node: Node, clock: Clock) -> None:
    allocations = node.start()
    assert allocations.sampled == frozenset()
    pod = attached(allocations)
    windows(allocations, clock, pod, busy=0.5, charged=0.25, count=1)
    assert len(allocations.sampled) == 1
    windows(allocations, clock, pod, busy=0.5, charged=0.25, count=6)
    assert pod.control.correction_ppm == pytest.approx(2_000_000, rel=0.02)


def test_others_turns_are_told_and_kept_over_a_restart(node: Node, clock: Clock) -> None:
    """One process has long launches under way all the time, and half of it the device is another's."""
    allocations = node.start()
    pod = attached(allocations)

    def go_on(with_these: Allocations, count: int) -> None:
        for _ in range(count):
            pod.lay(1 / 6, clock.now + 1 / 6)
            windows(with_these, clock, pod, busy=0.5, charged=0.5, count=1, beside={1: 0.5})

    go_on(allocations, 8)
    assert pod.control.others_ppm == pytest.approx(1_000_000, rel=0.05)
    assert pod.control.correction_ppm == pytest.approx(1_000_000, rel=0.02)
    assert pod.control.correction_at_ns > 0
    allocations.close()
    told = pod.control.others_ppm
    again = node.start()
    go_on(again, 1)
    assert pod.control.others_ppm == told


def attached(allocations: Allocations, share: float = 50) -> Pod:
    pod = granted(allocations, owner("job", share))
    pod.tenant.attach(0, pid=os.getpid(), start=start_time(os.getpid()), namespace=own_namespace())
    return pod


def test_neighbours_at_work_are_told_for_a_while(node: Node, clock: Clock) -> None:
    """Each window tells whether anybody else is at work; with a dead daemon the word ends by itself."""
    allocations = node.start()
    pod = attached(allocations)
    windows(allocations, clock, pod, busy=0.5, charged=0.5, count=1)
    assert pod.control.neighbours == 0
    assert clock.now * 1000 < pod.control.neighbours_until_ms < (clock.now + 1) * 1000
    windows(allocations, clock, pod, busy=0.5, charged=0.5, count=1, beside={1: 0.2, 2: 0.0, 3: 0.3})
    assert pod.control.neighbours == 2
    assert pod.control.others_ppm == pytest.approx(1_000_000 * (0.2 / 0.8 + 0.3 / 0.7), rel=0.01)  # as they look
    until_ms = pod.control.neighbours_until_ms
    clock.now += 1.0
    allocations.step(inventory(device()))
    assert pod.control.neighbours_until_ms == until_ms < clock.now * 1000


def test_costs_that_are_too_low_are_corrected(node: Node, clock: Clock) -> None:
    allocations = node.start()
    pod = attached(allocations)
    usage = reading(allocations, clock, pod, busy=0.5, charged=0.25, count=8)
    assert usage.pacing is not None
    assert usage.pacing.correction_frozen == ""
    assert pod.control.correction_ppm == pytest.approx(2_000_000, rel=0.02)
    assert usage.pacing.correction == pytest.approx(2.0, rel=0.02)
    assert usage.pacing.achieved_ratio.value == pytest.approx(0.5)


def test_a_restarted_daemon_goes_on_with_what_is_in_the_file(node: Node, clock: Clock) -> None:
    allocations = node.start()
    pod = attached(allocations)
    reading(allocations, clock, pod, busy=0.5, charged=0.25, count=8)
    before = pod.control
    allocations.close()
    again = node.start()
    usage = reading(again, clock, pod, busy=0.5, charged=0.25, count=1)
    assert pod.control.correction_ppm == before.correction_ppm
    assert usage.pacing is not None
    assert usage.pacing.correction == pytest.approx(2.0, rel=0.02)


def test_a_process_whose_sample_can_not_be_opens_nothing(node: Node, clock: Clock) -> None:
    """Counted as idle, it would halve the charges."""
    allocations = node.start()
    pod = attached(allocations)
    windows(allocations, clock, pod, busy=0.5, charged=0.5, count=6)
    windows(allocations, clock, pod, busy=0.0, charged=0.5, count=20, doubtful=frozenset({os.getpid()}))
    assert pod.control.correction_ppm == pytest.approx(1_000_000, rel=0.02)
    windows(allocations, clock, pod, busy=0.25, charged=0.5, count=20)
    assert pod.control.correction_ppm == pytest.approx(500_000, rel=0.05)


def test_without_samples_nothing_is_corrected_and_nothing_is_claimed(node: Node, clock: Clock) -> None:
    """HAMi 403: the driver has no samples of the processes; unknown is not zero."""
    allocations = node.start()
    pod = attached(allocations)
    usage = reading(allocations, clock, pod, busy=None, charged=0.25, count=8)
    assert pod.control.correction_ppm in {0, 1_000_000}
    assert usage.pacing is not None
    assert usage.pacing.correction_frozen
    assert allocations.usages[0].enforcement is Enforcement.UNVERIFIED


def test_time_above_the_limit_is_told_within_ten_readings(node: Node, clock: Clock) -> None:
    allocations = node.start()
    pod = attached(allocations, 25)
    reading(allocations, clock, pod, busy=0.9, charged=0.25, count=10)
    assert allocations.usages[0].enforcement is Enforcement.VERIFIED
    reading(allocations, clock, pod, busy=0.9, charged=0.25, count=2)
    assert allocations.usages[0].enforcement is Enforcement.VIOLATED
    assert node.reasons().count("ComputeOverLimit") == 1
    reading(allocations, clock, pod, busy=0.25, charged=0.25, count=1)
    assert allocations.usages[0].enforcement is Enforcement.VERIFIED
