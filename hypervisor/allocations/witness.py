"""Whose time was it that a GPU or a MIG instance was busy, where the driver attributes none? Of who was alone there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypervisor.allocations.held import Held
from hypervisor.model import DeviceWindow

# So long after a window of its own an allocation still counts as watched: a process of its own that has just come is
# known as such with the next round.
WITNESSED_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """The last window in which an allocation was alone on a device: when it ended, and the share that was busy."""

    ended_at: float
    ratio: float

    def is_fresh(self, now: float) -> bool:
        """Whether it still says something of now."""
        return now - self.ended_at <= WITNESSED_SECONDS


def is_alone(held: Held, window: DeviceWindow, all_held: Iterable[Held]) -> bool:
    """Was nobody else on the devices of a window, from its begin to its end?

    Not where that is not known: a process that can't be found on the host, a list that could not be read, accounts of
    others that can't be read.
    """
    own = {process.host_pid for process in held.processes}
    if None in own or held.unknown_slots or window.pids is None or not window.pids <= own:
        return False
    return not any(_may_be_there(other, window) for other in all_held if other is not held)


def _may_be_there(other: Held, window: DeviceWindow) -> bool:
    if not any(grant.gpu_uuid in window.uuids for grant in other.allocation.grants):
        return False
    return bool(other.processes or other.unknown_slots or other.finding or other.survey is None)
