"""What reports and silence do to the objects, and what a version promises to a watcher."""

from __future__ import annotations

import pytest

from hypervisor.aggregator.liveness import LivenessWheel
from hypervisor.aggregator.records import GpuObject, NodeRecord
from hypervisor.aggregator.registry import Registry
from hypervisor.v1 import cluster_pb2, node_pb2, types_pb2
from tests.fleet import messages as m


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Told:
    """What the registry recorded: reason, name of the object, whether it is a warning."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, bool]] = []

    def record(
        self, node: object, reason: str, kind: str, name: str, uid: str, message: str, *, warning: bool, **fields: str
    ) -> None:
        assert message
        self.events.append((reason, name, warning))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def registry(clock: Clock, told: Told) -> Registry:
    return Registry(
        store_id="store",
        version=1000,
        resumable=(10, 20),
        tombstone_limit=4,
        record=told.record,
        monotonic=clock,
        wall=lambda: 5e8,
    )


class FakeLink:
    def __init__(self) -> None:
        self.wanted: list[str] = []

    def acknowledge(self, revision: tuple[int, int], events: tuple[int, int]) -> None:
        raise AssertionError("the registry acknowledges nothing")

    def ask_for_snapshot(self, reason: str) -> None:
        self.wanted.append(reason)


def report(registry: Registry, name: str, number: int = 1, **state: object) -> NodeRecord:
    node = registry.add_node(f"uid-{name}", name)
    registry.apply_snapshot(node, (1, number), m.state(name, **state))  # type: ignore[arg-type]
    return node


def test_a_node_whose_driver_has_not_answered_says_nothing_of_its_gpus(registry: Registry, told: Told) -> None:
    node = report(registry, "a")
    starting = m.state("a", gpus=[])
    starting.node.conditions.add(type="Ready", status="False", reason="Starting")
    registry.apply_snapshot(node, (2, 1), starting)
    assert len(registry.gpus) == 8
    assert not told.events
    # Once it has, what it does not name is gone.
    registry.apply_snapshot(node, (2, 2), m.state("a", gpus=[m.gpu("a", 1)]))
    assert list(registry.gpus) == [m.name("a", 1)]
    failed = m.state("a", gpus=[])
    failed.node.conditions.add(type="Ready", status="False", reason="NoGpus")
    registry.apply_snapshot(node, (2, 3), failed)
    assert not registry.gpus


def test_a_snapshot_becomes_objects(registry: Registry) -> None:
    node = report(registry, "a", labels={"tensor-fusion.ai/pool-train": "true", "tensor-fusion.ai/pool-no": "false"})
    assert sorted(registry.gpus) == [m.name("a", index) for index in range(8)]
    gpu = registry.gpus[m.name("a", 3)]
    assert (gpu.index, gpu.model, gpu.phase, gpu.tflops, gpu.vram_bytes) == (
        3,
        "NVIDIA H100 80GB HBM3",
        "Running",
        989.0,
        80 * m.GIB,
    )
    assert node.pools == ("train",)
    assert node.held == (1, 1)
    assert types_pb2.Gpu.FromString(gpu.latest) == m.gpu("a", 3)


@pytest.mark.parametrize(
    ("health", "phase"),
    [
        (types_pb2.HEALTH_STATE_HEALTHY, "Running"),
        (types_pb2.HEALTH_STATE_DEGRADED, "Running"),
        (types_pb2.HEALTH_STATE_DRAINING, "Running"),
        (types_pb2.HEALTH_STATE_UNHEALTHY, "Pending"),
        (types_pb2.HEALTH_STATE_BLIND, "Pending"),
        (types_pb2.HEALTH_STATE_LOST, "Unknown"),
        (99, "Pending"),
    ],
)
def test_phase_follows_health(registry: Registry, health: types_pb2.HealthState, phase: str) -> None:
    report(registry, "a", gpus=[m.gpu("a", 0, health=health)])
    assert registry.gpus[m.name("a", 0)].phase == phase


def test_readings_alone_change_no_version(registry: Registry) -> None:
    node = report(registry, "a")
    before = registry.version
    old = registry.gpus[m.name("a", 0)]
    changed = m.gpu("a", 0, temperature=75.0)
    changed.revision.CopyFrom(m.revision(1, 2))
    changed.capacity.available_vram.age_seconds = 17.0
    registry.apply_delta(node, (1, 2), node_pb2.NodeDelta(gpus=[changed]))
    assert registry.version == before
    assert registry.gpus[m.name("a", 0)] is old
    assert types_pb2.Gpu.FromString(old.latest).readings.temperature_celsius.value == 75.0


def test_a_fact_changes_the_version_and_leaves_the_old_object(registry: Registry) -> None:
    node = report(registry, "a")
    before, old = registry.version, registry.gpus[m.name("a", 0)]
    registry.apply_delta(node, (1, 2), node_pb2.NodeDelta(gpus=[m.gpu("a", 0, available_tflops=500.0)]))
    assert [gpu.name for gpu in registry.changed_after(before)] == [m.name("a", 0)]
    assert old.available_tflops == 989.0
    assert registry.gpus[m.name("a", 0)].available_tflops == 500.0


def test_missing_and_idle_is_removed(registry: Registry) -> None:
    report(registry, "a")
    before = registry.version
    report(registry, "a", 2, gpus=[m.gpu("a", index) for index in range(7)])
    assert m.name("a", 7) not in registry.gpus
    assert registry.removed_after(before) == [m.name("a", 7)]
    assert registry.removed_after(registry.version) == []


def test_missing_and_busy_is_unknown_until_it_is_idle_or_back(registry: Registry, told: Told) -> None:
    busy = [m.allocation("job", [m.uuid("a", 7), m.uuid("a", 6)])]
    node = report(registry, "a", allocations=busy)
    registry.apply_delta(node, (1, 2), node_pb2.NodeDelta(removed_gpu_uuids=[m.uuid("a", 7), m.uuid("a", 6)]))
    gpu = registry.gpus[m.name("a", 7)]
    assert (gpu.phase, gpu.missing_since, gpu.allocatable) == ("Unknown", 5e8, False)
    registry.apply_delta(node, (1, 3), node_pb2.NodeDelta(gpus=[m.gpu("a", 6)]))
    back = registry.gpus[m.name("a", 6)]
    assert (back.phase, back.missing_since, back.allocatable) == ("Running", None, True)
    registry.apply_delta(node, (1, 4), node_pb2.NodeDelta(removed_allocation_ids=["job"]))
    assert m.name("a", 7) not in registry.gpus
    assert m.name("a", 6) in registry.gpus
    assert sorted(told.events) == [("GPUMissing", m.uuid("a", 6), True), ("GPUMissing", m.uuid("a", 7), True)]


def test_a_card_that_two_nodes_report_stays_with_the_first(registry: Registry, told: Told) -> None:
    first = report(registry, "a")
    second = registry.add_node("uid-b", "b")
    second.link = link = FakeLink()
    registry.apply_snapshot(second, (1, 1), m.state("b", gpus=[m.gpu("a", 0), m.gpu("b", 1)]))
    assert registry.gpus[m.name("a", 0)].node is first
    assert registry.statistics().contested_gpus == 1
    assert told.events == [("GPUContested", m.uuid("a", 0), True)]
    registry.apply_delta(first, (1, 2), node_pb2.NodeDelta(removed_gpu_uuids=[m.uuid("a", 0)]))
    assert len(link.wanted) == 1
    registry.apply_snapshot(second, (1, 2), m.state("b", gpus=[m.gpu("a", 0), m.gpu("b", 1)]))
    assert registry.gpus[m.name("a", 0)].node is second
    assert registry.statistics().contested_gpus == 0


def test_a_card_moves_from_a_node_that_is_lost(registry: Registry) -> None:
    first = report(registry, "a")
    registry.set_liveness(first, cluster_pb2.LIVENESS_LOST, silent_seconds=60)
    second = report(registry, "b", gpus=[m.gpu("a", 0)])
    assert registry.gpus[m.name("a", 0)].node is second
    assert m.name("a", 0) not in first.gpus


def test_a_node_that_was_set_up_anew_replaces_its_old_record(registry: Registry) -> None:
    report(registry, "a")
    new = registry.add_node("uid-new", "a")
    content = m.state("a", gpus=[m.gpu("a", 0)])
    content.node.identity.uid = "uid-new"
    registry.apply_snapshot(new, (1, 1), content)
    assert set(registry.nodes) == {"uid-new"}
    assert sorted(registry.gpus) == [m.name("a", 0)]
    assert registry.removed_nodes == {"uid-a": "a"}


def test_liveness_freezes_and_never_deletes(registry: Registry, clock: Clock, told: Told) -> None:
    wheel = LivenessWheel(registry, late_after=12.5, lost_after=60, monotonic=clock)
    node = report(registry, "a")
    wheel.watch(node)
    stages = []
    for _ in range(300):
        clock.now += 0.25
        wheel.step()
        stages.append((clock.now - 100, node.liveness))
    late = next(at for at, stage in stages if stage == cluster_pb2.LIVENESS_LATE)
    lost = next(at for at, stage in stages if stage == cluster_pb2.LIVENESS_LOST)
    assert 12.5 <= late <= 13.25
    assert 60 <= lost <= 60.75
    gpu = registry.gpus[m.name("a", 0)]
    assert (gpu.phase, gpu.liveness) == ("Running", cluster_pb2.LIVENESS_LOST)
    before = registry.version
    wheel.heard(node)
    assert registry.gpus[m.name("a", 0)].liveness == cluster_pb2.LIVENESS_FRESH
    assert len(list(registry.changed_after(before))) == 8
    assert told.events == [("NodeLost", "a", True), ("NodeReturned", "a", False)]


def test_a_heartbeat_keeps_a_node_fresh(registry: Registry, clock: Clock) -> None:
    wheel = LivenessWheel(registry, late_after=12.5, lost_after=60, monotonic=clock)
    node = report(registry, "a")
    wheel.watch(node)
    before = registry.version
    for _ in range(100):
        clock.now += 5
        wheel.heard(node)
        wheel.step()
    assert registry.version == before


def test_what_can_be_resumed(registry: Registry) -> None:
    assert registry.can_resume(10)
    assert registry.can_resume(20)
    assert not registry.can_resume(9)
    # Given out before a crash and perhaps never durable.
    assert not registry.can_resume(21)
    assert not registry.can_resume(999)
    assert registry.can_resume(1000)
    assert not registry.can_resume(1001)
    report(registry, "a")
    first = registry.version
    for _ in range(3):
        report(registry, "a", gpus=[m.gpu("a", 0)])
        report(registry, "a", gpus=[m.gpu("a", 0), m.gpu("a", 1)])
    report(registry, "a", gpus=[])
    assert registry.can_resume(registry.version)
    # More objects were removed since than there are tombstones.
    assert not registry.can_resume(first)
    assert registry.statistics().tombstones <= 4


def test_observers_see_before_and_after(registry: Registry) -> None:
    seen: list[tuple[str, bool, bool]] = []

    def note(name: str, old: GpuObject | None, new: GpuObject | None) -> None:
        seen.append((name, old is not None, new is not None))

    stop = registry.observe(note)
    report(registry, "a", gpus=[m.gpu("a", 0)])
    report(registry, "a", 2, gpus=[m.gpu("a", 0, available_tflops=1)])
    report(registry, "a", 3, gpus=[])
    stop()
    report(registry, "a", 4)
    assert seen == [(m.name("a", 0), False, True), (m.name("a", 0), True, True), (m.name("a", 0), True, False)]
