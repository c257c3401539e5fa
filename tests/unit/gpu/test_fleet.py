"""Cards over rounds, fed with what a reader would tell: what cannot be had from the simulated driver, MIG first."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypervisor.config import Settings
from hypervisor.gpu import wire
from hypervisor.gpu.catalogue import Catalogue
from hypervisor.gpu.fleet import Fleet
from hypervisor.gpu.health import policy
from hypervisor.gpu.health.monitor import HealthMonitor
from hypervisor.gpu.judge import AGREEING_READINGS
from hypervisor.gpu.observe import DEGRADED_ROUNDS, Observer
from hypervisor.gpu.wire import Answer, DeviceFacts, DeviceReadings, Memory, Process
from hypervisor.model import DeviceObservation, HealthCode, HealthState

GIB = 2**30
CARD = "GPU-0"
SLOT = "0000:18:00.0"
FIRST, SECOND = "MIG-1", "MIG-2"


def facts(uuid: str, name: str = "NVIDIA A100-SXM4-80GB", instance: wire.Instance | None = None) -> DeviceFacts:
    return DeviceFacts(
        uuid=Answer(uuid),
        minor=Answer(0),
        bus_id=Answer(SLOT),
        pci_device_id=Answer(0x20B210DE),
        name=Answer(name),
        architecture=Answer(7),
        compute_capability=Answer((8, 0)),
        cores=Answer(None, 3) if instance else Answer(108 * 64),
        serial=Answer("1"),
        vbios_version=Answer("1"),
        max_sm_clock_mhz=Answer(1410),
        virtualization=Answer(0),
        instance=instance,
    )


def mig(uuid: str, gpu_instance: int, multiprocessors: int, profile: str) -> DeviceFacts:
    instance = wire.Instance(gpu_instance, 0, Answer(multiprocessors), Answer(1))
    return facts(uuid, f"NVIDIA A100-SXM4-80GB MIG {profile}", instance)


def told(uuid: str, total: int, *, used: int = 0, reasons: int = 0, code: int = 0) -> DeviceReadings:
    memory = Answer(Memory(total, total - used, used, 0)) if code == 0 else Answer[Memory](None, code)
    return DeviceReadings(
        uuid=uuid,
        memory=memory,
        utilization=Answer(None, 3),
        temperature=Answer(40),
        power=Answer(100_000),
        power_limit=Answer(400_000),
        energy=Answer(1000),
        sm_clock=Answer(1410),
        memory_clock=Answer(1593),
        clock_event_reasons=Answer(reasons),
        processes=Answer([Process(10, used)] if used else []),
        samples=Answer(None, 3),
    )


@dataclass
class Node:
    """A fleet of one card, and its observer."""

    fleet: Fleet = field(default_factory=Fleet)
    observer: Observer = field(default_factory=lambda: Observer(Catalogue.load()))
    health: HealthMonitor = field(
        default_factory=lambda: HealthMonitor(Settings(), policy.load(), started_at=0.0, memory=None)
    )
    now: float = 100.0

    def attach(self, *instances: DeviceFacts, mig_enabled: bool = False, complete: bool = True) -> None:
        reply = wire.Attached(0, SLOT, Answer(0), facts(CARD), Answer(mig_enabled), list(instances), complete)
        self.fleet.on_attached(wire.Attach(index=0), reply, now=self.now)

    def read(self, *devices: DeviceReadings, mig_enabled: bool = False) -> None:
        card = self.fleet.cards[SLOT]
        bounds = {uuid: self.observer.memory_bounds(self.fleet.records[uuid]) for uuid in self.fleet.devices_of(card)}
        reply = wire.ReadDone(Answer(mig_enabled), list(devices))
        self.fleet.on_read(card, reply, bounds=bounds, now=self.now, wall_offset=0.0)

    def devices(self) -> tuple[DeviceObservation, ...]:
        return self.observer.devices(self.fleet, self.health, now=self.now, wall_time=self.now, use_known_seconds=5.0)


def codes(device: DeviceObservation) -> set[HealthCode]:
    return {condition.code for condition in device.conditions}


def test_a_divided_card_is_its_instances() -> None:
    node = Node()
    node.attach(mig(FIRST, 1, 42, "3g.40gb"), mig(SECOND, 2, 14, "1g.10gb"), mig_enabled=True)
    node.read(told(CARD, 80 * GIB), told(FIRST, 40 * GIB, used=GIB), told(SECOND, 10 * GIB), mig_enabled=True)
    first, second = node.devices()
    assert (first.identity.uuid, second.identity.uuid) == (FIRST, SECOND)
    partition = first.identity.partition
    assert partition is not None
    assert (partition.parent_uuid, partition.gpu_instance_id, partition.profile) == (CARD, 1, "3g.40gb")
    assert first.identity.sm_count == 42
    assert first.tflops.value == 312 * 42 / 108
    assert second.tflops.value == 312 * 14 / 108
    assert (first.vram_bytes.value, second.vram_bytes.value) == (40 * GIB, 10 * GIB)
    assert first.readings.processes is not None
    assert [process.pid for process in first.readings.processes] == [10]
    assert first.topology is not None
    assert (first.topology.gpu_uuid, first.topology.links) == (FIRST, ())
    assert codes(first) == set()


def test_a_divided_card_without_instances_offers_nothing_and_stays_listed() -> None:
    node = Node()
    node.attach(mig_enabled=True)
    node.read(told(CARD, 80 * GIB), mig_enabled=True)
    (card,) = node.devices()
    assert card.identity.uuid == CARD
    assert card.vram_bytes.value is None
    assert card.tflops.value is None
    assert "no instances" in card.vram_bytes.absent_reason


def test_instances_that_are_removed_go_and_the_card_comes_back_whole() -> None:
    node = Node()
    node.attach(mig(FIRST, 1, 42, "3g.40gb"), mig_enabled=True)
    node.read(told(CARD, 80 * GIB), told(FIRST, 40 * GIB), mig_enabled=True)
    for _ in range(AGREEING_READINGS):
        assert node.fleet.attaches_due(now=node.now) == []
        node.read(told(CARD, 80 * GIB), mig_enabled=False)
    assert node.fleet.attaches_due(now=node.now) == [wire.Attach(bus_id=SLOT)]
    node.attach(mig_enabled=False)
    node.read(told(CARD, 80 * GIB))
    (card,) = node.devices()
    assert (card.identity.uuid, card.vram_bytes.value, card.tflops.value) == (CARD, 80 * GIB, 312)
    assert node.fleet.card_of(FIRST) is None


def test_no_wrong_answer_loses_an_instance() -> None:
    node = Node()
    parts = (mig(FIRST, 1, 42, "3g.40gb"), mig(SECOND, 2, 14, "1g.10gb"))
    node.attach(*parts, mig_enabled=True)
    node.read(told(CARD, 80 * GIB), told(FIRST, 40 * GIB), told(SECOND, 10 * GIB), mig_enabled=True)
    node.attach(mig_enabled=False)  # the mode is read as off, once
    node.attach(parts[0], mig_enabled=True, complete=False)  # one handle failed
    node.read(told(CARD, 80 * GIB), mig_enabled=False)
    node.read(told(CARD, 80 * GIB), mig_enabled=True)
    assert {device.identity.uuid for device in node.devices()} == {FIRST, SECOND}
    assert {device.vram_bytes.value for device in node.devices()} == {40 * GIB, 10 * GIB}
    node.attach(parts[0], mig_enabled=True)  # removed for good
    assert [device.identity.uuid for device in node.devices()] == [FIRST]


def test_a_card_is_found_by_its_instance() -> None:
    node = Node()
    node.attach(mig(FIRST, 1, 42, "3g.40gb"), mig_enabled=True)
    card = node.fleet.card_of(FIRST.lower())
    assert card is not None
    assert card.uuid == CARD


def test_clocks_held_down_by_heat_degrade_after_some_rounds_only() -> None:
    node = Node()
    node.attach()
    for _ in range(DEGRADED_ROUNDS - 1):
        node.read(told(CARD, 80 * GIB, reasons=0x40))
        assert node.devices()[0].health is HealthState.HEALTHY
    node.read(told(CARD, 80 * GIB, reasons=0x40))
    assert node.devices()[0].health is HealthState.DEGRADED
    assert codes(node.devices()[0]) == {HealthCode.CLOCKS_REDUCED}
    node.read(told(CARD, 80 * GIB, reasons=0x4))  # the power cap of everyday
    assert node.devices()[0].health is HealthState.HEALTHY


def test_use_gets_unknown_when_readings_stay_away_and_capacity_does_not() -> None:
    node = Node()
    node.attach()
    node.read(told(CARD, 80 * GIB, used=GIB))
    node.fleet.on_reader_down()
    node.now += 4
    (card,) = node.devices()
    assert HealthCode.USE_UNKNOWN not in codes(card)
    assert (card.vram_bytes.value, card.vram_bytes.stale, card.vram_bytes.observed_at) == (80 * GIB, True, 100.0)
    node.now += 4
    (card,) = node.devices()
    assert HealthCode.USE_UNKNOWN in codes(card)
    assert card.vram_bytes.value == 80 * GIB


def test_not_being_seen_takes_back_no_loss() -> None:
    node = Node()
    node.attach()
    node.read(told(CARD, 80 * GIB))
    node.read(told(CARD, 80 * GIB, code=15))
    assert node.devices()[0].health is HealthState.LOST
    node.fleet.plan(1, now=node.now)
    node.fleet.on_attached(wire.Attach(index=0), wire.Attached(999), now=node.now)
    assert node.devices()[0].health is HealthState.LOST
    node.attach()
    node.read(told(CARD, 80 * GIB))
    assert node.devices()[0].health is HealthState.HEALTHY


def test_a_card_that_moves_to_another_address_is_the_same_card() -> None:
    node = Node()
    node.attach()
    moved = wire.Attached(0, "0000:99:00.0", Answer(4), facts(CARD), Answer(False))
    node.fleet.on_attached(wire.Attach(index=4), moved, now=node.now)
    assert list(node.fleet.cards) == ["0000:99:00.0"]
    assert node.devices()[0].identity.index == 4
