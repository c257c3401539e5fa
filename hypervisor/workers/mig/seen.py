"""The cards as they were last seen, and what is counted and told of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hypervisor.gpu.mig_control import PhysicalCard
from hypervisor.model import EventType
from hypervisor.workers.mig.geometry import Geometry
from hypervisor.workers.mig.journal import Record
from hypervisor.workers.mig.steps import StepError, Steps

Emit = Callable[..., None]


class Seen:
    """Of one node. emit is called with the type, the reason, the UUID of the card, and the sentence of an event."""

    def __init__(self, steps: Steps, emit: Emit) -> None:
        self.steps = steps
        self.journal = steps.journal
        self.emit = emit
        self.operations: Counter[tuple[str, str]] = Counter()
        self.geometries: dict[str, Geometry] = {}
        self.foreign: dict[str, int] = {}  # instances of others by card, at the last look
        self._told: dict[str, str] = {}  # what was said of a card, so that it is said once
        self._unsupported: set[str] = set()

    async def look(self, cards: Sequence[PhysicalCard]) -> tuple[Geometry, ...]:
        """How these cards are divided; those that can't be are left out, and not asked again."""
        asked = [card for card in cards if card.uuid not in self._unsupported]
        geometries = await self.steps.look(asked)
        told = {each.parent_uuid for each in geometries}
        self._unsupported |= {card.uuid for card in asked if card.uuid not in told}
        for each in geometries:
            self.geometries[each.parent_uuid] = each
            records = {record.start: record for record in self.journal.records(each.parent_uuid)}
            self.foreign[each.parent_uuid] = sum(
                (record := records.get(found.start)) is None
                or not is_ours(record, found.profile_id, found.gpu_instance, self.steps.boot_id)
                for found in each.instances
            )
        return geometries

    async def look_at(self, card: PhysicalCard) -> Geometry:
        """How one card is divided, which was told before. Raises StepError."""
        for geometry in await self.steps.look([card]):
            if geometry.complete:
                self.geometries[card.uuid] = geometry
                return geometry
        raise StepError(f"how GPU {card.index} is divided could not be read again; it is tried later")

    @contextmanager
    def counting(self, operation: str) -> Iterator[None]:
        """Count an operation by its result."""
        try:
            yield
        except StepError:
            self.operations[operation, "failed"] += 1
            raise
        self.operations[operation, "done"] += 1

    def tell_once(self, card: PhysicalCard, kind: EventType, reason: str, message: str) -> None:
        """An event, unless it is what was said of the card last."""
        if self._told.get(card.uuid) != message:
            self._told[card.uuid] = message
            self.emit(kind, reason, card.uuid, message)

    def tell(self, card: PhysicalCard, reason: str, message: str) -> None:
        """That something was done; what was wrong before may be said again."""
        self._told.pop(card.uuid, None)
        self.emit(EventType.NORMAL, reason, card.uuid, message)


def is_ours(record: Record, profile_id: int, gpu_instance: int, boot_id: str) -> bool:
    """Whether the instance at the place of a record is the one that the record is about."""
    if record.profile_id != profile_id:
        return False
    if record.gpu_instance is None:
        return record.boot_id == boot_id  # we were about to make it
    return record.gpu_instance == gpu_instance and record.boot_id == boot_id
