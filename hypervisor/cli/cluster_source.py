"""The objects of many nodes, from an aggregator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hypervisor.cli.failure import EXIT_USAGE, CommandError
from hypervisor.cli.paging import event_changes, pages
from hypervisor.cli.source import Change, EventsWanted, reason_of
from hypervisor.rpc.client import Client
from hypervisor.v1 import cluster_pb2 as pb
from hypervisor.v1 import cluster_pb2_grpc

# The API has no watch of nodes and pools: they are few, and asked for again.
POLL_SECONDS = 1.0
_PAGE = 1000
_KEYS: Mapping[str, Callable[[Any], str]] = {
    "nodes": lambda node: str(node.node.identity.uid),
    "pools": lambda pool: str(pool.name),
}

_NODES_TOLD = 3  # of those that say why they have no GPUs


class ClusterSource:
    """Lists and watches through ClusterService."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stub = cluster_pb2_grpc.ClusterServiceStub(client.channel)

    def objects(self, kind: str) -> list[Any]:
        stub = self._stub
        match kind:
            case "nodes":
                return self._all(stub.ListNodes, pb.ListNodesRequest, "nodes")
            case "gpus":
                return self._all(stub.ListGpus, pb.ClusterListGpusRequest, "gpus")
            case "events":
                return self.events(EventsWanted())
            case "pools":
                return self._all(stub.ListPools, pb.ListPoolsRequest, "pools")
        raise _not_in_a_cluster(kind)

    def why_none(self, kind: str) -> str:
        nodes = self.objects("nodes") if kind in ("nodes", "gpus") else []
        if kind in ("nodes", "gpus") and not nodes:
            return "no node has reported yet; start daemons with --report-to and the aggregator's address"
        reasons = [(each.node.identity.name, reason_of(each.node.conditions)) for each in nodes]
        told = [f"{name}: {reason}" for name, reason in reasons if reason]
        more = f"; and {len(told) - _NODES_TOLD} more nodes" if len(told) > _NODES_TOLD else ""
        return "; ".join(told[:_NODES_TOLD]) + more

    def watch(self, kind: str) -> Iterator[Change]:
        if kind == "events":
            yield from self.watch_events(EventsWanted())
        elif kind == "gpus":
            yield from self._watch_gpus()
        elif kind in _KEYS:
            yield from self._poll(kind, _KEYS[kind])
        else:
            raise _not_in_a_cluster(kind)

    def events(self, wanted: EventsWanted) -> list[Any]:
        return self._all(self._stub.ListEvents, pb.ClusterListEventsRequest, "events", **wanted.filters())

    def watch_events(self, wanted: EventsWanted) -> Iterator[Change]:
        return event_changes(self._client, self._stub.WatchEvents, pb.ClusterWatchEventsRequest(**wanted.filters()))

    def events_about(self, kind: str, name: str) -> list[Any]:
        return self.events(EventsWanted(kind=kind, name=name))

    def _all(self, method: Any, request: Callable[..., Any], field: str, **filters: Any) -> list[Any]:
        return list(pages(self._client, method, request, field, size=_PAGE, **filters))

    def _watch_gpus(self) -> Iterator[Change]:
        known: dict[str, Any] = {}
        # Names that a snapshot in parts has not brought yet; None while there is none.
        unseen: set[str] | None = None
        for message in self._client.stream(self._stub.WatchGpus, pb.WatchGpusRequest()):
            if message.reset:
                unseen = set(known)
            for gpu in message.gpus:
                yield Change("MODIFIED" if gpu.name in known else "ADDED", gpu)
                known[gpu.name] = gpu
                if unseen is not None:
                    unseen.discard(gpu.name)
            gone = list(message.removed)
            if unseen is not None and not message.more:
                gone += sorted(unseen)
                unseen = None
            for name in gone:
                if name in known:
                    yield Change("DELETED", known.pop(name))

    def _poll(self, kind: str, key: Callable[[Any], str]) -> Iterator[Change]:
        known: dict[str, Any] = {}
        while True:
            present = {key(item): item for item in self.objects(kind)}
            for name in [name for name in known if name not in present]:
                yield Change("DELETED", known.pop(name))
            for name, item in present.items():
                if name not in known:
                    yield Change("ADDED", item)
                elif _said(known[name]) != _said(item):
                    yield Change("MODIFIED", item)
                known[name] = item
            time.sleep(POLL_SECONDS)


def _said(item: Any) -> Any:
    """The object without how long ago it was heard of, which differs each time."""
    if not isinstance(item, pb.ClusterNode):
        return item
    copy = pb.ClusterNode(node=item.node, liveness=item.liveness)
    for figure in (copy.node.tflops, copy.node.vram):
        figure.ClearField("age_seconds")
        figure.ClearField("observed_at")
    copy.node.ClearField("revision")
    return copy


def _not_in_a_cluster(kind: str) -> CommandError:
    return CommandError(
        f"an aggregator keeps no {kind}; ask the daemon of their node for them with --server", status=EXIT_USAGE
    )
