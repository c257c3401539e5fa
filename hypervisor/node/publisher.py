"""Puts what the rooms know into the state, and tells the journal what has changed by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from hypervisor.model import (
    Allocation,
    AllocationUsage,
    Condition,
    ConditionStatus,
    EventType,
    HealthCode,
    Inventory,
    NodeSnapshot,
    ObjectReference,
    Worker,
)
from hypervisor.node.changes import changes
from hypervisor.node.derive import Ratios
from hypervisor.node.noting import log_conditions
from hypervisor.node.state import NodeState, Parts


class EmitEvent(Protocol):
    """How an event gets into the journal."""

    def __call__(
        self, event_type: EventType, reason: str, regarding: ObjectReference, message: str, **fields: str
    ) -> None: ...


class Sources(Protocol):
    """Where the parts of a snapshot come from; each property is a plain read."""

    @property
    def inventory(self) -> Inventory: ...

    @property
    def allocations(self) -> tuple[Allocation, ...]: ...

    @property
    def conditions(self) -> tuple[Condition, ...]: ...

    @property
    def foreign(self) -> Mapping[str, int | None]: ...

    @property
    def ratios(self) -> Ratios: ...

    @property
    def used_by(self) -> Mapping[str, str]: ...

    @property
    def supervised(self) -> tuple[Worker, ...]: ...


class Publisher:
    """The only caller of NodeState.update(). For the trio main thread."""

    def __init__(self, state: NodeState, sources: Sources, emit: EmitEvent) -> None:
        self._state = state
        self._sources = sources
        self._emit = emit
        self._usages: tuple[AllocationUsage, ...] = ()

    @property
    def snapshot(self) -> NodeSnapshot:
        """The state as last published."""
        return self._state.snapshot

    def publish(self, usages: Iterable[AllocationUsage] | None = None) -> bool:
        """Take the parts as they are now, usages as given or as last given; True when something changed."""
        if usages is not None:
            self._usages = tuple(usages)
        sources, before = self._sources, self._state.snapshot
        allocations = sources.allocations
        living = {allocation.spec.allocation_id for allocation in allocations}
        changed = self._state.update(
            Parts(
                inventory=sources.inventory,
                ratios=sources.ratios,
                foreign=sources.foreign,
                allocations=allocations,
                usages=tuple(usage for usage in self._usages if usage.allocation_id in living),
                conditions=sources.conditions,
                used_by=sources.used_by,
                workers=sources.supervised,
            )
        )
        if changed:
            log_conditions(before, self._state.snapshot)
            for change in changes(before, self._state.snapshot):
                self._emit(change.type, change.reason, change.regarding, change.message, **dict(change.fields))
        return changed


def failed(code: HealthCode, why: str) -> Condition:
    """A condition of the daemon's own that is there while something is wrong; its type is the code."""
    return Condition(type=code.value, status=ConditionStatus.TRUE, code=code, message=why, last_transition_at=0.0)
