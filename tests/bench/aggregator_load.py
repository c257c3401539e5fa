"""Load for the aggregator's bench: python -m tests.bench.aggregator_load ADDRESS NODES SECONDS HEARTBEAT.

Each node has a connection and a stream of its own. Every heartbeat carries new readings of all its GPUs, which is what
an honest node sends at most. Prints one JSON line: seconds until all snapshots were acknowledged, and messages sent.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
from dataclasses import dataclass, field

import grpc

from hypervisor.v1 import node_pb2, report_pb2, report_pb2_grpc
from tests.fleet import messages as m

# Opening is spread a little, as the jitter of real nodes does.
OPEN_SECONDS_PER_NODE = 0.001


@dataclass
class Load:
    address: str
    nodes: int
    heartbeat: float
    acknowledged: int = 0
    sent: int = 0
    failed: int = 0
    all_there: asyncio.Event = field(default_factory=asyncio.Event)


async def node(load: Load, name: str) -> None:
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(load.address, options=options) as channel:
        call = report_pb2_grpc.ReportServiceStub(channel).Report()
        await call.write(m.hello(name))
        await call.write(m.snapshot(m.revision(1, 1), m.state(name)))
        reader = asyncio.ensure_future(read(load, call))
        number = 1
        changes = node_pb2.NodeDelta(gpus=[m.gpu(name, index) for index in range(8)])
        await asyncio.sleep(random.uniform(0, load.heartbeat))
        try:
            while True:
                for gpu in changes.gpus:
                    gpu.readings.temperature_celsius.value = 40 + number % 40
                await call.write(m.delta(m.revision(1, number), m.revision(1, number + 1), changes))
                load.sent += 1
                number += 1
                await asyncio.sleep(load.heartbeat * random.uniform(0.8, 1.2))
        finally:
            reader.cancel()


async def read(
    load: Load, call: grpc.aio.StreamStreamCall[report_pb2.ReportRequest, report_pb2.ReportResponse]
) -> None:
    there = False
    while True:
        response = await call.read()
        if response is grpc.aio.EOF or response.HasField("refused") or response.HasField("resend"):
            load.failed += 1
            return
        if response.HasField("ack") and not there:
            there = True
            load.acknowledged += 1
            if load.acknowledged == load.nodes:
                load.all_there.set()


async def main(address: str, nodes: int, seconds: float, heartbeat: float) -> None:
    load = Load(address, nodes, heartbeat)
    begun = asyncio.get_running_loop().time()
    tasks = []
    for number in range(nodes):
        tasks.append(asyncio.ensure_future(node(load, f"load-{number}")))
        await asyncio.sleep(OPEN_SECONDS_PER_NODE)
    await asyncio.wait_for(load.all_there.wait(), 120)
    opened = asyncio.get_running_loop().time() - begun
    print(json.dumps({"opened_seconds": opened}), flush=True)
    sent = load.sent
    await asyncio.sleep(seconds)
    print(json.dumps({"messages": load.sent - sent, "failed": load.failed}), flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
