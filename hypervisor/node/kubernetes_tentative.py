"""The choice of cards for a container whose Pod is not known yet.

All Pods that may be the one often ask for the same, as replicas do: then it does not matter which it is, and the card
can be chosen when kubelet asks. What was chosen and is not bound yet is counted with what is granted.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from hypervisor.allocations import Allocations
from hypervisor.config import Settings
from hypervisor.kube.annotations import AnnotationError, Demand
from hypervisor.kube.demands import Demands, spec_of
from hypervisor.kube.grants import Grant
from hypervisor.kube.pod import Pod
from hypervisor.kube.reconcile import container_of
from hypervisor.model import AllocationSpec, Compute, DeviceRequest, Inventory, Refusal, Resources
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
        self._chosen: dict[str, Demand] = {}  # by grant, for as long as it is not bound

    def choose(self, grant: Grant) -> tuple[str, ...]:
        """The cards of a new grant, kept in it; () where they can't be chosen yet. Raises Refusal (STORAGE_FAILED)."""
        found = self._candidates(grant)
        demands = {demand for _, _, demand in found}
        if len(demands) != 1:
            return ()
        pod, container, demand = found[0]
        if demand.container_counts or demand.container_gpus:
            return ()  # which container it is decides
        inventory = self._inventory()
        pending = self._pending()
        held = {each.gpu_uuid for allocation in self._allocations.all for each in allocation.grants}
        try:
            spec = spec_of(
                pod,
                container,
                demand,
                [device.identity for device in inventory.devices],
                settings=self._settings,
                held=held | pending.keys(),
                fits=lambda some: self._allocations.allocate(_with(some, pending), inventory, dry_run=True),
                naming=True,
            )
        except Refusal:
            return ()  # when it is bound there may be room
        cards = tuple(request.gpu for request in spec.devices)
        self._grants.save(
            Grant(
                uid=grant.uid,
                resource=grant.resource,
                device_ids=grant.device_ids,
                created_at=grant.created_at,
                cards=cards,
            )
        )
        self._chosen[grant.uid] = demand
        return cards

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

    def _pending(self) -> dict[str, Resources]:
        """By UUID, what is promised to grants that are not bound yet."""
        unbound = {grant.uid: grant for grant in self._grants.all if not grant.pod_uid}
        self._chosen = {uid: demand for uid, demand in self._chosen.items() if uid in unbound}
        found: dict[str, Resources] = {}
        for uid, demand in self._chosen.items():
            for card in unbound[uid].cards:
                found[card] = _sum(found.get(card, Resources()), demand.requests)
        return found


def _with(spec: AllocationSpec, pending: dict[str, Resources]) -> AllocationSpec:
    """The spec as if it asked for what is pending on its cards too."""
    devices = tuple(
        DeviceRequest(gpu=each.gpu, requests=_sum(pending[each.gpu], each.requests)) if each.gpu in pending else each
        for each in spec.devices
    )
    return AllocationSpec(
        allocation_id=f"tentative.{spec.allocation_id}"[:63],
        owner=spec.owner,
        devices=devices,
        isolation=spec.isolation,
        qos=spec.qos,
    )


def _sum(one: Resources, other: Resources) -> Resources:
    """Together; amounts in unlike units can't be added, and the greater claim on the card is a whole one."""
    vram = (one.vram_bytes or 0) + (other.vram_bytes or 0)
    return Resources(compute=_sum_compute(one.compute, other.compute), vram_bytes=vram or None)


def _sum_compute(one: Compute | None, other: Compute | None) -> Compute | None:
    if one is None or other is None:
        return one or other
    if one.tflops is not None and other.tflops is not None:
        return Compute(tflops=one.tflops + other.tflops)
    if one.percent is not None and other.percent is not None:
        return Compute(percent=one.percent + other.percent)
    return Compute(percent=Decimal(100))
