"""The divided cards of a node: instances for those who ask, the wished geometry, and the reconciliation of both.

Level-triggered: settle() compares what the journal says with what is there and with who still needs it, after a start,
a reboot, a crash at any step, or a missed message alike. Instances that the journal does not know belong to somebody
else: they are counted, and never touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import trio

from hypervisor.gpu.mig_control import PhysicalCard
from hypervisor.model import EventType, Refusal, RefusalReason
from hypervisor.model.quantity import format_bytes
from hypervisor.workers.mig.geometry import Geometry, Profile
from hypervisor.workers.mig.journal import JournalError, Record, Stage
from hypervisor.workers.mig.matching import Match, NoMatch, Wanted, fits, match, named, waste, why_off
from hypervisor.workers.mig.placing import lay_out
from hypervisor.workers.mig.steps import StepError, Steps

# Architectures on which MIG mode is switched on without a reset.
_WITHOUT_RESET = frozenset({"Hopper", "Blackwell", "Rubin"})
Emit = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsStatistics:
    """Operations since the start by kind and result, instances of ours and of others by profile, cards whose mode
    waits for a reset."""

    operations_total: Mapping[tuple[str, str], int]
    instances: Mapping[str, int]
    foreign_instances: int
    mode_pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Who needs instances now: ids of the allocations that stand, and UUIDs of all devices that were granted or
    promised."""

    allocations: Collection[str] = ()
    busy: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An instance for an allocation: there already (uuid), or to be made by a match."""

    uuid: str = ""
    match: Match | None = None


class Partitions:
    """One at a time: a card is looked at, decided and changed in one turn. For the trio main thread."""

    def __init__(self, steps: Steps, *, wishes: Mapping[str, Sequence[str]], emit: Emit) -> None:
        """wishes: a card's UUID, its index or "all" -> the profiles that it is to have.

        emit is called with the type, the reason, the UUID of the card, and the sentence of an event.
        """
        self._steps = steps
        self._journal = steps.journal
        self._wishes = wishes
        self._emit = emit
        self._turn = trio.Lock()
        self._operations: Counter[tuple[str, str]] = Counter()
        # Allocation ids that are being provided for and not granted yet -> what they were given.
        self._providing: dict[str, set[str]] = {}
        self._geometries: dict[str, Geometry] = {}
        self._foreign: dict[str, int] = {}  # instances of others by card, at the last look
        self._told: dict[str, str] = {}  # what was said of a card, so that it is said once
        self._unsupported: set[str] = set()

    # ---- instances for allocations ----

    async def find(self, wanted: Wanted, cards: Sequence[PhysicalCard], *, busy: Collection[str]) -> Found:
        """What provide() would give; changes nothing. busy: UUIDs of MIG devices that are granted. Raises Refusal."""
        async with self._turn:
            return await self._find(wanted, cards, busy)

    async def provide(
        self, wanted: Wanted, cards: Sequence[PhysicalCard], *, allocation_id: str, busy: Collection[str]
    ) -> str:
        """The UUID of an instance for an allocation, made when there is none that is idle. Raises Refusal.

        It is kept for the allocation until provided() is called. Cancelling may leave an instance, which the next
        settle() after that ends.
        """
        async with self._turn:
            found = await self._find(wanted, cards, busy)
            mine = self._providing.setdefault(allocation_id, set())
            if found.match is None:
                mine.add(found.uuid)
                return found.uuid
            try:
                card = next(each for each in cards if each.uuid == found.match.geometry.parent_uuid)
                with self._counting("create"):
                    record = await self._steps.create(
                        card, found.match.profile, found.match.start, allocation_id=allocation_id
                    )
            except (StepError, JournalError) as error:
                raise Refusal(RefusalReason.PARTITION_FAILED, str(error), field="devices[0].partition") from error
            mine.add(record.uuid)
        self._emit(
            EventType.NORMAL,
            "PartitionCreated",
            card.uuid,
            f"{record.profile} at slice {record.start} of GPU {card.index} was made for '{allocation_id}': "
            f"{record.uuid}",
        )
        return record.uuid

    def provided(self, allocation_id: str) -> None:
        """The allocation stands, or was refused: from now on its instances live as long as it does."""
        self._providing.pop(allocation_id, None)

    async def _find(self, wanted: Wanted, cards: Sequence[PhysicalCard], busy: Collection[str]) -> Found:
        usable = [card for card in cards if card.usable and card.uuid not in self._unsupported]
        geometries = await self._look(usable)
        idle = [
            (waste(geometry, profile, wanted), geometry.index, record.uuid)
            for geometry in geometries
            for record in self._journal.records(geometry.parent_uuid)
            if record.stage is Stage.THERE and not record.allocation_id
            if record.uuid not in busy and not self._is_given(record.uuid)
            if (profile := geometry.profile(record.profile_id)) is not None and fits(geometry, profile, wanted)
        ]
        if idle:
            return Found(uuid=min(idle)[2])
        results = [match(geometry, wanted) for geometry in geometries]
        matches = [result for result in results if isinstance(result, Match)]
        if matches:
            # Of equal waste the card that is divided already, so that whole places stay for large ones.
            return Found(
                match=min(matches, key=lambda each: (each.waste, not each.geometry.instances, each.geometry.index))
            )
        raise _no_match(wanted, [result for result in results if isinstance(result, NoMatch)])

    async def _look(self, cards: Sequence[PhysicalCard]) -> tuple[Geometry, ...]:
        geometries = await self._steps.look(cards)
        told = {each.parent_uuid for each in geometries}
        self._unsupported |= {card.uuid for card in cards if card.uuid not in told}
        for each in geometries:
            self._geometries[each.parent_uuid] = each
            records = {record.start: record for record in self._journal.records(each.parent_uuid)}
            self._foreign[each.parent_uuid] = sum(
                (record := records.get(found.start)) is None
                or not _is_ours(record, found.profile_id, found.gpu_instance, self._steps.boot_id)
                for found in each.instances
            )
        return geometries

    # ---- reconciliation ----

    def needs_settling(self, cards: Sequence[PhysicalCard], *, present: Collection[str], needs: Needs) -> bool:
        """Whether settle() may have something to do, from what is known without asking the driver.

        present: UUIDs of MIG devices in the inventory.
        """
        for card in cards:
            records = self._journal.records(card.uuid)
            if any(
                record.stage is not Stage.THERE
                or record.uuid not in present
                or (record.allocation_id and not self._needed(record, needs))
                for record in records
            ):
                return True
            wished = self._wished(card)
            if wished is not None and len(wished) != sum(not record.allocation_id for record in records):
                return True
        return False

    async def settle(self, cards: Sequence[PhysicalCard], needs: Callable[[], Needs]) -> None:
        """Bring the journal, the cards and the wishes together. Raises nothing that a card can cause.

        needs is asked again before each step: while the driver is at work, allocations come and go.
        """
        async with self._turn:
            concerned = [
                card
                for card in cards
                if card.uuid not in self._unsupported
                and (self._journal.records(card.uuid) or self._wished(card) is not None)
            ]
            for geometry in await self._look(concerned):
                card = next(each for each in concerned if each.uuid == geometry.parent_uuid)
                try:
                    await self._settle_card(card, geometry, needs)
                except (StepError, JournalError) as error:
                    self._tell_once(card, EventType.WARNING, "PartitionFailed", str(error))

    async def _settle_card(self, card: PhysicalCard, geometry: Geometry, needs: Callable[[], Needs]) -> None:
        if not geometry.complete:
            self._tell_once(
                card, EventType.WARNING, "PartitionsUnreadable", f"how GPU {card.index} is divided could not be read"
            )
            return
        if geometry.enabled:
            for record in self._journal.records(card.uuid):
                await self._settle_record(card, geometry, record, needs())
        await self._fulfil(card, needs)

    async def _settle_record(self, card: PhysicalCard, geometry: Geometry, record: Record, needs: Needs) -> None:
        there = next((each for each in geometry.instances if each.start == record.start), None)
        if there is not None and not _is_ours(record, there.profile_id, there.gpu_instance, self._steps.boot_id):
            # Somebody took the place, after a reset or before we came to it: it is theirs.
            self._journal.drop(card.uuid, record.start)
            self._emit(
                EventType.WARNING,
                "PartitionLost",
                card.uuid,
                f"{record.profile} at slice {record.start} of GPU {card.index} is gone, and others have its place",
            )
            return
        needed = self._needed(record, needs)
        if there is None:
            self._journal.drop(card.uuid, record.start)
            if needed and record.stage is Stage.THERE:
                await self._make_again(card, geometry, record)
            return
        known = msgspec.structs.replace(record, gpu_instance=there.gpu_instance, uuid=there.uuid)
        if needed and record.stage is not Stage.ENDING and there.uuid:
            if known != record or record.stage is not Stage.THERE:
                self._journal.put(card.uuid, msgspec.structs.replace(known, stage=Stage.THERE))
            return
        # Half made, or of no use any more.
        await self._end(card, known)

    async def _make_again(self, card: PhysicalCard, geometry: Geometry, record: Record) -> None:
        """Instances never survive a reboot or a reset; what was granted or wished is made again at its place."""
        profile = geometry.profile(record.profile_id) or named(geometry, record.profile)
        if profile is None:
            raise StepError(f"GPU {card.index} no longer offers {record.profile}; release '{record.allocation_id}'")
        with self._counting("create"):
            made = await self._steps.create(card, profile, record.start, allocation_id=record.allocation_id)
        changed = "" if made.uuid == record.uuid else f"; it had the UUID {record.uuid} before"
        self._emit(
            EventType.NORMAL,
            "PartitionCreated",
            card.uuid,
            f"{made.profile} at slice {made.start} of GPU {card.index} was made again: {made.uuid}{changed}",
        )

    async def _end(self, card: PhysicalCard, record: Record) -> None:
        with self._counting("destroy"):
            await self._steps.end(card, record)
        self._emit(
            EventType.NORMAL,
            "PartitionEnded",
            card.uuid,
            f"{record.profile} at slice {record.start} of GPU {card.index} was ended",
        )
        self._told.pop(card.uuid, None)

    # ---- the wished geometry ----

    async def _fulfil(self, card: PhysicalCard, needs: Callable[[], Needs]) -> None:
        """Make what is wished and end what is wished no more; all of what is missing, or nothing of it."""
        wished = self._wished(card)
        if wished is None:
            return
        geometry = self._geometries[card.uuid]
        if not geometry.enabled:
            if (
                geometry.pending
                or geometry.architecture not in _WITHOUT_RESET
                or not card.usable
                or card.processes
                or card.uuid in needs().busy
            ):
                self._tell_once(
                    card,
                    EventType.WARNING,
                    "MigModeOff",
                    f"GPU {card.index} is to be divided into {', '.join(wished)}: {why_off(geometry)}",
                )
                return
            with self._counting("enable"):
                await self._steps.enable(card)
        (geometry,) = await self._look([card])
        profiles = [_named(geometry, name) for name in wished]
        missing, spare = _compared(profiles, self._journal.records(card.uuid))
        for record in spare:
            if record.uuid not in needs().busy and not self._is_given(record.uuid):
                await self._end(card, record)
        if spare:
            (geometry,) = await self._look([card])
        starts = lay_out(geometry, missing)
        if starts is None:
            names = ", ".join(profile.name for profile in missing)
            raise StepError(
                f"{names} can't be laid out on GPU {card.index} beside what is there; "
                "'nvidia-smi mig -lgi' shows it: wish for less, or end what is in the way"
            )
        await self._make_all(card, list(zip(missing, starts, strict=True)))

    async def _make_all(self, card: PhysicalCard, places: Sequence[tuple[Profile, int]]) -> None:
        made: list[Record] = []
        # Large ones first, as the driver would have it.
        for profile, start in sorted(places, key=lambda place: (-place[0].size, place[1])):
            try:
                with self._counting("create"):
                    made.append(await self._steps.create(card, profile, start, allocation_id=""))
            except StepError:
                for record in reversed(made):
                    with self._counting("destroy"):
                        await self._steps.end(card, record)
                raise
        if made:
            names = ", ".join(record.profile for record in made)
            self._emit(EventType.NORMAL, "PartitionCreated", card.uuid, f"GPU {card.index} was divided: {names}")
            self._told.pop(card.uuid, None)

    def _wished(self, card: PhysicalCard) -> Sequence[str] | None:
        for key in (card.uuid, str(card.index), "all"):
            if key in self._wishes:
                return self._wishes[key]
        return None

    # ---- what is told ----

    def statistics(self) -> PartitionsStatistics:
        """Counters since the start, and what was there at the last look."""
        ours = Counter(record.profile for card in self._journal.cards for record in self._journal.records(card))
        return PartitionsStatistics(
            operations_total=dict(self._operations),
            instances=dict(ours),
            foreign_instances=sum(self._foreign.values()),
            mode_pending=sum(each.pending for each in self._geometries.values()),
        )

    def ours(self) -> set[tuple[str, int]]:
        """Card and GPU instance of what we have made and is there."""
        return {
            (card, record.gpu_instance)
            for card in self._journal.cards
            for record in self._journal.records(card)
            if record.gpu_instance is not None
        }

    def _is_given(self, uuid: str) -> bool:
        """Whether an instance was given to somebody whose allocation does not stand yet."""
        return any(uuid in given for given in self._providing.values())

    def _needed(self, record: Record, needs: Needs) -> bool:
        return (
            not record.allocation_id
            or record.allocation_id in needs.allocations
            or record.allocation_id in self._providing
            # Made before it was known whose it would be; or another has been granted it since.
            or record.uuid in needs.busy
        )

    @contextmanager
    def _counting(self, operation: str) -> Iterator[None]:
        try:
            yield
        except StepError:
            self._operations[operation, "failed"] += 1
            raise
        self._operations[operation, "done"] += 1

    def _tell_once(self, card: PhysicalCard, kind: EventType, reason: str, message: str) -> None:
        if self._told.get(card.uuid) != message:
            self._told[card.uuid] = message
            self._emit(kind, reason, card.uuid, message)


def _is_ours(record: Record, profile_id: int, gpu_instance: int, boot_id: str) -> bool:
    """Whether the instance at the place of a record is the one that the record is about."""
    if record.profile_id != profile_id:
        return False
    if record.gpu_instance is None:
        return record.boot_id == boot_id  # we were about to make it
    return record.gpu_instance == gpu_instance and record.boot_id == boot_id


def _named(geometry: Geometry, name: str) -> Profile:
    profile = named(geometry, name)
    if profile is None:
        names = ", ".join(each.name for each in geometry.profiles)
        raise StepError(f"GPU {geometry.index} has no profile {name!r}; it has {names}: mend mig_geometry")
    return profile


def _compared(wished: Sequence[Profile], records: Sequence[Record]) -> tuple[list[Profile], list[Record]]:
    """What is missing of the wishes, and which records of the wished geometry are wished no more."""
    left = list(wished)
    spare: list[Record] = []
    for record in records:
        if record.allocation_id or record.stage is not Stage.THERE:
            continue
        fitting = next((each for each in left if each.profile_id == record.profile_id), None)
        if fitting is None:
            spare.append(record)
        else:
            left.remove(fitting)
    return left, spare


def _no_match(wanted: Wanted, results: Sequence[NoMatch]) -> Refusal:
    asked = f"template {wanted.template!r}" if wanted.template else _figures(wanted)
    if not results:
        return Refusal(
            RefusalReason.PARTITION_TEMPLATE_MATCH_FAILED,
            f"no GPU of this node can be divided by MIG, and {asked} is asked for",
            field="isolation",
            remedy="ask for soft isolation, or on a node whose GPUs have MIG",
        )
    by_reason: dict[tuple[str, ...], list[str]] = {}
    for result in results:
        by_reason.setdefault(result.reasons, []).append(str(result.geometry.index))
    reasons = "; ".join(f"GPU {', '.join(cards)}: {', '.join(told)}" for told, cards in by_reason.items())
    return Refusal(
        RefusalReason.PARTITION_TEMPLATE_MATCH_FAILED,
        f"no GPU has a place for {asked}: {reasons}",
        field="devices[0].partition",
        remedy="ask for a profile that has a place, or release what is in the way",
    )


def _figures(wanted: Wanted) -> str:
    compute = "any part of a card"
    if wanted.share:
        compute = f"{float(wanted.share * 100):.4g} % of a card"
    elif wanted.tflops:
        compute = f"{float(wanted.tflops):.4g} TFLOPS"
    return compute + (f" with {format_bytes(wanted.memory_bytes)}" if wanted.memory_bytes else "")
