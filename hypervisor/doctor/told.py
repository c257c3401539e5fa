"""What was said about a Pod, as lines: events, states of its containers, logs, and why it could not be made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hypervisor.doctor.kubernetes import Object, part
from hypervisor.doctor.pod_subject import PodSubject


def events_of(subject: PodSubject) -> Iterator[str]:
    """ "Reason: message" of each event about the Pod."""
    return (f"{event.reason}: {event.message}" for event in subject.events)


def states_of(subject: PodSubject) -> Iterator[str]:
    """ "container: Reason message" of what waits or has ended, and the Pod's own reason."""
    return states(subject.object or {})


def states(pod: Object) -> Iterator[str]:
    """As states_of, of a Pod object."""
    status = pod.get("status") or {}
    if status.get("reason"):
        yield f"{status['reason']}: {status.get('message', '')}"
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            state: Mapping[str, Mapping[str, object]] = container.get("state") or {}
            for which in ("waiting", "terminated"):
                told = state.get(which) or {}
                if told and told.get("reason") != "Completed":
                    yield f"{container.get('name')}: {told.get('reason', '')} {told.get('message', '')}"


def logs_of(subject: PodSubject) -> Iterator[str]:
    """Lines of all logs of the Pod on this node."""
    return (line for log in subject.logs for line in log.lines)


def rejections_of(subject: PodSubject) -> Iterator[str]:
    """Why the ReplicaSet of this name, or the one that owns the Pod, could not make its Pods."""
    owners = {str(each.get("name")) for each in part(subject.object, "metadata", "ownerReferences") or ()}
    owners.add(subject.name)
    for event in subject.node.objects.all("events"):
        about = event.get("involvedObject") or event.get("regarding") or {}
        mine = about.get("name") in owners and about.get("namespace") == subject.namespace
        if mine and event.get("reason") == "FailedCreate":
            yield str(event.get("message") or event.get("note"))
    for replicas in subject.node.objects.all("replicasets"):
        if (
            part(replicas, "metadata", "name") in owners
            and part(replicas, "metadata", "namespace") == subject.namespace
        ):
            yield from _conditions(part(replicas, "status", "conditions") or ())


def _conditions(conditions: Iterable[Object]) -> Iterator[str]:
    return (str(each.get("message", "")) for each in conditions if each.get("type") == "ReplicaFailure")
