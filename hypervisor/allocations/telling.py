"""What the allocations tell: events to the journal, counts to the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hypervisor.model import (
    AllocationPhase,
    AllocationSpec,
    EventType,
    ObjectKind,
    ObjectReference,
    OwnerKind,
    Refusal,
    RefusalReason,
)

# emit(type, reason, regarding, message, **fields)
EmitEvent = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationsStatistics:
    """Counts since the daemon started, and the state now. Times are in seconds."""

    allocations: int
    by_phase: Mapping[str, int]
    granted_total: int
    released_total: int
    ended_total: int
    limits_changed_total: int
    published_total: int
    refused_total: Mapping[RefusalReason, int]
    adopted: int
    recovered: int
    records_set_aside: int
    orphans_removed: int
    tampered: int
    slots_returned_total: int
    recounts_changed_total: int
    rounds_total: int
    last_round_seconds: float
    adoption_seconds: float


@dataclass(slots=True)
class Counting:
    """The counts behind AllocationsStatistics; changed by their owner only."""

    granted: int = 0
    released: int = 0
    ended: int = 0
    limits_changed: int = 0
    published: int = 0
    refused: dict[RefusalReason, int] = field(default_factory=dict)
    adopted: int = 0
    recovered: int = 0
    records_set_aside: int = 0
    orphans_removed: int = 0
    slots_returned: int = 0
    recounts_changed: int = 0
    rounds: int = 0
    last_round_seconds: float = 0.0
    adoption_seconds: float = 0.0

    def statistics(self, *, phases: Sequence[AllocationPhase], tampered: int) -> AllocationsStatistics:
        """The counts, with the state now: the phase of each allocation, and how many have a finding."""
        by_phase = Counter(phases)
        return AllocationsStatistics(
            allocations=len(phases),
            by_phase={phase.value: by_phase[phase] for phase in AllocationPhase},
            granted_total=self.granted,
            released_total=self.released,
            ended_total=self.ended,
            limits_changed_total=self.limits_changed,
            published_total=self.published,
            refused_total=dict(self.refused),
            adopted=self.adopted,
            recovered=self.recovered,
            records_set_aside=self.records_set_aside,
            orphans_removed=self.orphans_removed,
            tampered=tampered,
            slots_returned_total=self.slots_returned,
            recounts_changed_total=self.recounts_changed,
            rounds_total=self.rounds,
            last_round_seconds=self.last_round_seconds,
            adoption_seconds=self.adoption_seconds,
        )


@dataclass(frozen=True, slots=True)
class Tell:
    """Where to tell it."""

    emit: EmitEvent
    count: Counting

    def event(self, regarding: ObjectReference, kind: EventType, reason: str, message: str, **fields: str) -> None:
        """One event, after the fact."""
        self.emit(kind, reason, regarding, message, **fields)

    def refused(self, spec: AllocationSpec, refusal: Refusal) -> None:
        """Count a refusal, and tell it as an event."""
        self.count.refused[refusal.reason] = self.count.refused.get(refusal.reason, 0) + 1
        name = spec.allocation_id[:63]
        # A Pod hears it under the same reason from who binds it; this one is for allocations without a Pod.
        no_partition = (
            refusal.reason is RefusalReason.PARTITION_TEMPLATE_MATCH_FAILED and spec.owner.kind is not OwnerKind.POD
        )
        self.event(
            ObjectReference(kind=ObjectKind.ALLOCATION, name=name, namespace=spec.owner.namespace[:253]),
            EventType.WARNING,
            "PartitionTemplateMatchFailed" if no_partition else "AllocationRefused",
            f"'{name}' was refused: {refusal}",
            refusal=refusal.reason.value,
            field=refusal.field,
            cause=str(refusal),
        )
