"""Who needs instances; pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from hypervisor.workers.mig.journal import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Who needs instances now: ids of the allocations that stand, and UUIDs of all devices that were granted or
    promised."""

    allocations: Collection[str] = ()
    busy: Collection[str] = ()


@dataclass(slots=True)
class Promises:
    """What was given to allocations that do not stand yet."""

    # Their ids -> the UUIDs that they were given.
    to: dict[str, set[str]] = field(default_factory=dict)

    def given(self, uuid: str) -> bool:
        """Whether an instance is promised."""
        return any(uuid in given for given in self.to.values())

    def needed(self, record: Record, needs: Needs) -> bool:
        """Whether an instance of ours is to stay: one of the wished geometry always is, as far as this goes."""
        return (
            not record.allocation_id
            or record.allocation_id in needs.allocations
            or record.allocation_id in self.to
            # Made before it was known whose it would be; or another has been granted it since.
            or record.uuid in needs.busy
        )
