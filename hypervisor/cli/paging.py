"""Lists in pages and streams of events, which nodes and aggregators answer alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hypervisor.cli.source import Change
from hypervisor.rpc.client import Client
from hypervisor.v1 import node_pb2


def pages(
    client: Client, method: Any, request: Callable[..., Any], field: str, *, size: int = 0, **filters: Any
) -> Iterator[Any]:
    """The items of all pages; size 0: as many a page as the server likes. Raises what the client raises."""
    token = ""
    while True:
        answer = client.call(method, request(page=node_pb2.Page(size=size, token=token), **filters))
        yield from getattr(answer, field)
        token = answer.next_page_token
        if not token:
            return


def event_changes(client: Client, method: Any, request: Any) -> Iterator[Change]:
    """The events of a watch. Raises what the client raises."""
    for message in client.stream(method, request):
        if message.HasField("event"):
            yield Change("ADDED", message.event)
