"""All cards of the node as far as they are known, over rounds and over readers: what to ask, and what was said.

Nothing here waits or talks to the reader. A card that was seen once stays, whatever NVML says later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from hypervisor.gpu import addresses, device, wire
from hypervisor.gpu.codes import TIMEOUT
from hypervisor.gpu.device import DeviceRecord
from hypervisor.gpu.judge import AGREEING_READINGS
from hypervisor.gpu.slots import by_index
from hypervisor.gpu.surveyed import newest
from hypervisor.gpu.topology import Place
from hypervisor.model.health import HealthState

# A card about which the reader hung this often in a row is left out for a while.
STRIKES = 2
QUARANTINE_SECONDS = 30.0
MOST_QUARANTINE_SECONDS = 600.0
HOLE_RETRY_SECONDS = 5.0
FACTS_RETRY_SECONDS = 5.0
SURVEY_SECONDS = 60.0
# Codes of a lookup by address: invalid argument, not found, no GPU found.
UNKNOWN_ADDRESS = (2, 6, 28)
# MIG devices are made and removed while we look; nothing tells us.
INSTANCES_SECONDS = 10.0


@dataclass(slots=True)
class CardState:
    """One card: how to reach it, and how it goes."""

    slot: str
    index: int
    uuid: str
    bus_id: str | None
    instances: tuple[str, ...] = ()
    mig_enabled: bool = False
    other_mode: int = 0  # readings in a row that say the opposite of mig_enabled
    attached: bool = False  # by the reader that runs now
    missing: bool = False
    detached: bool = False
    let_go: bool = False  # nobody of ours held it for a while, and its state of health has not been read since
    surveyed: wire.Surveyed | None = None
    numa_node: int | None = None
    cpu_affinity: str = ""
    facts_due_at: float = float("inf")


@dataclass(frozen=True, slots=True)
class Hole:
    """An index at which no card could be opened, and none is known: the code, and when to try again."""

    code: int
    due_at: float


@dataclass(slots=True)
class Quarantine:
    """A slot about which the reader hung or died."""

    strikes: int = 0
    until: float = 0.0
    seconds: float = QUARANTINE_SECONDS


@dataclass(slots=True)
class Fleet:
    """The cards by slot, the records by UUID, and what could not be opened."""

    cards: dict[str, CardState] = field(default_factory=dict)
    records: dict[str, DeviceRecord] = field(default_factory=dict)
    holes: dict[int, Hole] = field(default_factory=dict)  # by index
    quarantines: dict[str, Quarantine] = field(default_factory=dict)
    simulated: bool = False
    survey_due_at: float = 0.0

    # ---- what to ask ----

    def plan(self, listed: int | None, *, now: float) -> list[wire.Attach]:
        """What a new reader is to attach: by index, or by bus id where cards must not be touched."""
        self.holes.clear()
        for card in self.cards.values():
            card.attached = False
        cards = list(self.cards.values())
        # What has hung before comes after the first round, as its facts are due.
        untouched = [card for card in cards if card.detached or self.is_suspect(card.slot)]
        complete = listed == len(cards) and not any(card.missing for card in cards)
        if listed is None or ((untouched or complete) and all(card.bus_id for card in cards)):
            return [wire.Attach(bus_id=card.bus_id) for card in cards if card.bus_id and card not in untouched]
        taken = {card.index for card in untouched}
        requests = []
        for index in range(listed):
            quarantine = self.quarantines.get(by_index(index))
            if quarantine is not None and now < quarantine.until:
                self.holes[index] = Hole(TIMEOUT, quarantine.until)
            elif index not in taken:
                requests.append(wire.Attach(index=index))
        return requests

    def preparable(self) -> list[wire.Attach]:
        """What a reader that stands by attaches. Divided cards are left to their time: how they are changes."""
        return [
            wire.Attach(bus_id=card.bus_id)
            for card in self.cards.values()
            if card.bus_id
            and (card.attached or card.let_go)
            and not (card.detached or card.mig_enabled or self.is_suspect(card.slot))
        ]

    def take_over(self, slots: Collection[str]) -> None:
        """A reader that stood by is the one that reads, with these cards attached."""
        for card in self.cards.values():
            card.attached = card.slot in slots and not (card.detached or self.is_suspect(card.slot))

    def attaches_due(self, *, now: float) -> list[wire.Attach]:
        """Cards to try again in this round, and cards whose facts are to be asked anew."""
        due = [wire.Attach(index=index) for index, hole in self.holes.items() if hole.due_at <= now]
        for card in self.cards.values():
            if card.detached or self.quarantined(card.slot, now=now):
                continue
            if card.facts_due_at <= now:
                due.append(_attach(card))
        return due

    def unattached(self, *, now: float) -> list[wire.Attach]:
        """Cards that a plan left out, by their address: a count that is too low must not lose them."""
        return [
            wire.Attach(bus_id=card.bus_id)
            for card in self.cards.values()
            if card.bus_id
            and not card.attached
            and not card.detached
            and card.facts_due_at == float("inf")
            and not self.quarantined(card.slot, now=now)
        ]

    def cards_to_read(self) -> list[CardState]:
        """Attached cards that may be asked, without those that may hang."""
        return [card for card in self.cards.values() if card.attached and not self.is_suspect(card.slot)]

    def suspects_to_read(self, *, now: float) -> list[CardState]:
        """Attached cards that have hung and may be tried again."""
        return [
            card
            for card in self.cards.values()
            if card.attached and self.is_suspect(card.slot) and not self.quarantined(card.slot, now=now)
        ]

    def look_again(self, bus_id: str) -> None:
        """Ask for the facts of a card in the next round: what it is divided into has changed."""
        for card in self.cards.values():
            if card.bus_id == bus_id:
                card.facts_due_at = 0.0

    # ---- what was said ----

    def on_attached(self, request: wire.Attach, reply: wire.Attached, *, now: float) -> None:
        """A card was attached, or refused."""
        if reply.facts is None or not reply.facts.uuid.value:
            code = reply.code or (reply.facts.uuid.code if reply.facts else 0)
            self._on_refused(request, code, now=now)
            return
        facts = reply.facts
        uuid = facts.uuid.value or ""
        index = reply.index.value
        known = next((card for card in self.cards.values() if card.uuid == uuid), None)
        if known is not None and known.slot != reply.slot:
            del self.cards[known.slot]  # the same card in another place, or a bus id read at last
        if index is None:
            index = known.index if known else len(self.cards)
        card = self.cards[reply.slot] = known or CardState(reply.slot, index, uuid, facts.bus_id.value)
        card.slot, card.bus_id = reply.slot, facts.bus_id.value or card.bus_id
        self._take_index(card, index, now=now)
        card.attached, card.missing = True, False
        if known is None or card.other_mode >= AGREEING_READINGS:
            card.mig_enabled = bool(reply.mig_enabled.value)
            card.other_mode = 0
        self.holes.pop(index, None)
        # What a card is divided into is believed when its mode is: a wrong answer must not lose an instance.
        believed = reply.instances_complete and reply.mig_enabled.value == card.mig_enabled
        self._on_facts(card, facts, reply.instances, all_told=believed)
        retry = FACTS_RETRY_SECONDS if device.incomplete(facts) else float("inf")
        card.facts_due_at = now + min(retry, INSTANCES_SECONDS if card.mig_enabled else float("inf"))
        if card.surveyed is None:
            self.survey_due_at = now

    def _take_index(self, card: CardState, index: int, *, now: float) -> None:
        """An index is one card's: who is no longer there moves to one that is free, and is asked again if it can be.

        NVML numbers its cards anew when one vanishes or comes back, and we hear of it card by card.
        """
        card.index = index
        displaced = next((other for other in self.cards.values() if other is not card and other.index == index), None)
        if displaced is None:
            return
        taken = {other.index for other in self.cards.values()}
        displaced.index = next(number for number in count(len(self.cards)) if number not in taken)
        for uuid in self.devices_of(displaced):
            record = self.records[uuid]
            self.records[uuid] = replace(record, identity=replace(record.identity, index=displaced.index))
        if displaced.attached:
            for other in self.cards.values():
                if other.attached and other is not card:
                    other.facts_due_at = min(other.facts_due_at, now)

    def _on_facts(
        self, card: CardState, facts: wire.DeviceFacts, instances: list[wire.DeviceFacts], *, all_told: bool
    ) -> None:
        parent = self._identify(facts, card, None)
        told = tuple(each.uuid.value for each in instances if each.uuid.value)
        absent = tuple(uuid for uuid in card.instances if uuid not in told)
        card.instances = told if all_told else (*told, *absent)
        for gone in absent if all_told else ():
            del self.records[gone]
        for each in instances:
            if each.uuid.value:
                self._identify(each, card, parent)

    def _identify(self, facts: wire.DeviceFacts, card: CardState, parent: DeviceRecord | None) -> DeviceRecord:
        last = self.records.get(facts.uuid.value or "")
        identity = device.identify(
            facts,
            index=card.index,
            parent=parent.identity if parent else None,
            simulated=self.simulated,
            last=last.identity if last else None,
        )
        record = replace(last, identity=identity, facts=facts) if last else DeviceRecord(identity=identity, facts=facts)
        self.records[identity.uuid] = record
        return record

    def _on_refused(self, request: wire.Attach, code: int, *, now: float) -> None:
        card = next((card for card in self.cards.values() if _is_about(request, card)), None)
        if card is None:
            if request.index is not None:
                self.holes[request.index] = Hole(code, now + HOLE_RETRY_SECONDS)
            return
        card.attached = False
        card.facts_due_at = now + HOLE_RETRY_SECONDS
        # NVML does not know this address: that is not the card's own word that it is lost.
        card.missing = request.bus_id is not None and code in UNKNOWN_ADDRESS
        for uuid in self.devices_of(card):
            self.records[uuid] = device.unreadable(self.records[uuid], code)
            if card.missing and not self.simulated and not addresses.on_bus(card.bus_id or ""):
                self.records[uuid] = replace(self.records[uuid], health=HealthState.LOST)

    def on_read(
        self,
        card: CardState,
        reply: wire.ReadDone,
        *,
        bounds: Mapping[str, tuple[int, int]],
        now: float,
        wall_offset: float,
        unified_bytes: int | None = None,
    ) -> None:
        """A card was read."""
        self.on_answer(card.slot)
        if reply.mig_enabled.value is not None:
            card.other_mode = card.other_mode + 1 if reply.mig_enabled.value != card.mig_enabled else 0
            if card.other_mode >= AGREEING_READINGS:
                card.facts_due_at = now
        for told in reply.devices:
            record = self.records.get(told.uuid)
            if record is None:
                continue
            was = record.health
            self.records[told.uuid] = device.update(
                record,
                told,
                bounds=bounds[told.uuid],
                now=now,
                wall_offset=wall_offset,
                unified_bytes=unified_bytes,
            )
            if (was is HealthState.LOST) != (self.records[told.uuid].health is HealthState.LOST):
                self.survey_due_at = now

    def finish_round(self, read: Collection[str]) -> None:
        """After a round: the figures of cards (slots) that were not read stand as stale."""
        for card in self.cards.values():
            if card.slot not in read:
                for uuid in self.devices_of(card):
                    self.records[uuid] = device.as_stale(self.records[uuid])

    def on_surveyed(self, card: CardState, reply: wire.Surveyed) -> None:
        """The place of a card. What it does not say this time stays as it was said before."""
        surveyed = card.surveyed = newest(card.surveyed, reply)
        nodes = addresses.members(surveyed.memory_nodes.value or ())
        card.numa_node = nodes[0] if len(nodes) == 1 else None
        card.cpu_affinity = addresses.as_cpu_list(addresses.members(surveyed.cpus.value or ()))
        if not self.simulated and card.bus_id and addresses.on_bus(card.bus_id):
            # The kernel knows when it does not know; NVML then says node 0.
            card.numa_node = addresses.numa_node_of(card.bus_id)
            card.cpu_affinity = card.cpu_affinity or addresses.cpu_list_of(card.bus_id)

    def on_suspect(self, slot: str, *, until: float) -> None:
        """A reader waits for an answer about this slot; the next reader leaves it out as long."""
        self.quarantines.setdefault(slot, Quarantine()).until = until

    def on_answer(self, slot: str) -> None:
        """The slot answered in time: its strikes are forgotten."""
        self.quarantines.pop(slot, None)

    def on_late_answer(self, slot: str, *, now: float) -> None:
        """The answer came after all."""
        quarantine = self.quarantines.get(slot)
        if quarantine is not None:
            quarantine.until = now
        self._retry(slot, at=now)

    def _retry(self, slot: str, *, at: float) -> None:
        if slot in self.cards:
            self.cards[slot].facts_due_at = at
        for index, hole in self.holes.items():
            if slot == by_index(index):
                self.holes[index] = Hole(hole.code, at)

    def on_strike(self, slot: str, *, now: float) -> None:
        """The reader hung or died while it was asked about this slot."""
        quarantine = self.quarantines.setdefault(slot, Quarantine())
        quarantine.strikes += 1
        quarantine.until = now
        if quarantine.strikes >= STRIKES:
            quarantine.until = now + quarantine.seconds
            quarantine.seconds = min(quarantine.seconds * 2, MOST_QUARANTINE_SECONDS)
            quarantine.strikes = STRIKES - 1  # once more is enough from now on
        self._retry(slot, at=quarantine.until)

    def on_reader_down(self) -> None:
        """No reader runs: everything stands, as stale."""
        for card in self.cards.values():
            card.attached = False
        for uuid, record in self.records.items():
            self.records[uuid] = device.as_stale(record)

    def on_gone(self, card: CardState) -> None:
        """A card that neither NVML nor the bus knows any more."""
        for uuid in self.devices_of(card):
            self.records[uuid] = replace(device.as_stale(self.records[uuid]), health=HealthState.LOST)

    def hold_capacity(self, uuid: str, total: int) -> None:
        """Publish the capacity of a card from before instead of what was read."""
        record = self.records[uuid]
        figure = replace(record.capacity.figure, value=total, stale=True)
        self.records[uuid] = replace(record, capacity=replace(record.capacity, figure=figure))

    def reclaim(self, card: CardState) -> None:
        """A card that was let go of is to be read again: what it was before a reset says nothing of its health."""
        card.detached, card.let_go = False, True
        card.facts_due_at = 0.0  # it may be divided otherwise now
        self.quarantines.pop(card.slot, None)
        for uuid in self.devices_of(card):
            self.records[uuid] = replace(self.records[uuid], health=HealthState.UNKNOWN, code=0, problems=())

    # ---- what is known ----

    def quarantined(self, slot: str, *, now: float) -> bool:
        """Whether a slot is left out for now."""
        quarantine = self.quarantines.get(slot)
        return quarantine is not None and now < quarantine.until

    def overdue(self, slot: str, *, by: float, now: float) -> bool:
        """Whether a slot could have been asked again for so many seconds."""
        quarantine = self.quarantines.get(slot)
        return quarantine is not None and now >= quarantine.until + by

    def is_suspect(self, slot: str | None) -> bool:
        """Whether a slot has hung, or the reader died over it, and it has not answered since."""
        return slot in self.quarantines

    def devices_of(self, card: CardState) -> tuple[str, ...]:
        """UUIDs of a card and its MIG devices."""
        return (card.uuid, *card.instances)

    def gpu_instances(self, card: CardState) -> dict[str, int]:
        """Number of the GPU instance that each MIG device of a card is in; none where it is not divided."""
        parts = {uuid: self.records[uuid].identity.partition for uuid in card.instances} if card.mig_enabled else {}
        return {uuid: part.gpu_instance_id for uuid, part in parts.items() if part is not None}

    def published_of(self, card: CardState) -> tuple[str, ...]:
        """UUIDs that are offered: a divided card is its instances; itself only when it has none."""
        return card.instances if card.mig_enabled and card.instances else (card.uuid,)

    def card_of(self, uuid: str) -> CardState | None:
        """The card of a device, case ignored."""
        wanted = uuid.lower()
        for card in self.cards.values():
            if wanted in (each.lower() for each in self.devices_of(card)):
                return card
        return None

    def any_lost(self) -> bool:
        """Whether a card is lost that nobody detached."""
        return any(
            not card.detached and (card.missing or self.records[card.uuid].health is HealthState.LOST)
            for card in self.cards.values()
        )

    def places(self) -> list[Place]:
        """Each card in the machine, for the topology."""
        return [
            Place(
                slot=card.slot,
                uuid=card.uuid,
                numa_node=card.numa_node,
                cpu_affinity=card.cpu_affinity,
                surveyed=card.surveyed,
                why="it could not be surveyed" if card.surveyed is None else "",
            )
            for card in self.cards.values()
        ]


def _attach(card: CardState) -> wire.Attach:
    return wire.Attach(bus_id=card.bus_id) if card.bus_id else wire.Attach(index=card.index)


def _is_about(request: wire.Attach, card: CardState) -> bool:
    if request.bus_id is not None:
        return card.bus_id == request.bus_id
    return not card.attached and not card.detached and card.index == request.index
