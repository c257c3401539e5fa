"""One card brought to what is wished of it and granted on it, whatever is there now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from hypervisor.gpu.mig_control import PhysicalCard
from hypervisor.model import EventType
from hypervisor.workers.mig.geometry import Geometry, Profile
from hypervisor.workers.mig.journal import Record, Stage
from hypervisor.workers.mig.matching import canonical, named, why_off
from hypervisor.workers.mig.needs import Needs, Promises
from hypervisor.workers.mig.placing import lay_out
from hypervisor.workers.mig.seen import Seen, is_ours
from hypervisor.workers.mig.steps import StepError

# Architectures on which MIG mode is switched on without a reset.
_WITHOUT_RESET = frozenset({"Hopper", "Blackwell", "Rubin"})


class Settling:
    """Of one node. wishes: a card's UUID, its index or "all" -> the profiles that it is to have."""

    def __init__(self, seen: Seen, promises: Promises, wishes: Mapping[str, Sequence[str]]) -> None:
        self._seen = seen
        self._promises = promises
        self._wishes = wishes

    def wished(self, card: PhysicalCard) -> Sequence[str] | None:
        """The profiles that a card is to have; None where nothing is said of it."""
        for key in (card.uuid, str(card.index), "all"):
            if key in self._wishes:
                return self._wishes[key]
        return None

    def fulfilled(self, card: PhysicalCard) -> bool:
        """Whether our records of a card are what is wished of it, as far as can be told without asking the driver."""
        wished = self.wished(card)
        records = [record for record in self._seen.journal.records(card.uuid) if not record.allocation_id]
        if wished is None:
            return True
        left = Counter(map(_key, wished))
        for record in records:
            # A wish may name the driver's id in place of the name.
            key = next((key for key in (canonical(record.profile), str(record.profile_id)) if left[key]), None)
            if key is None:
                return False
            left[key] -= 1
        return not left.total()

    async def settle(self, card: PhysicalCard, geometry: Geometry, needs: Callable[[], Needs]) -> None:
        """Raises StepError and JournalError. Cancelling may leave a step half done, which stands in the journal."""
        if not geometry.complete:
            self._seen.tell_once(
                card, EventType.WARNING, "PartitionsUnreadable", f"how GPU {card.index} is divided could not be read"
            )
            return
        wished = self.wished(card)
        if not geometry.enabled:
            # The mode is gone too after a reboot, on architectures that do not keep it.
            granted = [
                record.profile
                for record in self._seen.journal.records(card.uuid)
                if record.allocation_id and self._promises.needed(record, needs())
            ]
            due = (*granted, *(wished or ()))
            if not due or not await self._switched_on(card, geometry, due, needs):
                return
            geometry = await self._seen.look_at(card)
        for record in self._seen.journal.records(card.uuid):
            await self._settle_record(card, geometry, record, needs())
        if wished is not None:
            await self._fulfil(card, wished, needs)

    async def _switched_on(
        self, card: PhysicalCard, geometry: Geometry, due: Sequence[str], needs: Callable[[], Needs]
    ) -> bool:
        """Whether MIG mode is on now; where that would disturb somebody or takes a reset, what to do is told."""
        if (
            geometry.pending
            or geometry.architecture not in _WITHOUT_RESET
            or not card.usable
            or card.processes
            or card.uuid in needs().busy
        ):
            self._seen.tell_once(
                card,
                EventType.WARNING,
                "MigModeOff",
                f"GPU {card.index} is to be divided into {', '.join(due)}: {why_off(geometry)}",
            )
            return False
        with self._seen.counting("enable"):
            await self._seen.steps.enable(card)
        return True

    # ---- what was made ----

    async def _settle_record(self, card: PhysicalCard, geometry: Geometry, record: Record, needs: Needs) -> None:
        there = next((each for each in geometry.instances if each.start == record.start), None)
        if there is not None and not is_ours(record, there.profile_id, there.gpu_instance, self._seen.steps.boot_id):
            # Somebody took the place, after a reset or before we came to it: it is theirs.
            self._seen.journal.drop(card.uuid, record.start)
            self._seen.emit(
                EventType.WARNING,
                "PartitionLost",
                card.uuid,
                f"{record.profile} at slice {record.start} of GPU {card.index} is gone, and others have its place",
            )
            return
        needed = self._promises.needed(record, needs)
        # One that is being made for an allocation that stands was there before.
        again = record.stage is Stage.MAKING and (
            record.allocation_id in needs.allocations or record.uuid in needs.busy
        )
        if there is None:
            if again or (needed and record.stage is Stage.THERE):
                await self._make_again(card, geometry, record)
            else:
                self._seen.journal.drop(card.uuid, record.start)
            return
        known = msgspec.structs.replace(record, gpu_instance=there.gpu_instance, uuid=there.uuid)
        if needed and record.stage is not Stage.ENDING and there.uuid:
            if known != record or record.stage is not Stage.THERE:
                self._seen.journal.put(card.uuid, msgspec.structs.replace(known, stage=Stage.THERE))
            return
        # Half made, or of no use any more.
        await self._end(card, known)
        if again:
            await self._make_again(card, await self._seen.look_at(card), record)

    async def _make_again(self, card: PhysicalCard, geometry: Geometry, record: Record) -> None:
        """Instances never survive a reboot or a reset; what was granted or wished is made again at its place. What
        can't be made now stays in the journal, and is tried again."""
        profile = geometry.profile(record.profile_id) or named(geometry, record.profile)
        if profile is None:
            raise StepError(f"GPU {card.index} no longer offers {record.profile}; release '{record.allocation_id}'")
        try:
            with self._seen.counting("create"):
                made = await self._seen.steps.create(
                    card, profile, record.start, allocation_id=record.allocation_id, uuid=record.uuid
                )
        except StepError:
            if all(each.start != record.start for each in self._seen.journal.records(card.uuid)):
                # Of no boot: whatever comes to this place meanwhile is not ours.
                due = msgspec.structs.replace(record, gpu_instance=None, boot_id="")
                self._seen.journal.put(card.uuid, due)
            raise
        changed = "" if record.uuid in ("", made.uuid) else f"; it had the UUID {record.uuid} before"
        self._seen.emit(
            EventType.NORMAL,
            "PartitionCreated",
            card.uuid,
            f"{made.profile} at slice {made.start} of GPU {card.index} was made again: {made.uuid}{changed}",
        )

    async def _end(self, card: PhysicalCard, record: Record) -> None:
        with self._seen.counting("destroy"):
            await self._seen.steps.end(card, record)
        self._seen.tell(
            card, "PartitionEnded", f"{record.profile} at slice {record.start} of GPU {card.index} was ended"
        )

    # ---- what is wished ----

    async def _fulfil(self, card: PhysicalCard, wished: Sequence[str], needs: Callable[[], Needs]) -> None:
        """Make what is wished and end what is wished no more; all of what is missing, or nothing of it."""
        geometry = await self._seen.look_at(card)
        profiles = [_named(geometry, name) for name in wished]
        missing, spare = _compared(profiles, self._seen.journal.records(card.uuid))
        for record in spare:
            if record.uuid not in needs().busy and not self._promises.given(record.uuid):
                await self._end(card, record)
        if spare:
            geometry = await self._seen.look_at(card)
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
                with self._seen.counting("create"):
                    made.append(await self._seen.steps.create(card, profile, start, allocation_id=""))
            except StepError:
                for record in reversed(made):
                    with self._seen.counting("destroy"):
                        await self._seen.steps.end(card, record)
                raise
        if made:
            names = ", ".join(record.profile for record in made)
            self._seen.tell(card, "PartitionCreated", f"GPU {card.index} was divided: {names}")


def _key(wish: str) -> str:
    text = wish.strip().lower()
    return str(int(text)) if text.isascii() and text.isdecimal() else canonical(text)


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
