"""A thousand watchers of all GPUs, while nodes report: how soon each of them has a change.

AGGREGATOR_WATCHERS=N sets their number; the watchers share one core with the load.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

import grpc

from hypervisor.v1 import cluster_pb2, cluster_pb2_grpc, node_pb2
from tests.bench import aggregator_fleet as fleet
from tests.bench.figure import Figure
from tests.fleet import messages as m
from tests.fleet.process import AggregatorProcess
from tests.fleet.stream import ReportStream

WATCHERS = int(os.environ.get("AGGREGATOR_WATCHERS", "1000"))
CHANGES = 20
_CONNECTIONS = 20
_PATIENCE_SECONDS = 60.0


class Watchers:
    """All of them, on one loop: when each has seen which value."""

    def __init__(self) -> None:
        self.begun = 0
        self.seen: dict[float, list[float]] = {}
        self.news = asyncio.Event()

    async def follow(self, stub: cluster_pb2_grpc.ClusterServiceStub) -> None:
        request = cluster_pb2.WatchGpusRequest(filter=cluster_pb2.GpuFilter(node_name="probe"))
        request.fields.paths.append("gpu.capacity.available_tflops.value")
        first = True
        async for message in stub.WatchGpus(request):
            at = time.monotonic()
            self.begun += first
            first = False
            for gpu in message.gpus:
                self.seen.setdefault(gpu.gpu.capacity.available_tflops.value, []).append(at)
            self.news.set()

    async def until(self, condition) -> None:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not condition():
                self.news.clear()
                await self.news.wait()


async def _delays(aggregator: AggregatorProcess, stream: ReportStream) -> list[float]:
    watchers = Watchers()
    options = (("grpc.use_local_subchannel_pool", 1),)
    channels = [grpc.aio.insecure_channel(aggregator.address, options=options) for _ in range(_CONNECTIONS)]
    stubs = [cluster_pb2_grpc.ClusterServiceStub(channel) for channel in channels]
    tasks = [asyncio.create_task(watchers.follow(stubs[number % _CONNECTIONS])) for number in range(WATCHERS)]
    await watchers.until(lambda: watchers.begun == WATCHERS)
    found: list[float] = []
    for number in range(1, CHANGES + 1):
        value = number / 2
        delta = node_pb2.NodeDelta(gpus=[m.gpu("probe", 0, available_tflops=value)])
        sent = time.monotonic()
        stream.send(m.delta(m.revision(1, number), m.revision(1, number + 1), delta))
        await watchers.until(lambda wanted=value: len(watchers.seen.get(wanted, ())) == WATCHERS)
        found += [at - sent for at in watchers.seen[value]]
        await asyncio.sleep(0.2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for channel in channels:
        await channel.close()
    return found


def measure() -> list[Figure]:
    nodes = min(fleet.NODES, 2_000)
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        with (
            fleet.aggregator_on_a_core(directory, nodes) as aggregator,
            fleet.load_on_a_core(directory, aggregator, nodes, open_seconds=nodes / 400) as load,
            ReportStream(aggregator.unix) as stream,
        ):
            load.wait_until_acknowledged(after=fleet.now(), seconds=120)
            stream.send(m.hello("probe"), m.snapshot(m.revision(1, 1), m.state("probe", gpus=[m.gpu("probe", 0)])))
            stream.wait_for_revision(1, 1)
            # This process follows on the load's core, for the aggregator has its own.
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {int(fleet.LOAD_CORE)})
            try:
                found = asyncio.run(_delays(aggregator, stream))
            finally:
                os.sched_setaffinity(0, before)
    late = statistics.quantiles(found, n=100)[98]
    return [
        Figure(
            name="aggregator: a change at each of the watchers, p99",
            value=late * 1e3,
            unit="ms",
            target="<= 500 ms",
            holds=late <= 0.5,
            least=min(found) * 1e3,
            most=max(found) * 1e3,
            device="none",
            note=f"{WATCHERS} watchers in Python on the load's core, {CHANGES} changes, {nodes} nodes report",
        )
    ]
