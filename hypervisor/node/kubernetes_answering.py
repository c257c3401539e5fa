"""Answers kubelet at once, from this node alone: limit files that are empty and not armed, and the cards.

It needs to know nothing of the Pod; a process that starts in such files waits until the binder has found whose they
are.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

import trio

from hypervisor.allocations import Allocations
from hypervisor.kube.answers import ContainerAnswer, HostFiles, MpsShare, answer
from hypervisor.kube.demands import Demands
from hypervisor.kube.grants import Grant, grant_uid
from hypervisor.kube.indices import bucket_of, device_ids
from hypervisor.kube.pod import Pod
from hypervisor.kube.reconcile import by_index, container_of
from hypervisor.model import Allocation, GpuIdentity, HealthState, Inventory, IsolationMode, Refusal, RefusalReason
from hypervisor.node.kubernetes_binding import Binding
from hypervisor.node.kubernetes_grants import GrantStore
from hypervisor.node.kubernetes_host import Host
from hypervisor.node.kubernetes_tentative import Tentative
from hypervisor.node.kubernetes_view import Pods

MOST_CONTAINERS = 64
# So often others run before an answer for a Pod that is not known: enough for the watch to read what has come already.
CATCH_UP_TURNS = 8


class Answering:
    """Kubelet's Allocate. For the trio main thread."""

    def __init__(
        self,
        *,
        allocations: Allocations,
        inventory: Callable[[], Inventory],
        pods: Pods,
        host: Host,
        files: HostFiles,
        grants: GrantStore,
        demands: Demands,
        tentative: Tentative,
        binding: Binding,
        answered: Callable[[], object],
    ) -> None:
        """answered is called after each answer: kubelet has given something."""
        self._allocations = allocations
        self._inventory = inventory
        self._pods = pods
        self._host = host
        self._files = files
        self._grants = grants
        self._demands = demands
        self._tentative = tentative
        self._binding = binding
        self._answered = answered

    async def allocate(self, resource: str, containers: Sequence[tuple[str, ...]]) -> tuple[ContainerAnswer, ...]:
        """Answer kubelet for each container. Raises Refusal, and then nothing is left of it."""
        self._check_ids(resource, containers)
        self._usable_cards()
        await catch_up(lambda: all(self._tentative.is_awaited(resource, len(ids)) for ids in containers))
        made: list[Grant] = []
        try:
            for ids in containers:
                made.append(self._reserve(resource, ids))  # noqa: PERF401 - what was made before an error must be known
        except Refusal:
            for grant in made:
                self._binding.discard(grant)
            raise
        answers = []
        for grant in made:
            allocation = await self._bind_by_index(grant) or await self._tentative.prepare(grant)
            answers.append(self._answer(grant, allocation))
        self._answered()
        return tuple(answers)

    def _check_ids(self, resource: str, containers: Sequence[tuple[str, ...]]) -> None:
        bucket = bucket_of(resource)
        known = set(device_ids(bucket)) if bucket is not None else set()
        if not 0 < len(containers) <= MOST_CONTAINERS:
            raise Refusal(RefusalReason.INVALID_ARGUMENT, f"{len(containers)} containers are asked for in one call")
        for ids in containers:
            strange = [each for each in ids if each not in known]
            if strange or not ids:
                what = f"{strange[0][:63]!r} is no id of {resource}" if strange else "no id is given"
                raise Refusal(RefusalReason.INVALID_ARGUMENT, what, field="devices_ids")

    def _usable_cards(self) -> tuple[GpuIdentity, ...]:
        inventory = self._inventory()
        usable = (HealthState.HEALTHY, HealthState.DEGRADED)
        cards = tuple(device.identity for device in inventory.devices if device.health in usable)
        if not cards:
            raise Refusal(
                RefusalReason.NOT_READY,
                "no GPU of this node can be used now",
                remedy="`hypervisor get gpus` on the node says why",
            )
        return cards

    def _reserve(self, resource: str, ids: Sequence[str]) -> Grant:
        grant = Grant(
            uid=grant_uid(resource, ids, secrets.token_hex(4)),
            resource=resource,
            device_ids=tuple(sorted(ids)),
            created_at=time.time(),
        )
        self._allocations.reserve(grant.uid)
        try:
            if self._pod_by_index(grant) is None:
                grant = self._tentative.choose(grant)
            self._grants.save(grant)
        except Refusal:
            self._allocations.discard_reserved(grant.uid)
            raise
        return grant

    def _pod_by_index(self, grant: Grant) -> tuple[Pod, str] | None:
        """The Pod to which a scheduler gave this index, and its container."""
        count = len(grant.device_ids)
        pod = by_index(self._pods.pods.values(), grant.resource, count, self._demands.indices(self._pods.pods))
        container = container_of(pod, grant.resource, count) if pod is not None else None
        if pod is None or container is None or any(each.pod_uid == pod.uid for each in self._grants.all):
            return None
        return pod, container

    async def _bind_by_index(self, grant: Grant) -> Allocation | None:
        """Where a scheduler wrote the index, whose it is is known already."""
        found = self._pod_by_index(grant)
        return await self._binding.bind(grant, *found, answering=True) if found is not None else None

    def _answer(self, grant: Grant, allocation: Allocation | None) -> ContainerAnswer:
        """allocation: also a draft of what it will be."""
        granted = {each.gpu_uuid for each in allocation.grants} if allocation is not None else set(grant.cards)
        cards = self._usable_cards()  # with an instance that was made for this grant
        if granted:
            cards = tuple(card for card in cards if card.uuid in granted)
        elif self._tentative.may_be_partitioned(grant):
            cards = ()
        if not self._host.describes(cards):
            self._describe_cards()  # a name that the CDI files do not have yet would stop the container
        return answer(
            str(self._allocations.directory_of(grant.uid)),
            self._files,
            cards=cards,
            isolation=allocation.spec.isolation if allocation is not None else None,
            chosen=bool(granted),
            existing_nodes=self._host.existing_nodes(cards),
            mig_minors=self._host.mig_minors,
            mps=self._mps_share(allocation),
        )

    def _describe_cards(self) -> None:
        inventory = self._inventory()
        self._host.write_cdi(
            tuple(device.identity for device in inventory.devices),
            self._allocations.all,
            self._files,
            driver_version=inventory.system.driver_version,
        )

    def _mps_share(self, allocation: Allocation | None) -> MpsShare | None:
        if allocation is None or allocation.spec.isolation is not IsolationMode.HARD:
            return None
        found = self._allocations.environment(allocation)
        ours = tuple(pair for pair in found.items() if pair[0].startswith(("CUDA_MPS_", "TF_CUDA_", "TF_GPU_")))
        return MpsShare(
            environment=ours,
            pipe_directory=found.get("CUDA_MPS_PIPE_DIRECTORY", ""),
            shared_memory=self._host.mps_shared_memory,
        )


async def catch_up(known: Callable[[], bool]) -> None:
    """Let others run until something is known, for some turns: nothing is waited for, but a watch whose lines lie there
    has read them. Cancel-safe."""
    for _ in range(CATCH_UP_TURNS):
        if known():
            return
        await trio.lowlevel.checkpoint()
