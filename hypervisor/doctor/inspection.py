"""The daily inspection of the article's 5.3: what has grown since the last one, and what has been up for how long."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hypervisor.doctor.memory_sources import deviations_of
from hypervisor.doctor.scheduling_events import SCHEDULING_REASONS, scheduling_events, top_reasons
from hypervisor.doctor.subject import DEVICE_PLUGINS, NodeSubject
from hypervisor.durable import write_atomically

# Counters of the daemon's /metrics that tell of a card's memory and links.
_COUNTED = re.compile(
    r"gpuhv_gpu_(?P<name>ecc_errors_total|rows_remapped_total|retired_pages|xid_errors_total)"
    r"\{(?P<labels>[^}]*)\} (?P<value>\S+)"
)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Counters = dict[str, dict[str, float]]


class InspectionError(Exception):
    """The file of the last inspection can't be used; the text says why."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What one inspection leaves for the next: counters by GPU and name; taken_at is wall time in seconds."""

    taken_at: float
    counters: Counters


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """A counter of one GPU; increase is None where there is nothing to compare with."""

    uuid: str
    name: str
    value: float
    increase: float | None


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """One inspection. Times are seconds."""

    node: str
    taken_at: float
    since: float | None
    growth: tuple[Growth, ...]
    counters_absent: str
    up: tuple[tuple[str, float], ...]
    deviations: tuple[str, ...]
    reasons: tuple[tuple[str, int], ...]


def inspect(subject: NodeSubject, counters: Counters, *, counters_absent: str, last: Kept | None) -> Inspection:
    """Compare with the last inspection; pure but for the files of the root."""
    facts = subject.facts
    events = scheduling_events(subject.objects.all("events"))
    events += [each for each in (facts.events if facts is not None else ()) if each.reason in SCHEDULING_REASONS]
    return Inspection(
        node=facts.name if facts is not None else "",
        taken_at=subject.now,
        since=last.taken_at if last is not None else None,
        growth=_growth(counters, last),
        counters_absent=counters_absent,
        up=tuple(_up(subject)),
        deviations=tuple(told for gpu in facts.gpus for told in deviations_of(gpu, facts)) if facts is not None else (),
        reasons=tuple(top_reasons(events)),
    )


def counters_of(metrics: str) -> Counters:
    """Counters by UUID, from the text of the daemon's /metrics."""
    found: Counters = {}
    for match in _COUNTED.finditer(metrics):
        labels = dict(_LABEL.findall(match["labels"]))
        uuid = labels.pop("uuid", "")
        name = " ".join([match["name"].removesuffix("_total"), *(labels[key] for key in sorted(labels))])
        found.setdefault(uuid, {})[name] = float(match["value"])
    return found


def read_last(path: Path) -> Kept | None:
    """What the last inspection left; None when there was none. Raises InspectionError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise InspectionError(f"{path} is no state of an earlier inspection: {error}; remove it") from error


def write_last(path: Path, kept: Kept) -> None:
    """Leave this for the next inspection, whole or not at all. Raises OSError."""
    write_atomically(path, msgspec.json.encode(kept))


def _growth(counters: Counters, last: Kept | None) -> tuple[Growth, ...]:
    before: Mapping[str, Mapping[str, float]] = last.counters if last is not None else {}
    found = []
    for uuid, values in sorted(counters.items()):
        for name, value in sorted(values.items()):
            earlier = before.get(uuid, {}).get(name)
            # Less than before: the counter began anew with a reset of the card or the driver.
            increase = None if earlier is None else value - earlier if value >= earlier else value
            found.append(Growth(uuid=uuid, name=name, value=value, increase=increase))
    return tuple(found)


def _up(subject: NodeSubject) -> list[tuple[str, float]]:
    """How long the daemon, each registered plugin and the kubelet's last change of registrations have stood."""
    found = []
    if subject.facts is not None and subject.facts.started_at:
        found.append(("the daemon", max(0.0, subject.now - subject.facts.started_at)))
    for name in subject.root.names(DEVICE_PLUGINS):
        node = subject.root.node(f"{DEVICE_PLUGINS}/{name}")
        if node is None or not node.modified_at:
            continue
        if node.kind == "socket":
            what = "the kubelet's plugin socket" if name == "kubelet.sock" else f"device plugin {name}"
            found.append((what, max(0.0, subject.now - node.modified_at)))
        elif name == "kubelet_internal_checkpoint":
            found.append(("the kubelet's last change of registrations", max(0.0, subject.now - node.modified_at)))
    return found
