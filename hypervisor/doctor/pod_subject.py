"""A Pod as its checks see it: its processes on this node, its allocations, its logs, its object and its events."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from hypervisor.doctor import process_files
from hypervisor.doctor.facts import AllocationFacts, EventFacts
from hypervisor.doctor.kubernetes import Object, part
from hypervisor.doctor.pod_logs import ContainerLog, logs
from hypervisor.doctor.pod_processes import pod_processes
from hypervisor.doctor.process_files import Process
from hypervisor.doctor.root import Root
from hypervisor.doctor.scheduling_events import from_object
from hypervisor.doctor.subject import NodeSubject

LIMITER = "libcuda_limiter.so"
FIXED_LIMIT_FILE = "/run/tensor-fusion/shm/shm"


@dataclass(frozen=True)
class PodSubject:
    """One Pod on the node that is examined."""

    node: NodeSubject
    namespace: str
    name: str

    @functools.cached_property
    def allocations(self) -> tuple[AllocationFacts, ...]:
        """Grants of this Pod, by the daemon."""
        facts = self.node.facts
        every = facts.allocations if facts is not None else ()
        return tuple(each for each in every if (each.namespace, each.pod) == (self.namespace, self.name))

    @functools.cached_property
    def processes(self) -> tuple[Process, ...]:
        """Its processes on this node, the sandbox's pause left out."""
        known = [pid for each in self.allocations for pid in each.pids]
        found = pod_processes(self.node.root, self.namespace, self.name, known=known)
        return tuple(each for each in found if each.command != "pause")

    @functools.cached_property
    def cuda_processes(self) -> tuple[Process, ...]:
        """Those that have loaded a CUDA driver."""
        return tuple(each for each in self.processes if any("libcuda.so" in name for name in self.maps(each)))

    @functools.cached_property
    def object(self) -> Object | None:
        """The Pod object, where objects are known."""
        return self.node.objects.one("pods", self.name, self.namespace)

    @functools.cached_property
    def events(self) -> tuple[EventFacts, ...]:
        """Events about it, from Kubernetes and from the daemon."""
        kept = [from_object(each) for each in self.node.objects.all("events")]
        kept += self.node.facts.events if self.node.facts is not None else ()
        return tuple(each for each in kept if each.name == self.name and each.namespace in ("", self.namespace))

    @functools.cached_property
    def logs(self) -> tuple[ContainerLog, ...]:
        """The newest log of each of its containers on this node."""
        found = logs(self.node.root, self.name, namespace=self.namespace)
        return tuple(each for each in found if each.pod == self.name)

    @property
    def root(self) -> Root:
        return self.node.root

    def files(self, process: Process) -> Root:
        """The files as a process sees them."""
        return self.node.root.container(process.pid)

    def environment(self, process: Process) -> Mapping[str, str]:
        """Variables of a process. Raises UnreadableError."""
        return process_files.environment(self.node.root, process)

    def maps(self, process: Process) -> frozenset[str]:
        """Files that a process has mapped. Raises UnreadableError."""
        return process_files.mapped_files(self.node.root, process)

    @property
    def isolation(self) -> str:
        """Soft, shared, hard or partitioned, from whoever says it; "" when nobody does."""
        if self.allocations:
            return self.allocations[0].isolation
        for process in self.processes:
            mode = self.environment(process).get("TF_ISOLATION_MODE")
            if mode:
                return mode
        annotations = part(self.object, "metadata", "annotations") or {}
        return str(annotations.get("tensor-fusion.ai/isolation", ""))
