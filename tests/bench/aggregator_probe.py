"""How soon a change of one node is seen by a watcher, while others report."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import grpc

from hypervisor.v1 import cluster_pb2, node_pb2
from tests.fleet import messages as m
from tests.fleet.process import AggregatorProcess
from tests.fleet.stream import ReportStream

PROBES_PER_SECOND = 10
_PATIENCE_SECONDS = 30.0


def delays(aggregator: AggregatorProcess, seconds: float, *, node: str = "probe") -> list[float]:
    """Seconds from the sending of a changed fact to its arrival at a watcher, again and again.

    Both go through the aggregator's unix socket, which has no roles.
    """
    seen: dict[float, float] = {}
    changed = threading.Condition()

    def follow(call: Iterator[cluster_pb2.WatchGpusResponse]) -> None:
        with contextlib.suppress(grpc.RpcError):  # how a watch ends that is cancelled
            for message in call:
                at = time.monotonic()
                with changed:
                    for gpu in message.gpus:
                        seen[gpu.gpu.capacity.available_tflops.value] = at
                    changed.notify()

    found: list[float] = []
    with ReportStream(aggregator.unix) as stream, aggregator.cluster(aggregator.unix) as cluster:
        stream.send(m.hello(node), m.snapshot(m.revision(1, 1), m.state(node, gpus=[m.gpu(node, 0)])))
        stream.wait_for_revision(1, 1)
        call = cluster.WatchGpus(cluster_pb2.WatchGpusRequest(filter=cluster_pb2.GpuFilter(node_name=node)))
        follower = threading.Thread(target=follow, args=(call,), daemon=True)
        follower.start()
        until = time.monotonic() + seconds
        number = 1
        while time.monotonic() < until:
            value = 0.5 * number
            delta = node_pb2.NodeDelta(gpus=[m.gpu(node, 0, available_tflops=value)])
            sent = time.monotonic()
            stream.send(m.delta(m.revision(1, number), m.revision(1, number + 1), delta))
            number += 1
            with changed:
                if not changed.wait_for(lambda wanted=value: wanted in seen, timeout=_PATIENCE_SECONDS):  # type: ignore[misc]
                    raise RuntimeError(f"a change was not seen within {_PATIENCE_SECONDS:g} s")
                found.append(seen[value] - sent)
            time.sleep(1 / PROBES_PER_SECOND)
        call.cancel()
        follower.join()
    return found
