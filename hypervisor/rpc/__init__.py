"""Every protocol adapter of the node; the only importer of grpc and asyncio on the node.

In: immutable snapshots and events, from trio. Out: answers, and commands that are awaited in trio. The servers run on
one asyncio loop in a thread of its own; no lock is shared. What clients send is checked in convert/ and refused with a
reason and the field's name.

Names are imported when they are asked for: the command line must not pay for the server, nor the server for it.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

# gRPC reads it when it is imported. We start programs and never go on in a fork; with its handlers gRPC would print
# a line to stderr at each start.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Each failed TLS handshake, a port scan's for instance, would be a line in a format of gRPC's own.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

if TYPE_CHECKING:
    from hypervisor.rpc.asyncio_host import AsyncioHost, HostClosing, open_asyncio_host
    from hypervisor.rpc.interfaces import EventSource, NodeCommands
    from hypervisor.rpc.listening import ListenError
    from hypervisor.rpc.node_server import NodeServer, open_node_server
    from hypervisor.rpc.owner_server import serve_owners
    from hypervisor.rpc.statistics import FeedStatistics, RpcStatistics

__all__ = [
    "AsyncioHost",
    "EventSource",
    "FeedStatistics",
    "HostClosing",
    "ListenError",
    "NodeCommands",
    "NodeServer",
    "RpcStatistics",
    "open_asyncio_host",
    "open_node_server",
    "serve_owners",
]

_HOMES = {
    "AsyncioHost": "asyncio_host",
    "EventSource": "interfaces",
    "FeedStatistics": "statistics",
    "HostClosing": "asyncio_host",
    "ListenError": "listening",
    "NodeCommands": "interfaces",
    "NodeServer": "node_server",
    "RpcStatistics": "statistics",
    "open_asyncio_host": "asyncio_host",
    "open_node_server": "node_server",
    "serve_owners": "owner_server",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
