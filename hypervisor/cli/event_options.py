"""`--for` and `--type` of `hypervisor get events`: which events are wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from hypervisor.cli.failure import EXIT_USAGE, CommandError
from hypervisor.cli.source import EventsWanted, Source

F = TypeVar("F", bound=Callable[..., Any])
# What people type -> the kind that events call it by. Pods and allocations share their names, so both are meant.
_KINDS: Mapping[str, str] = {
    "gpu": "GPU",
    "gpus": "GPU",
    "node": "Node",
    "nodes": "Node",
    "pod": "",
    "pods": "",
    "worker": "Worker",
    "workers": "Worker",
    "allocation": "Allocation",
    "allocations": "Allocation",
    "pool": "GPUPool",
    "pools": "GPUPool",
}
# A GPU's UUID has so many characters; what is shorter may be an index, or the beginning of one.
_UUID_CHARACTERS = 40

_for_option = click.option(
    "--for",
    "subject",
    metavar="KIND/NAME",
    help="With events: those about one object, for instance gpu/UUID, node/NAME or pod/NAMESPACE/NAME",
)
_type_option = click.option(
    "--type",
    "event_type",
    type=click.Choice(["Normal", "Warning"], case_sensitive=False),
    help="With events: of one type",
)


def event_options(command: F) -> F:
    """Both options, as subject and event_type."""
    return _for_option(_type_option(command))


def check_kind(kind: str, subject: str | None, event_type: str | None) -> None:
    """Refuse the options for anything but events."""
    if kind != "events" and (subject or event_type):
        raise CommandError(f"--for and --type select events; leave them out for {kind}", status=EXIT_USAGE)


def events_wanted(source: Source, subject: str | None, event_type: str | None) -> EventsWanted:
    """What the options select. Raises CommandError for a subject that names nothing, or more than one GPU."""
    from hypervisor.v1 import types_pb2

    number = types_pb2.EventType.Value(f"EVENT_TYPE_{event_type.upper()}") if event_type else 0
    if subject is None:
        return EventsWanted(type=number)
    word, _, rest = subject.partition("/")
    if not word or not rest:
        raise CommandError(
            f"--for: {subject!r} names no object; write it as KIND/NAME, for instance gpu/UUID", status=EXIT_USAGE
        )
    kind = _KINDS.get(word.lower(), word)
    if kind == "GPU":
        return EventsWanted(kind=kind, name=_gpu_name(source, rest), type=number)
    namespace, _, name = rest.rpartition("/")
    return EventsWanted(kind=kind, namespace=namespace, name=name, type=number)


def _gpu_name(source: Source, typed: str) -> str:
    """The UUID of a GPU that was named by its index or the beginning of its UUID; else what was typed: events outlive
    their objects."""
    if len(typed) >= _UUID_CHARACTERS:
        return typed
    from hypervisor.cli.get import matches, pick
    from hypervisor.cli.tables import table_of

    gpus = source.objects("gpus")
    if not any(matches(gpu, "gpus", typed) for gpu in gpus):
        return typed
    found = pick(gpus, "gpus", typed)
    return table_of(found).name(found)
