"""From what is known of the cards to the inventory that all others read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hypervisor.gpu import device, topology
from hypervisor.gpu.catalogue import Card, Catalogue, Rating, part_of_parent
from hypervisor.gpu.codes import words
from hypervisor.gpu.conditions import ConditionBook, Finding
from hypervisor.gpu.device import DeviceRecord
from hypervisor.gpu.fleet import CardState, Fleet
from hypervisor.gpu.health.monitor import HealthMonitor
from hypervisor.gpu.mig_control import PhysicalCard
from hypervisor.model.figure import Figure
from hypervisor.model.health import Condition, HealthCode, HealthState
from hypervisor.model.inventory import DeviceObservation
from hypervisor.model.topology import GpuTopology

# Rounds in a row with clocks held down before a GPU counts as degraded.
DEGRADED_ROUNDS = 3


class Observer:
    """Turns the fleet into observations; keeps ratings and since when conditions hold."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        # Kept per card: looking through the table costs more than all else in a round.
        self._ratings: dict[Card, Rating] = {}
        self._bounds: dict[Card, tuple[int, int]] = {}
        self._places: list[topology.Place] = []
        self._topologies: dict[str, GpuTopology] = {}
        self._book = ConditionBook()

    def use(self, catalogue: Catalogue) -> None:
        """Rate by another catalogue from now on."""
        self._catalogue = catalogue
        self._ratings.clear()
        self._bounds.clear()

    def memory_bounds(self, record: DeviceRecord) -> tuple[int, int]:
        """Least and most bytes that the total of a device can be; a MIG device has at most what there is."""
        if record.identity.partition is not None:
            return 1, 2**44
        card = device.card_of(record)
        if card not in self._bounds:
            self._bounds[card] = self._catalogue.memory_bounds(card)
        return self._bounds[card]

    def nameplates(self, fleet: Fleet) -> dict[str, int]:
        """Bytes of memory that the model of each card has by the catalogue, by UUID; of known models only."""
        found = {}
        for card in fleet.cards.values():
            rating = self._ratings.get(device.card_of(fleet.records[card.uuid]))
            plate = rating.model.vram_bytes if rating is not None and rating.model is not None else None
            if plate is not None:
                found[card.uuid] = plate
        return found

    def node_conditions(self, findings: Iterable[Finding], *, wall_time: float) -> tuple[Condition, ...]:
        """Conditions of the node, with the time since when each holds."""
        return self._book.conditions("node", findings, wall_time=wall_time)

    def devices(
        self, fleet: Fleet, health: HealthMonitor, *, now: float, wall_time: float, use_known_seconds: float
    ) -> tuple[DeviceObservation, ...]:
        """Observations of all devices, by index and instance. A use older than use_known_seconds counts as unknown."""
        self._place(fleet.places())
        found = []
        for card in fleet.cards.values():
            judged = health.health_of(card).state
            of_health = health.findings(card, fleet)
            state = _health(fleet, card, fleet.records[card.uuid], judged, now)
            health.on_state(card, state, _reason(fleet.records[card.uuid], of_health))
            for uuid in fleet.published_of(card):
                record = fleet.records[uuid]
                tflops = self._tflops(record, fleet.records[card.uuid], card, now)
                findings = (*self._findings(fleet, card, record, tflops, now, use_known_seconds), *of_health)
                found.append(
                    DeviceObservation(
                        identity=record.identity,
                        tflops=tflops,
                        vram_bytes=_vram(record, card, health.believed_capacity(uuid)),
                        readings=device.readings(record),
                        topology=_of_device(self._topologies.get(card.uuid), uuid),
                        health=_health(fleet, card, record, judged, now),
                        conditions=self._book.conditions(uuid, findings, wall_time=wall_time),
                    )
                )
        return tuple(sorted(found, key=_order))

    def whole_cards(self, fleet: Fleet, *, now: float) -> Iterator[PhysicalCard]:
        """Cards as they were before they were divided, if they were."""
        for card in fleet.cards.values():
            record = fleet.records[card.uuid]
            if card.bus_id is None:
                continue
            yield PhysicalCard(
                uuid=card.uuid,
                bus_id=card.bus_id,
                index=card.index,
                model=record.identity.model,
                architecture=record.identity.architecture,
                multiprocessors=record.identity.sm_count or 0,
                memory_bytes=record.capacity.figure.value or 0,
                tflops=self._rate(record, now).tflops.value or 0.0,
                usable=card.attached
                and not card.detached
                and not card.missing
                and record.health in {HealthState.HEALTHY, HealthState.DEGRADED},
                processes=bool(record.activity.processes),
            )

    def _place(self, places: list[topology.Place]) -> None:
        if places != self._places:
            self._places, self._topologies = places, topology.topologies(places)

    def _rate(self, record: DeviceRecord, now: float) -> Rating:
        card = device.card_of(record)
        if card not in self._ratings:
            self._ratings[card] = self._catalogue.rate(card, now=now)
        return self._ratings[card]

    def _tflops(self, record: DeviceRecord, parent: DeviceRecord, card: CardState, now: float) -> Figure[float]:
        whole = self._rate(parent, now).tflops
        if record is not parent:
            return part_of_parent(whole, record.identity.sm_count, parent.identity.sm_count)
        return Figure.absent("MIG mode is on and the card has no instances") if card.mig_enabled else whole

    def _findings(
        self,
        fleet: Fleet,
        card: CardState,
        record: DeviceRecord,
        tflops: Figure[float],
        now: float,
        use_known_seconds: float,
    ) -> Iterator[Finding]:
        if card.detached:
            yield Finding(HealthCode.GPU_DETACHED, "released on request; attach it again when the work on it is done")
        elif card.missing:
            yield Finding(HealthCode.GPU_MISSING, "the driver does not list this GPU any more")
        if record.health is HealthState.LOST:
            yield Finding(HealthCode.GPU_LOST, _lost(record), "lost")
        elif card.slot in fleet.quarantines and fleet.quarantined(card.slot, now=now):
            yield Finding(
                HealthCode.GPU_UNREADABLE,
                "the driver does not answer calls about this GPU; it is left out and tried again from time to time",
            )
        elif record.code != 0 and not card.detached:
            yield Finding(HealthCode.GPU_UNREADABLE, f"this GPU can't be read: {words(record.code)}")
        elif record.problems:
            text = f"last good readings stand: {'; '.join(record.problems)}"
            yield Finding(HealthCode.READING_REJECTED, text, ",".join(name for name, _ in record.rejections))
        if record.slow_rounds >= DEGRADED_ROUNDS:
            yield Finding(HealthCode.CLOCKS_REDUCED, "hardware holds the clocks down because of heat or power")
        if not _use_is_known(record, now, use_known_seconds):
            yield Finding(HealthCode.USE_UNKNOWN, "what is in use on this GPU is not known now")
        if tflops.value is None:
            yield Finding(HealthCode.MODEL_UNKNOWN, f"{tflops.absent_reason}; add the model to a site catalogue")


def _health(fleet: Fleet, card: CardState, record: DeviceRecord, judged: HealthState, now: float) -> HealthState:
    """What is published: a loss before all else, a fault before our not seeing the card, then what it looks like."""
    if card.detached:
        return HealthState.DRAINING
    if record.health in {HealthState.LOST, HealthState.UNHEALTHY}:
        return record.health
    if judged is HealthState.UNHEALTHY:
        return judged
    if record.health in {HealthState.HEALTHY, HealthState.UNKNOWN} and fleet.quarantined(card.slot, now=now):
        return HealthState.BLIND
    if record.health is not HealthState.HEALTHY:
        return record.health
    return HealthState.DEGRADED if record.slow_rounds >= DEGRADED_ROUNDS else judged


def _reason(record: DeviceRecord, findings: list[Finding]) -> str:
    """Why a card is in its state, as a label: a code of ours or of NVML."""
    if record.code:
        return f"nvml_{record.code}"
    return findings[0].code.value if findings else ""


def _lost(record: DeviceRecord) -> str:
    return words(record.code) if record.code else "the GPU is gone from the PCI bus"


def _use_is_known(record: DeviceRecord, now: float, limit: float) -> bool:
    used = record.memory.used
    return used.value is not None and (not used.stale or now - used.observed_at <= limit)


def _vram(record: DeviceRecord, card: CardState, believed: int | None) -> Figure[int]:
    if card.mig_enabled and record.identity.partition is None:
        return Figure.absent("MIG mode is on and the card has no instances")
    figure = record.capacity.figure
    if believed is not None and figure.value not in (None, believed):
        # It was read in a round that goes on, and what the whole node says is not known yet.
        return replace(figure, value=believed, stale=True)
    return figure


def _of_device(place: GpuTopology | None, uuid: str) -> GpuTopology | None:
    if place is None or place.gpu_uuid == uuid:
        return place
    # MIG devices have no links of their own; they lie where their card lies.
    return GpuTopology(gpu_uuid=uuid, numa_node=place.numa_node, cpu_affinity=place.cpu_affinity, links=())


def _order(observation: DeviceObservation) -> tuple[int, int, int, str]:
    identity = observation.identity
    partition = identity.partition
    place = (partition.gpu_instance_id, partition.compute_instance_id) if partition else (0, 0)
    return identity.index, *place, identity.uuid
