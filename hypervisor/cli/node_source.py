"""The objects of one node, from its daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hypervisor.cli.failure import EXIT_USAGE, CommandError
from hypervisor.cli.paging import event_changes, pages
from hypervisor.cli.source import Change, EventsWanted, reason_of
from hypervisor.rpc.client import Client
from hypervisor.v1 import node_pb2 as pb
from hypervisor.v1 import node_pb2_grpc

# Kind -> field of NodeSnapshot and NodeDelta, field with the tombstones, key of an object.
_WATCHED: Mapping[str, tuple[str, str, Callable[[Any], str]]] = {
    "gpus": ("gpus", "removed_gpu_uuids", lambda gpu: str(gpu.uuid)),
    "pods": ("allocations", "removed_allocation_ids", lambda allocation: str(allocation.spec.allocation_id)),
    "workers": ("workers", "removed_worker_ids", lambda worker: str(worker.worker_id)),
}


class NodeSource:
    """Lists and watches through NodeService."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stub = node_pb2_grpc.NodeServiceStub(client.channel)

    def objects(self, kind: str) -> list[Any]:
        stub = self._stub
        match kind:
            case "nodes":
                return [self._client.call(stub.GetNode, pb.GetNodeRequest()).node]
            case "gpus":
                return self._all(stub.ListGpus, pb.ListGpusRequest, "gpus")
            case "pods":
                return self._all(stub.ListAllocations, pb.ListAllocationsRequest, "allocations")
            case "workers":
                return self._all(stub.ListWorkers, pb.ListWorkersRequest, "workers")
            case "events":
                return self.events(EventsWanted())
        raise _not_on_a_node(kind)

    def why_none(self, kind: str) -> str:
        return reason_of(self.objects("nodes")[0].conditions) if kind == "gpus" else ""

    def watch(self, kind: str) -> Iterator[Change]:
        if kind == "events":
            yield from self.watch_events(EventsWanted())
        elif kind == "nodes":
            yield from self._watch_node()
        elif kind in _WATCHED:
            yield from self._watch_objects(*_WATCHED[kind])
        else:
            raise _not_on_a_node(kind)

    def events(self, wanted: EventsWanted) -> list[Any]:
        return self._all(self._stub.ListEvents, pb.ListEventsRequest, "events", **wanted.filters())

    def watch_events(self, wanted: EventsWanted) -> Iterator[Change]:
        return event_changes(self._client, self._stub.WatchEvents, pb.WatchEventsRequest(**wanted.filters()))

    def events_about(self, kind: str, name: str) -> list[Any]:
        return self.events(EventsWanted(kind=kind, name=name))

    def _all(self, method: Any, request: Callable[..., Any], field: str, **filters: Any) -> list[Any]:
        return list(pages(self._client, method, request, field, **filters))

    def _watch_node(self) -> Iterator[Change]:
        seen = False
        for message in self._client.stream(self._stub.WatchNode, pb.WatchNodeRequest()):
            part = message.reset if message.HasField("reset") else message.delta
            if part.HasField("node"):
                yield Change("MODIFIED" if seen else "ADDED", part.node)
                seen = True

    def _watch_objects(self, field: str, tombstones: str, key: Callable[[Any], str]) -> Iterator[Change]:
        known: dict[str, Any] = {}
        for message in self._client.stream(self._stub.WatchNode, pb.WatchNodeRequest()):
            whole = message.HasField("reset")
            part = message.reset if whole else message.delta
            if whole:
                present = {key(item) for item in getattr(part, field)}
                for gone in [name for name in known if name not in present]:
                    yield Change("DELETED", known.pop(gone))
            for item in getattr(part, field):
                yield Change("MODIFIED" if key(item) in known else "ADDED", item)
                known[key(item)] = item
            for gone in getattr(message.delta, tombstones):
                if gone in known:
                    yield Change("DELETED", known.pop(gone))


def _not_on_a_node(kind: str) -> CommandError:
    return CommandError(
        f"a node keeps no {kind}; ask the aggregator for them with --server HOST:PORT", status=EXIT_USAGE
    )
