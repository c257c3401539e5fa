"""A cluster as its checks see it: what the aggregator knows, Kubernetes objects, and logs where they lie at hand."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hypervisor.doctor.facts import ClusterFacts, EventFacts
from hypervisor.doctor.kubernetes import Object, Objects, labels_of, name_of, part, quantity
from hypervisor.doctor.pod_logs import logs
from hypervisor.doctor.root import METADATA, Root
from hypervisor.doctor.scheduling_events import from_object

COMPONENT = "tensor-fusion.ai/component"
# Where 'kubectl logs' of the controller may be put for the doctor.
CONTROLLER_LOG = f"{METADATA}/kubernetes/controller.log"


@dataclass(frozen=True)
class ClusterSubject:
    """facts is None when no aggregator could be asked, and facts_absent says why."""

    root: Root
    facts: ClusterFacts | None = None
    facts_absent: str = ""
    objects: Objects = field(default_factory=Objects)

    @functools.cached_property
    def events(self) -> tuple[EventFacts, ...]:
        """All events, of Kubernetes and of the aggregator."""
        kept = [from_object(each) for each in self.objects.all("events")]
        return (*kept, *(self.facts.events if self.facts is not None else ()))

    def component(self, name: str) -> Sequence[Object]:
        """Pods of one component: operator, hypervisor, worker."""
        return [pod for pod in self.objects.all("pods") if labels_of(pod).get(COMPONENT) == name]

    @functools.cached_property
    def controller_log(self) -> tuple[str, ...]:
        """Lines of the controller's logs, as far as they are at hand."""
        lines = (self.root.text(CONTROLLER_LOG) or "").splitlines()
        for log in logs(self.root, "controller"):
            lines += log.lines
        return tuple(lines)


def restarts(pod: Object) -> int:
    """Restarts of all containers of a Pod."""
    return sum(quantity(each.get("restartCount")) for each in part(pod, "status", "containerStatuses") or ())


def ready(pod: Object) -> bool:
    """Do all containers of a Pod serve?"""
    found = part(pod, "status", "containerStatuses") or ()
    return part(pod, "status", "phase") == "Running" and bool(found) and all(each.get("ready") for each in found)


def names(objects: Iterable[Object]) -> list[str]:
    """namespace/name of each."""
    return [name_of(each) for each in objects]
