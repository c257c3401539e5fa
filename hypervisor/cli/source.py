"""Where objects come from: a node's daemon or an aggregator, whichever the server is."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hypervisor.cli.failure import CommandError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from hypervisor.rpc.client import Client

# What people type -> the kind that is meant.
KINDS: Mapping[str, str] = {
    "nodes": "nodes",
    "node": "nodes",
    "gpus": "gpus",
    "gpu": "gpus",
    "pods": "pods",
    "pod": "pods",
    "allocations": "pods",
    "allocation": "pods",
    "workers": "workers",
    "worker": "workers",
    "events": "events",
    "event": "events",
    "pools": "pools",
    "pool": "pools",
}
# Full name of a service -> module:class of the source that speaks it. A new kind of server is one row.
SOURCES: Mapping[str, str] = {
    "hypervisor.v1.NodeService": "hypervisor.cli.node_source:NodeSource",
    "hypervisor.v1.ClusterService": "hypervisor.cli.cluster_source:ClusterSource",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a watch: ADDED, MODIFIED or DELETED, and the object, the last known one when it is gone."""

    type: str
    item: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsWanted:
    """Which events are asked for; what is empty matches all. type is a number of the API."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    type: int = 0

    def filters(self) -> dict[str, Any]:
        """As fields of a request."""
        from hypervisor.v1 import types_pb2

        about = types_pb2.ObjectReference(kind=self.kind, namespace=self.namespace, name=self.name)
        return {"regarding": about, "type": self.type}


class Source(Protocol):
    """A server's objects, as messages of the API. Every method raises what the client raises."""

    def objects(self, kind: str) -> list[Any]:
        """All objects of a kind. Raises CommandError for a kind that this server has none of."""
        ...

    def why_none(self, kind: str) -> str:
        """Why there are no objects of a kind, where the server knows a reason; "" elsewhere."""
        ...

    def watch(self, kind: str) -> Iterator[Change]:
        """All objects of a kind as ADDED, then each change; ends when the server does."""
        ...

    def events(self, wanted: EventsWanted) -> list[Any]:
        """Events that are kept, oldest first."""
        ...

    def watch_events(self, wanted: EventsWanted) -> Iterator[Change]:
        """Events that are kept, then each new one."""
        ...

    def events_about(self, kind: str, name: str) -> list[Any]:
        """Events that are kept about one object; kind as the events call it."""
        ...


def reason_of(conditions: Iterable[Any]) -> str:
    """Why a node is not ready, from its conditions: the code, and what to do. "" for one that is."""
    for condition in conditions:
        if condition.type == "Ready" and condition.status != "True":
            return f"{condition.reason}: {condition.message}"
    return ""


def open_source(client: Client) -> Source:
    """The source that fits the server's service. Raises CommandError when it offers none that we know."""
    for service, target in SOURCES.items():
        if client.offers(service):
            module, _, name = target.partition(":")
            source: Source = getattr(importlib.import_module(module), name)(client)
            return source
    raise CommandError(f"{client.address} answers, but is neither a daemon nor an aggregator of ours")
