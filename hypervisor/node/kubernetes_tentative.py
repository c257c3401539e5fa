"""The choice of cards for a container whose Pod is not known yet.

All Pods that may be the one often ask for the same, as replicas do: then it does not matter which it is, and the card
can be chosen when kubelet asks. What was chosen and is not bound yet is counted with what is granted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec

from hypervisor.allocations import Allocations
from hypervisor.config import Settings
from hypervisor.kube.annotations import AnnotationError, Demand
from hypervisor.kube.demands import Demands, spec_of
from hypervisor.kube.grants import Grant
from hypervisor.kube.pod import Pod
from hypervisor.kube.reconcile import container_of
from hypervisor.model import Allocation, AllocationSpec, Inventory, IsolationMode, Refusal
from hypervisor.node.commands import Commands
from hypervisor.node.kubernetes_grants import GrantStore
from hypervisor.node.kubernetes_view import Pods

# What must be there before a container starts.
_PREPARED = (IsolationMode.HARD, IsolationMode.PARTITIONED)


class Tentative:
    """For the trio main thread."""

    def __init__(
        self,
        settings: Settings,
        *,
        allocations: Allocations,
        commands: Commands,
        inventory: Callable[[], Inventory],
        pods: Pods,
        grants: GrantStore,
        demands: Demands,
    ) -> None:
        self._settings = settings
        self._allocations = allocations
        self._commands = commands
        self._inventory = inventory
        self._pods = pods
        self._grants = grants
        self._demands = demands
        self._drafts: dict[str, Allocation] = {}  # by grant, for as long as it is not bound
        self._unprepared: dict[str, str] = {}  # the same
        # Grants from before a restart, of which the drafts are still to be made again.
        self._recalled = {grant.uid for grant in grants.all if grant.cards and not grant.pod_uid}

    def choose(self, grant: Grant) -> Grant:
        """A new grant with its cards; as it is where they can't be chosen yet."""
        self._recall()
        asked = self._asked(grant)
        if asked is None:
            return grant
        try:
            return self._keep(grant, self._drafted(*asked))
        except Refusal:
            return grant  # when it is bound there may be room

    def _recall(self) -> None:
        """What was promised before a restart, to containers whose grants were not bound then, is promised still."""
        unbound = {each.uid: each for each in self._grants.all if not each.pod_uid}
        for uid in tuple(self._recalled):
            if uid in unbound and uid not in self._drafts:
                asked = self._asked(unbound[uid])
                if asked is None:
                    continue  # not yet, or never: whose it is is not known
                try:
                    self._drafts[uid] = self._drafted(*asked, given=unbound[uid].cards)
                except Refusal:
                    continue
            self._recalled.discard(uid)

    def _drafted(self, pod: Pod, container: str, demand: Demand, *, given: Sequence[str] = ()) -> Allocation:
        """What a container would get now; given: the cards that it has. Raises Refusal."""
        inventory, pending = self._inventory(), self._pending()

        def draft(spec: AllocationSpec) -> Allocation:
            # Under a name of its own, so that it is no repetition of what the Pod may have.
            named = replace(spec, allocation_id=f"tentative.{spec.allocation_id}"[:63])
            return self._allocations.allocate(named, inventory, dry_run=True, beside=pending)[0]

        everything = (*self._allocations.all, *pending)
        spec = spec_of(
            pod,
            container,
            demand,
            [device.identity for device in inventory.devices],
            settings=self._settings,
            held={each.gpu_uuid for allocation in everything for each in allocation.grants},
            fits=draft,
            given=given,
            existing=True,
        )
        return draft(spec)

    async def prepare(self, grant: Grant) -> Allocation | None:
        """Have ready what a hard or partitioned share needs before its container starts, and keep it with the grant;
        the draft of the share. None where it is another mode, or not known which, or where it can't be had:
        why_unprepared() has the reason."""
        asked = self._asked(grant)
        if asked is None or asked[2].isolation not in _PREPARED:
            return None
        try:
            if asked[2].isolation is IsolationMode.PARTITIONED and grant.uid not in self._drafts:
                await self._make_instance(grant, *asked)
            draft = self._drafts.get(grant.uid)
            if draft is None:
                return None
            if draft.spec.isolation is IsolationMode.HARD:
                await self._commands.prepare(draft)
            kept = next(each for each in self._grants.all if each.uid == grant.uid)
            self._grants.save(msgspec.structs.replace(kept, isolation=draft.spec.isolation.value))
        except Refusal as refusal:
            self._unprepared[grant.uid] = str(refusal)
            return None
        return draft

    def why_unprepared(self, grant: Grant) -> str:
        """Why prepare() could not have ready what a grant needs; "" where it could, or was not asked to."""
        return self._unprepared.get(grant.uid, "")

    async def _make_instance(self, grant: Grant, pod: Pod, container: str, demand: Demand) -> None:
        spec = spec_of(
            pod,
            container,
            demand,
            [device.identity for device in self._inventory().devices],
            settings=self._settings,
            held=(),
            fits=lambda _: None,
        )
        await self._commands.promise(
            replace(spec, allocation_id=f"tentative.{grant.uid}"),
            beside=self._pending,
            keep=lambda draft: self._grants.save(self._keep(grant, draft)),
        )

    def _keep(self, grant: Grant, draft: Allocation) -> Grant:
        self._drafts[grant.uid] = draft
        return msgspec.structs.replace(grant, cards=tuple(each.gpu_uuid for each in draft.grants))

    def _asked(self, grant: Grant) -> tuple[Pod, str, Demand] | None:
        """One of the Pods that may be the one, with what they all ask for; None where they do not ask for the same."""
        found = self._candidates(grant)
        if len({demand for _, _, demand in found}) != 1:
            return None
        demand = found[0][2]
        # Where containers get different things, which one it is decides.
        return None if demand.container_counts or demand.container_gpus else found[0]

    def may_be_partitioned(self, grant: Grant) -> bool:
        """May the grant be for a Pod that wants a MIG instance? Then its container must see no whole card."""
        return any(demand.isolation is IsolationMode.PARTITIONED for _, _, demand in self._candidates(grant))

    def is_awaited(self, resource: str, count: int) -> bool:
        """Is a Pod known that asks for so many of this resource and has none yet?"""
        return next(self._asking(resource, count), None) is not None

    def _candidates(self, grant: Grant) -> list[tuple[Pod, str, Demand]]:
        """Pods that may be the one, with what they ask for."""
        found = []
        for pod, container in self._asking(grant.resource, len(grant.device_ids)):
            try:
                found.append((pod, container, self._demands.of(pod)))
            except AnnotationError:
                continue  # it gets nothing whichever card it is given
        return found

    def _asking(self, resource: str, count: int) -> Iterator[tuple[Pod, str]]:
        bound = {each.pod_uid for each in self._grants.all}
        for pod in self._pods.pods.values():
            if pod.ended or pod.deleting or pod.uid in bound:
                continue
            container = container_of(pod, resource, count)
            if container is not None:
                yield pod, container

    def _pending(self) -> tuple[Allocation, ...]:
        """What is promised to grants that are not bound yet."""
        unbound = {grant.uid for grant in self._grants.all if not grant.pod_uid}
        self._drafts = {uid: draft for uid, draft in self._drafts.items() if uid in unbound}
        self._unprepared = {uid: why for uid, why in self._unprepared.items() if uid in unbound}
        return tuple(self._drafts.values())
