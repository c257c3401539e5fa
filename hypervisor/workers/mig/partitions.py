"""The divided cards of a node: instances for those who ask, and the reconciliation of what is wished and granted.

Level-triggered: settle() compares what the journal says with what is there and with who still needs it, after a start,
a reboot, a crash at any step, or a missed message alike. Instances that the journal does not know belong to somebody
else: they are counted, and never touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import trio

from hypervisor.gpu.mig_control import PhysicalCard
from hypervisor.model import EventType, Refusal, RefusalReason
from hypervisor.workers.mig.journal import JournalError, Stage
from hypervisor.workers.mig.matching import Match, NoMatch, Wanted, fits, match, no_match, waste
from hypervisor.workers.mig.needs import Needs, Promises
from hypervisor.workers.mig.seen import Emit, Seen
from hypervisor.workers.mig.settling import Settling
from hypervisor.workers.mig.steps import StepError, Steps

__all__ = ["Found", "Needs", "Partitions", "PartitionsStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsStatistics:
    """Operations since the start by kind and result, instances of ours and of others by profile, cards whose mode
    waits for a reset."""

    operations_total: Mapping[tuple[str, str], int]
    instances: Mapping[str, int]
    foreign_instances: int
    mode_pending: int


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
        self._seen = Seen(steps, emit)
        self._steps = steps
        self._journal = steps.journal
        self._promises = Promises()
        self._settling = Settling(self._seen, self._promises, wishes)
        self._turn = trio.Lock()

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
            mine = self._promises.to.setdefault(allocation_id, set())
            if found.match is None:
                mine.add(found.uuid)
                return found.uuid
            try:
                card = next(each for each in cards if each.uuid == found.match.geometry.parent_uuid)
                with self._seen.counting("create"):
                    record = await self._steps.create(
                        card, found.match.profile, found.match.start, allocation_id=allocation_id
                    )
            except (StepError, JournalError) as error:
                raise Refusal(RefusalReason.PARTITION_FAILED, str(error), field="devices[0].partition") from error
            mine.add(record.uuid)
        self._seen.emit(
            EventType.NORMAL,
            "PartitionCreated",
            card.uuid,
            f"{record.profile} at slice {record.start} of GPU {card.index} was made for '{allocation_id}': "
            f"{record.uuid}",
        )
        return record.uuid

    def provided(self, allocation_id: str) -> None:
        """The allocation stands, or was refused: from now on its instances live as long as it does."""
        self._promises.to.pop(allocation_id, None)

    async def _find(self, wanted: Wanted, cards: Sequence[PhysicalCard], busy: Collection[str]) -> Found:
        geometries = await self._seen.look([card for card in cards if card.usable])
        idle = [
            (waste(geometry, profile, wanted), geometry.index, record.uuid)
            for geometry in geometries
            for record in self._journal.records(geometry.parent_uuid)
            if record.stage is Stage.THERE and not record.allocation_id
            if record.uuid not in busy and not self._promises.given(record.uuid)
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
        raise no_match(wanted, [result for result in results if isinstance(result, NoMatch)])

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
                or not self._promises.needed(record, needs)
                for record in records
            ):
                return True
        return not all(map(self._settling.fulfilled, cards))

    async def settle(self, cards: Sequence[PhysicalCard], needs: Callable[[], Needs]) -> None:
        """Bring the journal, the cards and the wishes together. Raises nothing that a card can cause.

        needs is asked again before each step: while the driver is at work, allocations come and go.
        """
        async with self._turn:
            concerned = [
                card for card in cards if self._journal.records(card.uuid) or self._settling.wished(card) is not None
            ]
            for geometry in await self._seen.look(concerned):
                card = next(each for each in concerned if each.uuid == geometry.parent_uuid)
                try:
                    await self._settling.settle(card, geometry, needs)
                except (StepError, JournalError) as error:
                    self._seen.tell_once(card, EventType.WARNING, "PartitionFailed", str(error))

    # ---- what is told ----

    def statistics(self) -> PartitionsStatistics:
        """Counters since the start, and what was there at the last look."""
        ours = Counter(record.profile for card in self._journal.cards for record in self._journal.records(card))
        return PartitionsStatistics(
            operations_total=dict(self._seen.operations),
            instances=dict(ours),
            foreign_instances=sum(self._seen.foreign.values()),
            mode_pending=sum(each.pending for each in self._seen.geometries.values()),
        )

    def ours(self) -> set[tuple[str, int]]:
        """Card and GPU instance of what we have made and is there."""
        return {
            (card, record.gpu_instance)
            for card in self._journal.cards
            for record in self._journal.records(card)
            if record.gpu_instance is not None
        }
