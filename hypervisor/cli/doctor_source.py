"""Where the doctor's facts come from: the daemon, one round of the gpu-reader, an aggregator, or a bundle."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hypervisor.cli.connection import default_address, tls_directory
from hypervisor.cli.failure import EXIT_USAGE, CommandError
from hypervisor.doctor.facts import ClusterFacts, NodeFacts, event_facts, gpu_facts, node_facts
from hypervisor.doctor.root import METADATA, Root, UnreadableError

Facts = TypeVar("Facts", bound="NodeFacts | ClusterFacts")
FACTS = f"{METADATA}/facts.json"
CLUSTER_FACTS = f"{METADATA}/cluster.json"
ASK_SECONDS = 1.0


def open_root(path: Path) -> Root:
    """The root of a machine or of a bundle. Raises CommandError."""
    try:
        return Root(path)
    except UnreadableError as error:
        raise CommandError(f"--root {path}: {error}", status=EXIT_USAGE) from error


def facts_of_node(root: Root, server: str | None) -> tuple[NodeFacts | None, str]:
    """Facts of the node and, where there are none, why. Asks nobody for a root elsewhere unless a server is named."""
    if not root.live and server is None:
        return _stored(root, FACTS, NodeFacts), "these are files of another machine, without a daemon's answer"
    facts, why = _ask(server, _node_facts)
    if facts is None and root.live and server is None:
        from hypervisor.doctor.reading import read_once

        facts = read_once(os.environ)
    return facts, why


def facts_of_cluster(root: Root, server: str | None) -> tuple[ClusterFacts | None, str]:
    """Facts of all nodes, from an aggregator or a bundle."""
    if server is None:
        return _stored(root, CLUSTER_FACTS, ClusterFacts), "no aggregator was named; give one with --server HOST:PORT"
    return _ask(server, _cluster_facts)


def _stored(root: Root, name: str, kind: type[Facts]) -> Facts | None:
    import msgspec

    try:
        data = root.document(name)
        return None if data is None else msgspec.json.decode(data, type=kind)
    except (UnreadableError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{name} of this root can't be used: {error}") from error


def _ask(server: str | None, ask: Callable[[Any], Facts]) -> tuple[Facts | None, str]:
    from hypervisor.model import Refusal
    from hypervisor.rpc.address import AddressError
    from hypervisor.rpc.client import CallFailed, ServerUnreachable, connect
    from hypervisor.rpc.tls import TlsError

    try:
        with connect(server or default_address(admin=False), timeout=ASK_SECONDS, tls=tls_directory()) as client:
            return ask(client), ""
    except AddressError as error:
        raise CommandError(f"--server: {error}", status=EXIT_USAGE) from error
    except (ServerUnreachable, TlsError, Refusal, CallFailed) as error:
        return None, str(error)


def _node_facts(client: Any) -> NodeFacts:
    from hypervisor.cli.node_source import NodeSource

    source = NodeSource(client)
    return node_facts(
        source.objects("nodes")[0],
        gpus=source.objects("gpus"),
        allocations=source.objects("pods"),
        events=source.objects("events")[-1000:],
    )


def _cluster_facts(client: Any) -> ClusterFacts:
    from hypervisor.cli.cluster_source import ClusterSource
    from hypervisor.v1 import cluster_pb2

    source = ClusterSource(client)
    nodes = [
        node_facts(
            each.node,
            liveness=cluster_pb2.Liveness.Name(each.liveness).removeprefix("LIVENESS_").lower(),
        )
        for each in source.objects("nodes")
    ]
    gpus = [gpu_facts(each.gpu, node=each.node_name, phase=each.phase) for each in source.objects("gpus")]
    return ClusterFacts(
        nodes=tuple(nodes), gpus=tuple(gpus), events=tuple(event_facts(each) for each in source.objects("events"))
    )
