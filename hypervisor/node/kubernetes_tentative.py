"""The choice of cards for a container whose Pod is not known yet.

All Pods that may be the one often ask for the same, as replicas do: then it does not matter which it is, and the card
can be chosen when kubelet asks. What was chosen and is not bound yet is counted with what is granted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypervisor.allocations import Allocations
from hypervisor.config import Settings
from hypervisor.kube.annotations import AnnotationError, Demand
from hypervisor.kube.demands import Demands, spec_of
from hypervisor.kube.grants import Grant
from hypervisor.kube.pod import Pod
from hypervisor.kube.reconcile import container_of
from hypervisor.model import Allocation, AllocationSpec, Inventory, IsolationMode, Refusal
from hypervisor.node.kubernetes_grants import GrantStore
from hypervisor.node.kubernetes_view import Pods


class Tentative:
    """For the trio main thread."""

    def __init__(
        self,
        settings: Settings,
        *,
        allocations: Allocations,
        inventory: Callable[[], Inventory],
        pods: Pods,
        grants: GrantStore,
        demands: Demands,
    ) -> None:
        self._settings = settings
        self._allocations = allocations
        self._inventory = inventory
        self._pods = pods
        self._grants = grants
        self._demands = demands
        self._drafts: dict[str, Allocation] = {}  # by grant, for as long as it is not bound

    def choose(self, grant: Grant) -> Grant:
        """A new grant with its cards; as it is where they can't be chosen yet."""
        found = self._candidates(grant)
        demands = {demand for _, _, demand in found}
        if len(demands) != 1:
            return grant
        pod, container, demand = found[0]
        if demand.container_counts or demand.container_gpus:
            return grant  # which container it is decides
        inventory, pending = self._inventory(), self._pending()

        def draft(spec: AllocationSpec) -> Allocation:
            # Under a name of its own, so that it is no repetition of what the Pod may have.
            named = replace(spec, allocation_id=f"tentative.{spec.allocation_id}"[:63])
            return self._allocations.allocate(named, inventory, dry_run=True, beside=pending)[0]

        everything = (*self._allocations.all, *pending)
        try:
            spec = spec_of(
                pod,
                container,
                demand,
                [device.identity for device in inventory.devices],
                settings=self._settings,
                held={each.gpu_uuid for allocation in everything for each in allocation.grants},
                fits=draft,
                existing=True,
            )
            chosen = draft(spec)
        except Refusal:
            return grant  # when it is bound there may be room
        self._drafts[grant.uid] = chosen
        return replace_cards(grant, tuple(each.gpu_uuid for each in chosen.grants))

    def may_be_partitioned(self, grant: Grant) -> bool:
        """May the grant be for a Pod that wants a MIG instance? Then its container must see no whole card."""
        return any(demand.isolation is IsolationMode.PARTITIONED for _, _, demand in self._candidates(grant))

    def _candidates(self, grant: Grant) -> list[tuple[Pod, str, Demand]]:
        """Pods that may be the one, with what they ask for."""
        bound = {each.pod_uid for each in self._grants.all}
        found = []
        for pod in self._pods.pods.values():
            if pod.ended or pod.deleting or pod.uid in bound:
                continue
            container = container_of(pod, grant.resource, len(grant.device_ids))
            if container is None:
                continue
            try:
                found.append((pod, container, self._demands.of(pod)))
            except AnnotationError:
                continue  # it gets nothing whichever card it is given
        return found

    def _pending(self) -> tuple[Allocation, ...]:
        """What is promised to grants that are not bound yet."""
        unbound = {grant.uid for grant in self._grants.all if not grant.pod_uid}
        self._drafts = {uid: draft for uid, draft in self._drafts.items() if uid in unbound}
        return tuple(self._drafts.values())


def replace_cards(grant: Grant, cards: tuple[str, ...]) -> Grant:
    """A grant with the cards that its container was given."""
    return Grant(
        uid=grant.uid,
        resource=grant.resource,
        device_ids=grant.device_ids,
        created_at=grant.created_at,
        cards=cards,
    )
