"""What the allocations tell: events to the journal, counts to the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hypervisor.model import EventType, ObjectReference, RefusalReason

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


@dataclass(frozen=True, slots=True)
class Tell:
    """Where to tell it."""

    emit: EmitEvent
    count: Counting

    def event(self, regarding: ObjectReference, kind: EventType, reason: str, message: str, **fields: str) -> None:
        """One event, after the fact."""
        self.emit(kind, reason, regarding, message, **fields)
