"""Who uses the cards beside us, as the rest of the node sees it: conditions that hold grants, and used_by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypervisor.kube.checkpoint import Assignment
from hypervisor.kube.foreign import Stray, Use, foreign_uses, overlaid
from hypervisor.model import Allocation, AllocationUsage, EventType, Inventory, OwnerKind
from hypervisor.node.kubernetes_events import PodEvents
from hypervisor.node.kubernetes_host import Host
from hypervisor.node.kubernetes_view import Pods

# A process is told about when it is seen twice: what the driver listed may have moved meanwhile.
_ROUNDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class UseStatistics:
    """Cards in other hands, and processes that can't be attributed, now."""

    foreign_cards: int
    hidden_processes: int
    stray_processes: int


class CardUse:
    """Looks when step() is called. For the trio main thread."""

    def __init__(self, *, pods: Pods, host: Host, events: PodEvents) -> None:
        self._pods = pods
        self._host = host
        self._events = events
        self._uses: Mapping[str, Use] = {}
        self._strays: dict[Stray, int] = {}
        self.hidden = 0

    @property
    def used_by(self) -> Mapping[str, str]:
        """By UUID, who else has a card."""
        return {uuid: use.used_by for uuid, use in self._uses.items() if use.used_by}

    def overlaid(self, inventory: Inventory) -> Inventory:
        """The inventory with what is in other hands, as of the last step."""
        return overlaid(inventory, self._uses)

    def step(
        self,
        inventory: Inventory,
        assignments: tuple[Assignment, ...],
        allocations: tuple[Allocation, ...],
        usages: tuple[AllocationUsage, ...],
    ) -> bool:
        """Look again; True when something changed."""
        pids = {process.pid for device in inventory.devices for process in device.readings.processes or ()}
        residences = self._host.residences(pids)
        attached = frozenset(
            process.host_pid for usage in usages for process in usage.processes if process.host_pid is not None
        )
        self.hidden = sum(
            1 for pid, where in residences.items() if pid not in attached and (where is None or where.hidden)
        )
        uses, strays = foreign_uses(
            inventory,
            assignments=assignments,
            pods=self._pods.pods,
            granted=granted_by_pod(allocations),
            residences=residences,
            our_pids=attached,
        )
        self._tell(strays)
        changed = uses != self._uses
        self._uses = uses
        return changed

    def statistics(self) -> UseStatistics:
        """As of the last step."""
        return UseStatistics(
            foreign_cards=len(self._uses), hidden_processes=self.hidden, stray_processes=len(self._strays)
        )

    def _tell(self, strays: tuple[Stray, ...]) -> None:
        self._strays = {stray: self._strays.get(stray, 0) + 1 for stray in strays}
        for stray, rounds in self._strays.items():
            if rounds == _ROUNDS:
                self._events.tell(
                    stray.pod,
                    EventType.WARNING,
                    "GPUNotGranted",
                    f"process {stray.pid} uses {stray.gpu_uuid}, which the Pod was not given; look for "
                    "NVIDIA_VISIBLE_DEVICES=all in its image",
                    pid=str(stray.pid),
                )


def granted_by_pod(allocations: Sequence[Allocation]) -> Mapping[str, frozenset[str]]:
    """By Pod UID, the GPUs that it was given."""
    found: dict[str, frozenset[str]] = {}
    for allocation in allocations:
        owner = allocation.spec.owner
        if owner.kind is OwnerKind.POD:
            uuids = frozenset(each.gpu_uuid for each in allocation.grants)
            found[owner.pod_uid] = found.get(owner.pod_uid, frozenset()) | uuids
    return found
