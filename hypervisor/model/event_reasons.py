"""The catalogue of event reasons that schedulers, operators and people know: which object each is about, its type, and
what its message tells. Those without an emitter are declared, so that the parts that will cause them agree on their
form; nothing of ours emits them.

Reasons that are the node's own (health, allocations, limits) are not in it; docs/events.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from hypervisor.model.event import EventType


class Emitter(Enum):
    """Which part of this system emits a reason."""

    NODE = "node"
    AGGREGATOR = "aggregator"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReason:
    """One reason. types: those that it can have. fields: what an event of it tells for
    machines. action: what was done or tried, as events.k8s.io has it."""

    reason: str
    types: frozenset[EventType]
    object_kind: str
    action: str
    fields: tuple[str, ...] = ()
    emitter: Emitter = Emitter.NONE


class EventReasonError(ValueError):
    """An event that is not as the catalogue has it."""


_NORMAL = frozenset({EventType.NORMAL})
_WARNING = frozenset({EventType.WARNING})
_POD, _POOL, _NODE, _JOB = "Pod", "GPUPool", "GPUNode", "Job"
_WORKLOAD, _CONNECTION = "TensorFusionWorkload", "TensorFusionConnection"

# reason, types, object, action, fields, emitter
_ROWS: tuple[tuple[str, frozenset[EventType], str, str, str, Emitter], ...] = (
    ("PreScheduleDone", _NORMAL, _POD, "Schedule", "nodes", Emitter.NONE),
    ("GPUDeviceAllocated", _NORMAL, _POD, "Allocate", "allocation", Emitter.NODE),
    ("PodIndexAllocationPending", _NORMAL, _POD, "Allocate", "index node", Emitter.NODE),
    ("ScheduleWithNativeGPU", _NORMAL, _POD, "Schedule", "nodes", Emitter.NONE),
    ("GPUQuotaOrCapacityNotEnough", _WARNING, _POD, "Schedule", "cause", Emitter.NODE),
    ("PartitionTemplateMatchFailed", _WARNING, _POD, "Schedule", "cause", Emitter.NODE),
    ("GPUDeviceAllocatedFailed", _WARNING, _POD, "Allocate", "cause", Emitter.NODE),
    ("ContainerGPUAllocationFailed", _WARNING, _POD, "Allocate", "cause", Emitter.NODE),
    ("CommitFailed", _WARNING, _POD, "Allocate", "cause", Emitter.NODE),
    ("GPUInterconnectTopologyFallback", _NORMAL, _POD, "Schedule", "nodes", Emitter.NONE),
    ("GPUInterconnectTopologyUnsatisfied", _WARNING, _POD, "Schedule", "mode tier", Emitter.NONE),
    ("GangWaitingForMembers", _NORMAL, _POD, "Schedule", "group ready required", Emitter.NONE),
    ("GangScheduled", _NORMAL, _POD, "Schedule", "group members", Emitter.NONE),
    ("GangSchedulingTimeout", _WARNING, _POD, "Schedule", "group ready required", Emitter.NONE),
    ("GangStrictRejected", _WARNING, _POD, "Schedule", "group member", Emitter.NONE),
    ("NodeExpansionCheck", _NORMAL | _WARNING, _POD, "Expand", "case", Emitter.NONE),
    ("NodeExpansionCompleted", _NORMAL, _POD, "Expand", "kind claim", Emitter.NONE),
    ("NodeExpansionFailed", _WARNING, _POD, "Expand", "cause", Emitter.NONE),
    ("NodeExpansionCandidateFailed", _WARNING, _POD, "Expand", "claim cause", Emitter.NONE),
    ("NodeExpansionCandidatesExhausted", _WARNING, _POD, "Expand", "candidates", Emitter.NONE),
    ("ManagedNodeCreated", _NORMAL, _POOL, "Provision", "instance address", Emitter.NONE),
    ("Compaction", _NORMAL, _POOL, "Compact", "node", Emitter.NONE),
    ("MaxResourceConstraintReached", _WARNING, _POOL, "Provision", "resource maximum", Emitter.NONE),
    ("DefragStarted", _NORMAL, _POOL, "Defragment", "nodes", Emitter.NONE),
    ("DefragPodEvicted", _NORMAL, _POOL, "Defragment", "pod node", Emitter.NONE),
    ("DefragFinished", _NORMAL, _POOL, "Defragment", "candidates evicted failed skipped", Emitter.NONE),
    ("DefragSkipUnschedulable", _NORMAL, _POOL, "Defragment", "node cause", Emitter.NONE),
    ("DefragSkipPDBBlocked", _NORMAL, _POOL, "Defragment", "node pod budget", Emitter.NONE),
    ("DefragBlockedBySourceNode", _NORMAL, _POOL, "Defragment", "node", Emitter.NONE),
    ("DefragBlockedByEvictedPod", _NORMAL, _POOL, "Defragment", "pod", Emitter.NONE),
    ("DefragSkipMissingPDB", _WARNING, _POOL, "Defragment", "node pod", Emitter.NONE),
    ("DefragPodEvictFailed", _WARNING, _POOL, "Defragment", "node pod cause", Emitter.NONE),
    ("DefragNodeEvictSkip", _WARNING, _POOL, "Defragment", "node", Emitter.NONE),
    ("DefragAbortNode", _WARNING, _POOL, "Defragment", "node cause", Emitter.NONE),
    ("DefragConfigInvalid", _WARNING, _POOL, "Defragment", "cause", Emitter.NONE),
    (
        "HypervisorCrashLoopRecreate",
        _WARNING,
        _NODE,
        "Recreate",
        "pod container restarts threshold cause",
        Emitter.AGGREGATOR,
    ),
    ("DriverProbeFailed", _WARNING, _JOB, "Probe", "node failed backoff_limit cause", Emitter.AGGREGATOR),
    ("ResourceScaledUp", _NORMAL, _WORKLOAD, "Scale", "worker before after", Emitter.NONE),
    ("ResourceScaledDown", _NORMAL, _WORKLOAD, "Scale", "worker before after", Emitter.NONE),
    ("WorkerSelected", _NORMAL, _CONNECTION, "Select", "worker", Emitter.NONE),
    ("ConnectionReady", _NORMAL, _CONNECTION, "Connect", "url", Emitter.NONE),
    ("WorkerSelectionFailed", _WARNING, _CONNECTION, "Select", "cause", Emitter.NONE),
)

EVENT_REASONS: Mapping[str, EventReason] = MappingProxyType(
    {
        reason: EventReason(
            reason=reason, types=types, object_kind=kind, action=action, fields=tuple(fields.split()), emitter=emitter
        )
        for reason, types, kind, action, fields, emitter in _ROWS
    }
)
# What is done when a reason is not in the catalogue.
OTHER_ACTION = "Observe"


def action_of(reason: str) -> str:
    """The action that belongs to a reason."""
    known = EVENT_REASONS.get(reason)
    return known.action if known is not None else OTHER_ACTION


def check_event(reason: str, kind: str, type_: EventType, fields: Mapping[str, str], message: str) -> None:
    """Raises EventReasonError unless an event of this reason is as the catalogue has it; of other reasons nothing is
    known."""
    known = EVENT_REASONS.get(reason)
    if known is None:
        return
    if known.emitter is Emitter.NONE:
        raise EventReasonError(f"{reason} is declared, and nothing of this system causes it")
    if kind != known.object_kind:
        raise EventReasonError(f"{reason} is about a {known.object_kind} and not about a {kind}")
    if type_ not in known.types:
        raise EventReasonError(f"{reason} is never of type {type_.value}")
    for name in known.fields:
        if name not in fields:
            raise EventReasonError(f"{reason} tells {name}, which is missing")
        if fields[name] not in message:
            raise EventReasonError(f"{reason} has {name} in its fields and not in its message")
