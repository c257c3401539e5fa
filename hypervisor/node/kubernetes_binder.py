"""Brings Pods and allocations together: learns after Allocate whose each grant is, and keeps both alike.

step() compares what is with what should be, and does what is missing; it may be called at any time and as often as one
likes. What single steps do is in Binding, and what kubelet is answered before in Answering.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import trio

from hypervisor.allocations import Allocations
from hypervisor.kube.checkpoint import Assignment
from hypervisor.kube.demands import Demands
from hypervisor.kube.reconcile import Bind, Compare, Discard, Release, World, held_indices, steps
from hypervisor.model import EventType
from hypervisor.node.kubernetes_asking import Asking
from hypervisor.node.kubernetes_bell import Bell
from hypervisor.node.kubernetes_binding import RETRY_SECONDS, Binding
from hypervisor.node.kubernetes_events import PodEvents
from hypervisor.node.kubernetes_grants import GrantStore, bring_through
from hypervisor.node.kubernetes_host import Host
from hypervisor.node.kubernetes_recovery import recover
from hypervisor.node.kubernetes_view import Pods
from hypervisor.rpc.right_of_way import RightOfWay

LOOK_SECONDS = 2.0
UNBOUND_LOOK_SECONDS = 0.1
# What rings meanwhile is done in one go: a node that fills up is compared ten times a second and not for each Pod.
REST_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class BinderStatistics:
    """Grants now, and counters since the start; last_step_seconds is the time of the last comparison."""

    grants: int
    unbound: int
    bound_total: int
    released_total: int
    discarded_total: int
    changed_total: int
    refused_total: int
    steps_total: int
    last_step_seconds: float


class Binder:
    """For the trio main thread."""

    def __init__(
        self,
        *,
        allocations: Allocations,
        pods: Pods,
        host: Host,
        grants: GrantStore,
        events: PodEvents,
        demands: Demands,
        binding: Binding,
        asking: Asking,
        publish: Callable[[], object],
        bell: Bell,
        way: RightOfWay,
    ) -> None:
        """publish shows what was granted; way: kubelet's, while it waits for an answer."""
        self._allocations = allocations
        self._pods = pods
        self._host = host
        self._grants = grants
        self._events = events
        self._demands = demands
        self._binding = binding
        self._asking = asking
        self._publish = publish
        self._bell = bell
        self._way = way
        self._recovered = False
        self._steps = 0
        self._last_seconds = 0.0

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """What kubelet last said that it has given."""
        return self._asking.assignments or ()

    @property
    def kubelet_failing(self) -> str:
        """Why kubelet can't be asked; "" when it can."""
        return self._asking.failing

    def promised(self) -> Collection[str]:
        """UUIDs of instances that containers were given whose grants are not bound yet."""
        return {card for grant in self._grants.all if not grant.pod_uid for card in grant.cards}

    def wake(self) -> None:
        """Something has changed: compare now."""
        self._bell.ring()

    def look_again(self) -> None:
        """Kubelet was answered: it has given something."""
        self._asking.ask_soon()
        self.wake()

    def try_again(self) -> None:
        """The cards are in other hands than before: compare now, and what was refused too."""
        self._binding.try_again()
        self.wake()

    async def run(self) -> None:
        """Compare for ever: when something changed, soon after a grant, and now and then. Cancel-safe."""
        while True:
            await self.step()
            waiting = any(not grant.pod_uid for grant in self._grants.all)
            recent = waiting and time.time() - max(grant.created_at for grant in self._grants.all) < RETRY_SECONDS
            await trio.sleep(REST_SECONDS)
            await self._bell.wait(UNBOUND_LOOK_SECONDS if recent else LOOK_SECONDS)

    async def step(self) -> None:
        """One comparison, and what follows from it. A refusal is an event on its Pod and stops nothing else."""
        began = time.monotonic()
        if self._pods.complete and not self._recovered:
            self._recovered = True
            recover(self._grants, self._allocations, self._pods.pods, await self._host.checkpoint() or ())
        await self._asking.step()
        world = World(
            pods=self._pods.pods,
            complete=self._pods.complete,
            grants=self._grants.all,
            allocations=self._allocations.all,
            assignments=self._asking.assignments,
            asked_at=self._asking.asked_at,
            now=time.time(),
            living=self._host.living_pods() if self._pods.failing else None,
            unarmed=self._unarmed(),
        )
        for each in steps(world):
            if not isinstance(each, Compare):  # which mostly finds nothing to do
                await self._way.give()
            match each:
                case Bind():
                    await self._binding.bind(each.grant, each.pod, each.container)
                case Compare():
                    await self._binding.compare(each.allocation, each.pod)
                case Release():
                    await self._binding.release(each.allocation_id, each.why)
                case Discard():
                    self._binding.discard(each.grant)
        if self._binding.unpublished:
            await self._way.give()
            self._binding.unpublished = False
            self._publish()
        await bring_through(self._grants.unsynced(), self._allocations.unsynced())
        self._demands.forget_all_but(self._pods.pods)
        self._tell_held_indices()
        self._steps += 1
        self._last_seconds = time.monotonic() - began

    def _tell_held_indices(self) -> None:
        """A scheduler gave an index anew before the Pod that has it was gone."""
        pods = self._pods.pods
        holding = frozenset(grant.pod_uid for grant in self._grants.all)
        for held in held_indices(pods.values(), self._demands.indices(pods), holding):
            self._events.tell(
                held.waiting,
                EventType.NORMAL,
                "PodIndexAllocationPending",
                f"index {held.index} is still held by Pod {held.holder.label} on node {held.waiting.node}",
                index=str(held.index),
                node=held.waiting.node,
            )

    def _unarmed(self) -> frozenset[str]:
        """Names of grants that have a Pod and whose files wait; looked for only where one has no allocation."""
        held = {allocation.uid for allocation in self._allocations.all}
        bare = frozenset(grant.uid for grant in self._grants.all if grant.pod_uid and grant.uid not in held)
        return bare & frozenset(self._allocations.reserved) if bare else bare

    def statistics(self) -> BinderStatistics:
        """Counters since the start."""
        grants = self._grants.all
        return BinderStatistics(
            grants=len(grants),
            unbound=sum(not grant.pod_uid for grant in grants),
            bound_total=self._binding.bound,
            released_total=self._binding.released,
            discarded_total=self._binding.discarded,
            changed_total=self._binding.changed,
            refused_total=self._binding.refusals,
            steps_total=self._steps,
            last_step_seconds=self._last_seconds,
        )
