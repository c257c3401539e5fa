"""The node's reporter against a real aggregator: it reports, catches up, and is in nobody's way."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from hypervisor.node.reporter import Reporter, report_address
from hypervisor.rpc import open_asyncio_host
from hypervisor.rpc.listening import ListenError
from hypervisor.rpc.report_way import ReportWay
from hypervisor.v1 import cluster_pb2
from tests.fleet import process
from tests.fleet.node import FleetNode
from tests.fleet.process import AggregatorProcess, all_events, all_gpus


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[AggregatorProcess]:
    started = AggregatorProcess(tmp_path, heartbeat_seconds=0.3)
    started.start()
    yield started
    started.close()


@asynccontextmanager
async def reporting(aggregator: AggregatorProcess, *nodes: FleetNode) -> AsyncIterator[list[Reporter]]:
    async with open_asyncio_host() as host, trio.open_nursery() as nursery:
        address = report_address(aggregator.address, insecure=True)
        made = [Reporter(ReportWay(address), state=node, journal=node.journal, host=host) for node in nodes]
        for reporter in made:
            nursery.start_soon(reporter.run)
        yield made
        nursery.cancel_scope.cancel()


async def wait_until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """In a thread, since the condition asks over gRPC; the reporter goes on meanwhile."""
    await trio.to_thread.run_sync(partial(process.wait_until, condition, what, seconds=seconds))


def shown(aggregator: AggregatorProcess) -> dict[str, float]:
    with aggregator.cluster() as cluster:
        return {name: gpu.gpu.capacity.available_tflops.value for name, gpu in all_gpus(cluster).items()}


def told(aggregator: AggregatorProcess) -> list[tuple[str, int, int]]:
    with aggregator.cluster() as cluster:
        return all_events(cluster)


def temperatures(aggregator: AggregatorProcess) -> set[float]:
    with aggregator.cluster() as cluster:
        return {gpu.gpu.readings.temperature_celsius.value for gpu in all_gpus(cluster).values()}


def test_states_and_events_arrive(aggregator: AggregatorProcess, tmp_path: Path) -> None:
    async def main() -> None:
        node = FleetNode("a", tmp_path / "a")
        node.emit()
        async with reporting(aggregator, node) as (reporter,):
            await wait_until(lambda: shown(aggregator) == node.expected(), "the snapshot")
            node.set_available(3, 12.5)
            node.remove_gpu(5)
            node.emit()
            await wait_until(lambda: shown(aggregator) == node.expected(), "the delta")
            node.change_readings(77.0)
            await wait_until(lambda: temperatures(aggregator) == {77.0}, "readings")
            await wait_until(lambda: told(aggregator) == [("uid-a", 1, 1), ("uid-a", 1, 2)], "events")
            await wait_until(lambda: node.journal.acknowledged == (1, 2), "the acknowledgement")
            statistics = reporter.statistics()
            assert (statistics.connected, statistics.snapshots_total, statistics.failing) == (True, 1, "")
            before = reporter.statistics().heartbeats_total
            await wait_until(lambda: reporter.statistics().heartbeats_total > before, "a heartbeat")

    trio.run(main)


def test_readings_come_no_oftener_than_heartbeats(aggregator: AggregatorProcess, tmp_path: Path) -> None:
    async def main() -> None:
        node = FleetNode("a", tmp_path / "a")
        async with reporting(aggregator, node) as (reporter,):
            await wait_until(lambda: reporter.statistics().snapshots_total, "the snapshot")
            begun = trio.current_time()
            for number in range(100):
                node.change_readings(float(number))
                await trio.sleep(0.01)
            took = trio.current_time() - begun
            # A heartbeat comes after 0.24 s at the earliest.
            assert reporter.statistics().deltas_total <= took / 0.24 + 1
            await wait_until(lambda: temperatures(aggregator) == {99.0}, "the last readings")

    trio.run(main)


def test_a_missing_card_with_work_on_it_is_kept(aggregator: AggregatorProcess, tmp_path: Path) -> None:
    def phase() -> str:
        with aggregator.cluster() as cluster:
            found = all_gpus(cluster).get("gpu-a-2")
            return found.phase if found else "none"

    async def main() -> None:
        node = FleetNode("a", tmp_path / "a")
        node.allocate("job", 2)
        async with reporting(aggregator, node):
            await wait_until(lambda: phase() == "Running", "the snapshot")
            node.remove_gpu(2)
            await wait_until(lambda: phase() == "Unknown", "missing")
            node.release("job")
            await wait_until(lambda: phase() == "none", "gone")

    trio.run(main)


def test_an_outage_costs_nothing_and_all_is_caught_up(aggregator: AggregatorProcess, tmp_path: Path) -> None:
    async def main() -> None:
        node = FleetNode("a", tmp_path / "a")
        async with reporting(aggregator, node) as (reporter,):
            await wait_until(lambda: shown(aggregator) == node.expected(), "the snapshot")
            aggregator.kill()
            for number in range(300):
                node.set_available(number % 8, float(number))
                node.emit()
            await wait_until(lambda: reporter.failing, "the failure to be told")
            assert aggregator.address in reporter.failing
            aggregator.start()
            await wait_until(lambda: shown(aggregator) == node.expected(), "the latest state")
            await wait_until(lambda: len(told(aggregator)) >= 300, "all events")
            assert told(aggregator) == [("uid-a", 1, number) for number in range(1, 301)]
            await wait_until(lambda: not reporter.failing, "no failure any more")

    trio.run(main)


@pytest.mark.slow
def test_an_aggregator_that_hangs_is_told_within_half_a_minute(aggregator: AggregatorProcess, tmp_path: Path) -> None:
    """Its sockets stay open and take what is written; nothing but an unanswered ping tells that nobody is there."""

    async def main() -> None:
        node = FleetNode("a", tmp_path / "a")
        async with reporting(aggregator, node) as (reporter,):
            await wait_until(lambda: reporter.statistics().connected, "the stream")
            os.kill(aggregator.pid, signal.SIGSTOP)
            try:
                await wait_until(lambda: reporter.failing, "the failure to be told", seconds=30)
            finally:
                os.kill(aggregator.pid, signal.SIGCONT)
            node.set_available(0, 1.0)
            await wait_until(lambda: shown(aggregator) == node.expected(), "the latest state")
            await wait_until(lambda: not reporter.failing, "no failure any more")

    trio.run(main)


def test_a_restarted_node_goes_on_with_its_events(aggregator: AggregatorProcess, tmp_path: Path) -> None:
    async def main() -> None:
        node = FleetNode("a", tmp_path / "a")
        for _ in range(3):
            node.emit()
            async with reporting(aggregator, node):
                await wait_until(lambda: len(told(aggregator)) == node.emitted, "the events")
                await wait_until(lambda: shown(aggregator) == node.expected(), "the state")
            node.restart()
        assert told(aggregator) == [("uid-a", 1, 1), ("uid-a", 2, 2), ("uid-a", 3, 3)]

    trio.run(main)


def test_two_machines_under_one_uid_are_told(aggregator: AggregatorProcess, tmp_path: Path) -> None:
    async def main() -> None:
        first, second = FleetNode("a", tmp_path / "a"), FleetNode("a", tmp_path / "b")
        async with reporting(aggregator, first, second) as reporters:
            await wait_until(lambda: all(r.statistics().failures_total for r in reporters), "both to be told")
            await wait_until(lambda: any("UID" in r.failing for r in reporters), "the reason")
            # They take turns; the state is one of theirs and the aggregator lives.
            await wait_until(lambda: shown(aggregator) == first.expected(), "a state")

    trio.run(main)


def test_a_refused_simulated_node_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        node = FleetNode("a", tmp_path / "a")
        aggregator = AggregatorProcess(tmp_path)
        aggregator.flags_without("--allow-simulated")
        aggregator.start()
        try:
            async with reporting(aggregator, node) as (reporter,):
                await wait_until(lambda: "--allow-simulated" in reporter.failing, "the reason")
        finally:
            aggregator.close()

    trio.run(main)


def test_nobody_there_is_no_harm_and_the_node_can_stop(tmp_path: Path) -> None:
    async def main() -> None:
        node = FleetNode("a", tmp_path / "a")
        aggregator = AggregatorProcess(tmp_path)
        async with reporting(aggregator, node) as (reporter,):
            await wait_until(lambda: reporter.failing, "the failure")
            begun = trio.current_time()
        assert trio.current_time() - begun < 2

    trio.run(main)


def test_tcp_is_said_aloud() -> None:
    with pytest.raises(ListenError, match=r"report_to: .*--insecure"):
        report_address("127.0.0.1:1", insecure=False)
    with pytest.raises(ListenError, match=r"report_to: .*unix:PATH"):
        report_address("nonsense", insecure=True)
    assert str(report_address("unix:/run/a.sock", insecure=False)) == "unix:/run/a.sock"


def test_liveness_over_a_reporter(aggregator: AggregatorProcess, tmp_path: Path) -> None:
    def liveness() -> int:
        with aggregator.cluster() as cluster:
            nodes = cluster.ListNodes(cluster_pb2.ListNodesRequest()).nodes
            return nodes[0].liveness if nodes else 0

    async def main() -> None:
        node = FleetNode("a", tmp_path / "a")
        async with reporting(aggregator, node):
            await wait_until(lambda: liveness() == cluster_pb2.LIVENESS_FRESH, "fresh")
            # Longer than a node may be silent: heartbeats keep it fresh.
            begun = trio.current_time()
            while trio.current_time() - begun < 1.5:
                assert await trio.to_thread.run_sync(liveness) == cluster_pb2.LIVENESS_FRESH
                await trio.sleep(0.1)
        await wait_until(lambda: liveness() == cluster_pb2.LIVENESS_LOST, "lost")
        assert shown(aggregator) == node.expected()

    trio.run(main)
