"""Asks kubelet what it has given, when there is a reason to: PodResources, else its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from hypervisor.kube.checkpoint import Assignment
from hypervisor.node.kubernetes_grants import GrantStore
from hypervisor.node.kubernetes_host import Host
from hypervisor.node.kubernetes_view import Pods
from hypervisor.rpc.pod_resources import PodResourcesError

# Kubelet is asked at least so often, for what other plugins have given.
ASK_SECONDS = 5.0
# A long answer is not asked for so often: it shall take no more than this part of the time.
ASK_PART = 0.05


class Asking:
    """What kubelet last said. For the trio main thread."""

    def __init__(
        self,
        *,
        pods: Pods,
        host: Host,
        grants: GrantStore,
        ask_kubelet: Callable[[], Awaitable[tuple[Assignment, ...]]],
        learned: Callable[[tuple[Assignment, ...]], object],
    ) -> None:
        """learned is told what kubelet has given, before anything is granted by it."""
        self._pods = pods
        self._host = host
        self._grants = grants
        self._ask_kubelet = ask_kubelet
        self._learned = learned
        self._native: frozenset[str] = frozenset()  # Pods that ask other plugins, known at the last question
        self._seconds = 0.0
        self._due = True
        self.assignments: tuple[Assignment, ...] | None = None  # None: kubelet could not be asked yet
        self.asked_at = 0.0  # wall time
        self.failing = ""

    def ask_soon(self) -> None:
        """Kubelet has given something."""
        self._due = True

    async def step(self) -> None:
        """Ask, if there is a reason to. Cancelled, it may have asked in vain."""
        unbound = any(not grant.pod_uid for grant in self._grants.all)
        native = frozenset(uid for uid, pod in self._pods.pods.items() if pod.native_gpus)
        long_ago = abs(time.time() - self.asked_at) > max(ASK_SECONDS, self._seconds / ASK_PART)
        if not (self._due or unbound or long_ago or native != self._native):
            return
        asked_at = time.time()
        try:
            found = await self._ask_kubelet()
        except PodResourcesError as error:
            self.failing = str(error)
            checkpoint = await self._host.checkpoint()
            if checkpoint is None:
                return
            found = checkpoint
        else:
            self.failing = ""
        self.assignments, self.asked_at, self._due, self._native = found, asked_at, False, native
        self._seconds = time.time() - asked_at
        self._learned(found)
