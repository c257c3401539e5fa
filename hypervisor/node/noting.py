"""What of the node's state and of its events is worth a line of the daemon's log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import structlog

from hypervisor.model import Condition, Event, HealthCode, NodeSnapshot

log = structlog.get_logger("node")

# Events that tell of damage; all others are what the daemon is for, and are in the journal.
_EVENTS = frozenset(
    {"RecordSetAside", "StateSetAside", "AllocationRecovered", "LimitFilesUnusable", "UsageTampered", "LimiterBypassed"}
)
# What is no trouble: it is well, or it is on its way.
_WELL = frozenset({HealthCode.OK, HealthCode.STARTING, HealthCode.STOPPING})
# These come and go with the load, many times a minute.
_RESTLESS = frozenset({HealthCode.CLOCKS_REDUCED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A condition that came (warning, or info where it says that all is well) or went. gpu is "" for the node's."""

    condition: Condition
    gpu: str
    gone: bool

    @property
    def warning(self) -> bool:
        return not self.gone and self.condition.code not in _WELL


def log_event(event: Event) -> None:
    """A line for an event that tells of damage."""
    if event.reason in _EVENTS:
        about = f"{event.regarding.namespace}/{event.regarding.name}".lstrip("/") or event.regarding.uid
        log.warning("event", reason=event.reason, message=event.message, object=about, count=event.count)


def log_conditions(before: NodeSnapshot, after: NodeSnapshot) -> None:
    """A line for each condition that came, changed or went."""
    for note in notes(before, after):
        condition = note.condition
        fields = {"condition": condition.type, "code": condition.code.value, "message": condition.message}
        if note.gpu:
            fields["gpu"] = note.gpu
        if note.gone:
            log.info("condition has ended", **fields)
        else:
            (log.warning if note.warning else log.info)("condition", status=condition.status.value, **fields)


def notes(before: NodeSnapshot, after: NodeSnapshot) -> Iterator[Note]:
    """What changed in status or code between two snapshots; pure. A card that is new and well is no note."""
    yield from _changed(_by_type(before.conditions), _by_type(after.conditions), gpu="")
    known = {gpu.identity.uuid: gpu.conditions for gpu in before.gpus}
    for gpu in after.gpus:
        old = known.get(gpu.identity.uuid, ())
        if old is not gpu.conditions:
            yield from _changed(_by_type(old), _by_type(gpu.conditions), gpu=gpu.identity.uuid)


def _changed(old: Mapping[str, Condition], new: Mapping[str, Condition], *, gpu: str) -> Iterator[Note]:
    for name, condition in new.items():
        earlier = old.get(name)
        if earlier is None and gpu and condition.code is HealthCode.OK:
            continue
        if earlier is None or (earlier.status, earlier.code) != (condition.status, condition.code):
            yield Note(condition=condition, gpu=gpu, gone=False)
    for name, condition in old.items():
        if name not in new and condition.code is not HealthCode.OK:
            yield Note(condition=condition, gpu=gpu, gone=True)


def _by_type(conditions: tuple[Condition, ...]) -> dict[str, Condition]:
    return {condition.type: condition for condition in conditions if condition.code not in _RESTLESS}
