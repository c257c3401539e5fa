"""Events about placing Pods, of either API group of Kubernetes and of ours, and what they say most often; pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from hypervisor.doctor.facts import EventFacts
from hypervisor.doctor.kubernetes import Object, part, quantity

SCHEDULING_REASONS = frozenset(
    {
        "FailedScheduling",
        "GPUQuotaOrCapacityNotEnough",
        "PartitionTemplateMatchFailed",
        "GPUDeviceAllocatedFailed",
        "ContainerGPUAllocationFailed",
        "CommitFailed",
    }
)
# Names of resources and keys of taints have dots in them: a sentence ends with a dot and a blank, and a
# reason where the next one's number follows.
_SENTENCE = re.compile(r"\.(?:\s|$)")
_BETWEEN = re.compile(r",\s+(?=\d+ )")
_REASON = re.compile(r"\d+ (.+)", re.DOTALL)


def scheduling_events(events: Iterable[Object]) -> list[EventFacts]:
    """Events of Kubernetes about scheduling."""
    return [event for event in map(from_object, events) if event.reason in SCHEDULING_REASONS]


def from_object(event: Object) -> EventFacts:
    """An event of either API group."""
    regarding = event.get("involvedObject") or event.get("regarding") or {}
    return EventFacts(
        reason=str(event.get("reason", "")),
        type=str(event.get("type", "Normal")),
        kind=str(regarding.get("kind", "")),
        namespace=str(regarding.get("namespace", "")),
        name=str(regarding.get("name", "")),
        message=str(event.get("message") or event.get("note") or ""),
        count=quantity(event.get("count")) or quantity(part(event, "series", "count")) or 1,
    )


def top_reasons(events: Iterable[EventFacts], most: int = 10) -> list[tuple[str, int]]:
    """Reasons by how often they came; "0/5 nodes are available: 3 Insufficient nvidia.com/gpu, 2 ..." has several."""
    counted: Counter[str] = Counter()
    for event in events:
        _, found, reasons = event.message.partition("nodes are available:")
        told = _BETWEEN.split(_SENTENCE.split(reasons.strip(), maxsplit=1)[0]) if found else []
        parts = [match[1].strip() for each in told if (match := _REASON.fullmatch(each.strip()))]
        if event.reason == "FailedScheduling" and parts:
            for reason in parts:
                counted[reason] += event.count
        else:
            counted[event.message.strip()[:160] or event.reason] += event.count
    return counted.most_common(most)
