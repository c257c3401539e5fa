"""The health of all cards: feeds what was seen into the state machines, and says what follows. In the daemon.

Not for use by several threads. Nothing here talks to the reader or waits; files of the host are read without waiting.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypervisor.config import Settings
from hypervisor.gpu import wire
from hypervisor.gpu.codes import EVENT_XID
from hypervisor.gpu.conditions import Finding
from hypervisor.gpu.fleet import CardState, Fleet
from hypervisor.gpu.health import facts as card_facts
from hypervisor.gpu.health import findings, machine, policy
from hypervisor.gpu.health.breakers import Breakers
from hypervisor.gpu.health.circuit import Circuit
from hypervisor.gpu.health.facts import NO_FACTS, HealthFacts
from hypervisor.gpu.health.host import BusGpu, Host
from hypervisor.gpu.health.kernel_log import KernelLog, LogFinding, LogKind
from hypervisor.gpu.health.machine import CardHealth, Rules, Xid
from hypervisor.gpu.health.memory import HealthMemory
from hypervisor.gpu.health.occurrence import Occurrence, OccurrenceKind, Occurrences
from hypervisor.gpu.health.policy import XidClass
from hypervisor.gpu.health.resets import Energy, seems_reset
from hypervisor.gpu.health.told import ToldXids
from hypervisor.model.health import HealthCode, HealthState

# Between two state reads of a card that is well; while something is in doubt, each round reads.
READ_SECONDS = 5.0
# Between two looks at the list of the bus, and at the module's version.
BUS_SECONDS = 5.0
MOST_EARLY = 512  # lines of the log about cards that are not known yet
MOST_DOUBTED = 30  # reads of a card whose readings can't be true, until what seemed a reset counts as none
LOG = "log"  # the kernel's log as the source of an Xid; each reader is another
QUIET_FACTOR = 20.0  # an Xid must be silent for so many times the hold


@dataclass(slots=True)
class _Card:
    """What is known of one card."""

    health: CardHealth = field(default_factory=CardHealth)
    told: HealthFacts = NO_FACTS  # the last read
    known: HealthFacts = NO_FACTS  # the last of each figure
    due_at: float = 0.0
    most_links: int = 0
    before_fall: HealthFacts | None = None  # the last of each figure before an answer that seems to be after a reset
    doubted: int = 0  # answers since then that came with readings which can't be true
    energy: Energy = field(default_factory=Energy)
    binding: int | None = None  # of the card to the kernel's driver
    state: HealthState = HealthState.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthStatistics:
    """Counts since the start of the daemon, by UUID; times are wall time in seconds since the epoch.

    facts: what each card last said of itself. log_failure: why the kernel's log can't be read, "" while it can,
    None where it is not looked at. circuits are by UUID and field.
    """

    circuits: Mapping[tuple[str, str], Circuit]
    capacity_guard_trips: int
    capacity_held: bool
    xids: Mapping[tuple[str, int], int]
    xid_last_at: Mapping[tuple[str, int], float]
    transitions: Mapping[tuple[str, str, str, str], int]
    facts: Mapping[str, HealthFacts]
    log_records: int
    log_failure: str | None
    memory_failure: str
    events_failure: int
    gpus_on_bus: int | None
    dropped_occurrences: int


def rules_of(settings: Settings) -> Rules:
    """How quickly what counts, from the settings."""
    hold = settings.health_hold_seconds
    return Rules(hold_seconds=hold, quiet_seconds=QUIET_FACTOR * hold)


def load_policy(settings: Settings) -> policy.XidPolicy:
    """The policy in force. Raises PolicyError."""
    return policy.load(Path(settings.xid_policy) if settings.xid_policy else None)


class HealthMonitor:
    """Made once; outlives readers. started_at is CLOCK_MONOTONIC: what the log told before it is no news."""

    def __init__(
        self, settings: Settings, xid_policy: policy.XidPolicy, *, started_at: float, memory: Path | None
    ) -> None:
        self.occurrences = Occurrences()
        # Whose program a host pid is, "" when that is not known; set by who knows.
        self.owner_of: Callable[[int], str] = _nobody
        self._started_at = started_at
        self._rules, self._policy = rules_of(settings), xid_policy
        self._settings = settings
        self._host = Host(settings.host_root_path)
        self._memory = HealthMemory(memory)
        kept, sequence = self._memory.load()
        self._cards = {uuid: _Card(health=health, binding=binding) for uuid, (health, binding) in kept.items()}
        self._log = KernelLog(self._host.kernel_log, after=sequence)
        self._early: deque[LogFinding] = deque(maxlen=MOST_EARLY)  # of cards that are not known yet
        self._told = ToldXids()
        self._transitions: Counter[tuple[str, str, str, str]] = Counter()
        self._bus: tuple[BusGpu, ...] | None = None
        self._bus_due_at = 0.0
        self._events_failure = 0
        self._breakers = Breakers(self.occurrences)

    def reload(self, settings: Settings, xid_policy: policy.XidPolicy) -> None:
        """Judge by other settings from now on."""
        self._settings, self._rules, self._policy = settings, rules_of(settings), xid_policy

    def close(self) -> None:
        """Let go of files."""
        self._log.close()

    # ---- what comes from the reader ----

    def is_due(self, card: CardState, *, now: float) -> bool:
        """Whether the card's state is to be read in this round."""
        return self._of(card.uuid).due_at <= now

    def on_new_reader(self) -> None:
        """Another reader took over: it watches no events yet, which it does with the state read of each card."""
        for known in self._cards.values():
            known.due_at = 0.0

    def on_facts(self, card: CardState, told: wire.HealthDone, fleet: Fleet, *, now: float) -> None:
        """A state read."""
        known = self._of(card.uuid)
        facts = card_facts.facts_of(told)
        self._look_for_reset(known, card, facts, fleet)
        known.told = facts
        if known.before_fall is None:
            self._tell_ecc(card, known.known, facts)
            known.known = card_facts.merged(known.known, facts)
        known.most_links = max(known.most_links, facts.links_active)
        signs = card_facts.signs(facts, most_links=self._most_links(card, fleet))
        known.health = machine.on_facts(known.health, facts, signs, now=now, rules=self._rules)
        known.due_at = now if known.health.standings or known.before_fall is not None else now + READ_SECONDS

    def _look_for_reset(self, known: _Card, card: CardState, facts: HealthFacts, fleet: Fleet) -> None:
        """Two answers in a row tell of a reset, at a time when the driver says nothing else that can't be true."""
        if known.before_fall is None:
            if seems_reset(known.known, facts, let_go=card.let_go):
                known.before_fall, known.doubted = known.known, 0
            else:
                card.let_go = False
            return
        doubtful = bool(fleet.records[card.uuid].rejections)
        known.doubted += doubtful
        if doubtful and known.doubted <= MOST_DOUBTED:
            return
        if not doubtful and seems_reset(known.before_fall, facts, let_go=card.let_go):
            known.health = machine.on_reset(known.health)
            known.known = NO_FACTS  # a count from zero has nothing to be compared to
        known.before_fall, card.let_go = None, False

    def on_events(self, done: wire.EventsDone, fleet: Fleet, *, reader: str, now: float, wall_time: float) -> None:
        """Events of NVML, as one of the readers has them: each reader is given all of them."""
        self._events_failure = done.code
        for event in done.events:
            card = fleet.cards.get(event.slot)
            if card is None:
                continue
            self._of(card.uuid).due_at = 0.0
            if event.kind == EVENT_XID and 0 < event.data <= policy.MOST_XID:
                self._on_xid(card, Xid(number=event.data, at=now), reader, now=now, wall_time=wall_time)

    def on_reading(self, card: CardState, told: wire.DeviceReadings, fleet: Fleet) -> None:
        """What a reading says besides its figures: why the clocks are low, and whether the card was reset.

        The energy counter falls only when a card was reset.
        """
        known = self._of(card.uuid)
        for uuid in fleet.devices_of(card):
            self._breakers.on_circuits(uuid, fleet.records[uuid].circuits)
        if told.clock_event_reasons.value is not None:
            known.known = replace(known.known, clock_reasons=told.clock_event_reasons.value)
        energy = fleet.records[card.uuid].sensors.energy
        if energy.value is None or energy.stale:
            return
        known.energy, started = known.energy.after(energy.value)
        if started:
            known.health = machine.on_reset(known.health)

    def guard_capacity(self, fleet: Fleet, *, now: float) -> None:
        """Put the capacity from before in the place of one that fell too far for one source to be believed."""
        self._breakers.guard(fleet, self._host if self._sees_host(fleet) else None, sees_bus=bool(self._bus), now=now)

    def believed_capacity(self, uuid: str) -> int | None:
        """Bytes of a card as the last guarded round has them; None of who is no card, or was in no round yet."""
        return self._breakers.capacity.accepted.get(uuid)

    # ---- what comes from the host ----

    def look(self, fleet: Fleet, *, now: float, wall_time: float) -> bool:
        """Read the kernel's log and the bus; True when a card's health may have changed by it."""
        if not self._sees_host(fleet):
            return False
        before = [card.health for card in self._cards.values()]
        self._find_started_anew(fleet)  # before the log: what it tells of may have come after
        for finding in self._log.read():
            self._on_log(finding, fleet, now=now, wall_time=wall_time)
        for finding in [early for early in self._early if early.bus_id in fleet.cards]:
            self._early.remove(finding)
            self._on_log(finding, fleet, now=now, wall_time=wall_time)
        if now >= self._bus_due_at:
            self._bus_due_at, self._bus = now + BUS_SECONDS, self._host.gpus_on_bus()
        changed = self._find_gone(fleet)
        return changed or before != [card.health for card in self._cards.values()]

    def _find_started_anew(self, fleet: Fleet) -> None:
        """Cards that the kernel has bound to the driver anew, by hand, by a new look at the bus or by a new load of the
        module: the driver has started them from nothing."""
        for card in fleet.cards.values():
            binding = self._host.binding(card.bus_id) if card.bus_id else None
            if binding is None:
                continue
            known = self._of(card.uuid)
            if known.binding not in (None, binding):
                known.health = machine.on_started_anew(known.health)
            known.binding = binding

    def _sees_host(self, fleet: Fleet) -> bool:
        """A simulated machine has nothing to do with the host's bus and log, unless a root was made for it."""
        return bool(self._settings.host_root) or not fleet.simulated

    def _on_log(self, finding: LogFinding, fleet: Fleet, *, now: float, wall_time: float) -> None:
        if finding.kind is LogKind.SWITCH:
            self._tell_switch(finding)
            return
        card = fleet.cards.get(finding.bus_id)
        if card is None:
            self._early.append(finding)
            return
        at = min(finding.at if finding.at is not None else now, now)
        known = self._of(card.uuid)
        known.due_at = 0.0
        if finding.kind is LogKind.XID:
            owner = self.owner_of(finding.pid) if finding.pid is not None else ""
            xid = Xid(number=finding.number, at=at, text=finding.text, owner=owner)
            self._on_xid(card, xid, LOG, now=now, wall_time=wall_time, pid=finding.pid, name=finding.name)
        elif finding.kind is LogKind.OFF_BUS:
            self._on_xid(card, Xid(number=79, at=at, text="told without a number"), LOG, now=now, wall_time=wall_time)
        elif finding.kind is LogKind.INIT_FAILED:
            text = f"the driver can't start the card: RmInitAdapter failed{finding.text}"
            known.health = machine.on_pulse(
                known.health, "init", HealthCode.GPU_UNREADABLE, text.strip(), at=at, sticky=False
            )

    def _tell_switch(self, finding: LogFinding) -> None:
        if finding.at is not None and finding.at < self._started_at:
            return  # as news it is old
        message = (
            f"NVSwitch {finding.bus_id} reports SXid {finding.number}{': ' + finding.text if finding.text else ''}"
        )
        fields = (("sxid", str(finding.number)), ("switch", finding.bus_id))
        self.occurrences.add(Occurrence(kind=OccurrenceKind.SWITCH, gpu_uuid="", message=message, fields=fields))

    def _find_gone(self, fleet: Fleet) -> bool:
        """Cards that neither answer nor are on the bus are gone, and not only out of our sight."""
        gone = [
            card
            for card in fleet.cards.values()
            if card.bus_id
            and not card.detached
            and fleet.records[card.uuid].health not in {HealthState.HEALTHY, HealthState.LOST}
            and not self._host.on_bus(card.bus_id)
        ]
        if not gone or not self._bus:
            return False  # a bus without any GPU is one that we can't see
        for card in gone:
            fleet.on_gone(card)
        return True

    # ---- what follows ----

    def _on_xid(
        self,
        card: CardState,
        xid: Xid,
        source: str,
        *,
        now: float,
        wall_time: float,
        pid: int | None = None,
        name: str = "",
    ) -> None:
        if not self._told.is_news(card.uuid, xid, source, interval=self._settings.reading_interval_seconds):
            return
        self._told.count(card.uuid, xid.number, wall_at=wall_time - (now - xid.at))
        known = self._of(card.uuid)
        known.health = machine.on_xid(known.health, xid, self._policy)
        kind = self._policy.class_of(xid.number)
        if xid.at < self._started_at:
            return  # its effect counts; as news it is old
        by = f" by {name or 'process'} {pid}" if pid is not None else ""
        self.occurrences.add(
            Occurrence(
                kind=OccurrenceKind.XID,
                gpu_uuid=card.uuid,
                message=f"{self._policy.meaning(xid.number)}{by}{': ' + xid.text if xid.text else ''}",
                warning=kind is not XidClass.IGNORE,
                pid=pid,
                blames_owner=kind is XidClass.APPLICATION,
                fields=(("xid", str(xid.number)), ("class", kind.value), ("source", LOG if source == LOG else "event")),
            )
        )

    def _tell_ecc(self, card: CardState, before: HealthFacts, after: HealthFacts) -> None:
        old, new = before.ecc_uncorrected_volatile, after.ecc_uncorrected_volatile
        if old is None or new is None or new <= old:
            return
        self.occurrences.add(
            Occurrence(
                kind=OccurrenceKind.ECC,
                gpu_uuid=card.uuid,
                message=f"{new - old} uncorrectable memory errors, {new} since the last reset",
                fields=(("new", str(new - old)), ("total", str(new))),
            )
        )

    def _most_links(self, card: CardState, fleet: Fleet) -> int:
        model = fleet.records[card.uuid].identity.model
        return max(
            (
                self._cards[other.uuid].most_links
                for other in fleet.cards.values()
                if other.uuid in self._cards and fleet.records[other.uuid].identity.model == model
            ),
            default=0,
        )

    def settle(self, fleet: Fleet, *, now: float) -> None:
        """Let go what has been good for long enough, and keep the rest over a restart."""
        for card in fleet.cards.values():
            known = self._of(card.uuid)
            works = fleet.records[card.uuid].health is HealthState.HEALTHY and not card.missing
            known.health = machine.settle(known.health, works=works, now=now, rules=self._rules)
        kept = {uuid: (known.health, known.binding) for uuid, known in self._cards.items()}
        self._memory.store(kept, self._log.last_sequence)

    def health_of(self, card: CardState) -> CardHealth:
        """What stands against a card."""
        return self._of(card.uuid).health

    def findings(self, card: CardState, fleet: Fleet) -> list[Finding]:
        """The conditions of a card that come from its health."""
        return findings.of_card(card, self.health_of(card), fleet, self._host if self._sees_host(fleet) else None)

    def module_version(self, fleet: Fleet) -> str:
        """Version of the kernel module; "" where there is none to look at."""
        return self._host.module_version() if self._sees_host(fleet) else ""

    def node_findings(self, fleet: Fleet) -> list[Finding]:
        """The conditions of the node that come from the host."""
        host = self._host if self._sees_host(fleet) else None
        return findings.of_node(fleet, host, self._bus or (), held=self._breakers.capacity.summary)

    def on_state(self, card: CardState, state: HealthState, reason: str) -> None:
        """The state that is published of a card; counts transitions."""
        known = self._of(card.uuid)
        if known.state is not state:
            self._transitions[card.uuid, known.state.value, state.value, reason] += 1
            known.state = state

    def statistics(self) -> HealthStatistics:
        """A copy of the counts."""
        return HealthStatistics(
            circuits=dict(self._breakers.circuits),
            capacity_guard_trips=self._breakers.capacity.trips,
            capacity_held=bool(self._breakers.capacity.holding),
            xids=dict(self._told.counts),
            xid_last_at=dict(self._told.last_at),
            transitions=dict(self._transitions),
            facts={uuid: known.known for uuid, known in self._cards.items() if known.known != NO_FACTS},
            log_records=self._log.records,
            log_failure=self._log.failure if self._log.tried else None,
            memory_failure=self._memory.failure,
            events_failure=self._events_failure,
            gpus_on_bus=None if self._bus is None else len(self._bus),
            dropped_occurrences=self.occurrences.dropped,
        )

    def _of(self, uuid: str) -> _Card:
        return self._cards.setdefault(uuid, _Card())


def _nobody(_: int) -> str:
    return ""
