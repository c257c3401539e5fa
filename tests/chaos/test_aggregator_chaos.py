"""kill -9 of the aggregator and of reporters at random, while everything changes: afterwards every object equals its
node's truth, and every event is there once."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
import trio

from hypervisor.node.reporter import Reporter, report_address
from hypervisor.rpc import open_asyncio_host
from hypervisor.rpc.report_way import ReportWay
from tests.fleet.node import FleetNode
from tests.fleet.process import AggregatorProcess, all_events, all_gpus, wait_until


def shown(aggregator: AggregatorProcess) -> dict[str, float | None]:
    with aggregator.cluster() as cluster:
        return {name: gpu.gpu.capacity.available_tflops.value for name, gpu in all_gpus(cluster).items()}


async def live(node: FleetNode, aggregator: AggregatorProcess, chance: random.Random, lives: int) -> None:
    """A node that dies and comes back a few times, and changes all the while."""
    address = report_address(aggregator.unix, insecure=False)
    for life in range(lives):
        if life:
            node.restart()
        # A host of its own dies with the reporter, as a process would: without a word.
        async with open_asyncio_host() as host, trio.open_nursery() as nursery:
            nursery.start_soon(Reporter(ReportWay(address), state=node, journal=node.journal, host=host).run)
            until = trio.current_time() + chance.uniform(0.5, 2.0)
            while trio.current_time() < until:
                node.change_something(chance)
                await trio.sleep(chance.uniform(0.0, 0.02))
            nursery.cancel_scope.cancel()


async def settle(nodes: list[FleetNode], aggregator: AggregatorProcess) -> None:
    """Reporters for all, until the aggregator has caught up."""
    expected = {name: value for node in nodes for name, value in node.expected().items()}
    emitted = sum(node.emitted for node in nodes)

    def events() -> int:
        with aggregator.cluster() as cluster:
            return len(all_events(cluster))

    address = report_address(aggregator.unix, insecure=False)
    async with open_asyncio_host() as host, trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(Reporter(ReportWay(address), state=node, journal=node.journal, host=host).run)
        await trio.to_thread.run_sync(partial(wait_until, lambda: shown(aggregator) == expected, "every object"))
        await trio.to_thread.run_sync(partial(wait_until, lambda: events() >= emitted, "every event"))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", [1, 2])
def test_after_any_killing_all_is_true_and_told_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    aggregator = AggregatorProcess(tmp_path, heartbeat_seconds=0.3)
    nodes = [FleetNode(f"node-{number}", tmp_path / f"node-{number}", gpu_count=4) for number in range(3)]

    async def kill_aggregator(done: trio.Event) -> None:
        while not done.is_set():
            with trio.move_on_after(chance.uniform(0.2, 1.2)):
                await done.wait()
            aggregator.kill()
            # Sometimes it stays away for a while.
            await trio.sleep(chance.choice([0.0, 0.0, 0.7]))
            await trio.to_thread.run_sync(aggregator.start)

    async def main() -> None:
        done = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_aggregator, done)
            async with trio.open_nursery() as living:
                for node in nodes:
                    living.start_soon(live, node, aggregator, random.Random(f"{seed}-{node.name}"), 3)
            done.set()
        await settle(nodes, aggregator)

    aggregator.start()
    try:
        trio.run(main)
        with aggregator.cluster() as cluster:
            told = all_events(cluster)
        assert len(told) == len(set(told))
        for node in nodes:
            mine = sorted((epoch, sequence) for uid, epoch, sequence in told if uid == node.identity.uid)
            assert [sequence for _, sequence in mine] == list(range(1, node.emitted + 1))
            assert mine == [(event.epoch, event.sequence) for event in node.journal.read((0, 0), 100_000)]
        assert "Traceback" not in aggregator.log.read_text()
    finally:
        aggregator.close()
