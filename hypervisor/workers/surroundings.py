"""What a worker's task needs of the daemon: revisions, the journal, and who wants to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypervisor.model import EventType, ObjectKind, ObjectReference, Revision, WorkerPhase

# emit(type, reason, regarding, message, **fields)
EmitEvent = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """changed is called whenever a worker looks different; moved with each change of phase."""

    next_revision: Callable[[], Revision]
    emit: EmitEvent
    changed: Callable[[], None]
    moved: Callable[[str, WorkerPhase], None]

    def tell(self, worker_id: str, kind: EventType, reason: str, message: str, **fields: str) -> None:
        """An event about a worker."""
        about = ObjectReference(kind=ObjectKind.WORKER, name=worker_id)
        self.emit(kind, reason, about, f"worker '{worker_id}' {message}", **fields)
