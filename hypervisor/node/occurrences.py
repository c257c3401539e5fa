"""What the gpu room saw happen to cards, as events about the right object: the card, or who made it happen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from hypervisor.gpu.health.occurrence import Occurrence
from hypervisor.model import Allocation, EventType, NodeSnapshot, ObjectKind, ObjectReference
from hypervisor.node.changes import allocation_reference, node_reference
from hypervisor.node.publisher import EmitEvent


class OccurrenceSource(Protocol):
    """Where occurrences come from."""

    async def next_occurrences(self) -> tuple[Occurrence, ...]: ...


class SnapshotSource(Protocol):
    """Where the state of the node is read."""

    @property
    def snapshot(self) -> NodeSnapshot: ...


class Occurrences:
    """Takes occurrences and emits events. For the trio main thread."""

    def __init__(self, source: OccurrenceSource, state: SnapshotSource, emit: EmitEvent) -> None:
        self._source = source
        self._state = state
        self._emit = emit

    async def run(self) -> None:
        """For ever. Cancelling loses what has come and was not emitted yet."""
        while True:
            for occurrence in await self._source.next_occurrences():
                self.tell(occurrence)

    def tell(self, occurrence: Occurrence) -> None:
        """One event."""
        snapshot = self._state.snapshot
        blamed = blamed_for(occurrence, snapshot)
        fields = dict(occurrence.fields)
        if occurrence.gpu_uuid:
            fields["gpu"] = occurrence.gpu_uuid
        message = occurrence.message
        if blamed is not None:
            message = f"{message} on GPU {occurrence.gpu_uuid}; the card is well"
        regarding = allocation_reference(blamed) if blamed is not None else _card(occurrence, snapshot)
        kind = EventType.WARNING if occurrence.warning else EventType.NORMAL
        self._emit(kind, occurrence.kind.value, regarding, message, **fields)

    def owner_of(self, host_pid: int) -> str:
        """The allocation that a process belongs to, "" when it is of none that is known."""
        found = _of_process(host_pid, self._state.snapshot)
        return found.spec.allocation_id if found is not None else ""


def blamed_for(occurrence: Occurrence, snapshot: NodeSnapshot) -> Allocation | None:
    """Whose fault it is: of the allocation whose process did it, or of the only one on the card. Pure."""
    if not occurrence.blames_owner:
        return None
    if occurrence.pid is not None:
        found = _of_process(occurrence.pid, snapshot)
        if found is not None:
            return found
    devices = {
        gpu.identity.uuid
        for gpu in snapshot.gpus
        if occurrence.gpu_uuid
        in (gpu.identity.uuid, gpu.identity.partition.parent_uuid if gpu.identity.partition else "")
    }
    on_card = [
        allocation
        for allocation in snapshot.allocations
        if any(grant.gpu_uuid in devices for grant in allocation.grants)
    ]
    # A program of no allocation may be there too; the message names the process where the driver does.
    return on_card[0] if len(on_card) == 1 and occurrence.pid is None else None


def _of_process(host_pid: int, snapshot: NodeSnapshot) -> Allocation | None:
    ids: Iterable[str] = (
        usage.allocation_id
        for usage in snapshot.usages
        if any(process.host_pid == host_pid for process in usage.processes)
    )
    wanted = next(iter(ids), None)
    return next((each for each in snapshot.allocations if each.spec.allocation_id == wanted), None)


def _card(occurrence: Occurrence, snapshot: NodeSnapshot) -> ObjectReference:
    if not occurrence.gpu_uuid:
        return node_reference(snapshot)
    return ObjectReference(kind=ObjectKind.GPU, name=occurrence.gpu_uuid.lower(), uid=occurrence.gpu_uuid)
