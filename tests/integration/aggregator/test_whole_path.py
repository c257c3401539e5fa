"""The real daemon on a simulated machine reports to a real aggregator: driver -> node -> store -> query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hypervisor.v1 import cluster_pb2, node_pb2
from tests.fleet.process import DEADLINE_SECONDS, AggregatorProcess, all_gpus, wait_until
from tests.integration.node import calls

MIB = 1 << 20


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(tmp_path, heartbeat_seconds=0.5)
    process.start()
    yield process
    process.close()


def reasons(aggregator: AggregatorProcess) -> list[str]:
    with aggregator.cluster() as cluster:
        return [event.reason for event in cluster.ListEvents(cluster_pb2.ClusterListEventsRequest()).events]


def test_every_object_is_what_the_node_itself_says(aggregator: AggregatorProcess, make_daemon) -> None:
    daemon = make_daemon("--report-to", aggregator.unix).start().wait_ready()

    def shown() -> dict[str, tuple[str, float, int, list[str]]]:
        with aggregator.cluster() as cluster:
            return {
                gpu.gpu.uuid: (
                    gpu.phase,
                    gpu.gpu.capacity.available_tflops.value,
                    gpu.gpu.capacity.available_vram.bytes,
                    list(gpu.gpu.allocation_ids),
                )
                for gpu in all_gpus(cluster).values()
            }

    def truth() -> dict[str, tuple[str, float, int, list[str]]]:
        return {
            gpu.uuid: (
                "Running",
                gpu.capacity.available_tflops.value,
                gpu.capacity.available_vram.bytes,
                list(gpu.allocation_ids),
            )
            for gpu in calls.list_gpus(daemon)
        }

    wait_until(lambda: len(shown()) == 8 and shown() == truth(), "the inventory")
    calls.allocate(daemon, "job", vram_bytes=2048 * MIB, percent="25", gpu="3")
    wait_until(lambda: any(gpu[3] == ["job"] for gpu in shown().values()) and shown() == truth(), "the allocation")
    # The aggregator dies, the node goes on and is killed too; both come back.
    aggregator.kill()
    calls.allocate(daemon, "second", vram_bytes=1024 * MIB, percent="10", gpu="4")
    daemon.kill()
    aggregator.start()
    daemon.start().wait_ready()
    wait_until(lambda: any(gpu[3] == ["second"] for gpu in shown().values()) and shown() == truth(), "all of it")
    wait_until(lambda: reasons(aggregator).count("HypervisorStarted") == 2, "the events of both starts")


def test_an_aggregator_that_is_not_there_is_a_condition_and_no_obstacle(tmp_path: Path, make_daemon) -> None:
    aggregator = AggregatorProcess(tmp_path)
    daemon = make_daemon("--report-to", aggregator.unix).start().wait_ready()

    def conditions() -> set[str]:
        with calls.stub(daemon) as node:
            found = node.GetNode(node_pb2.GetNodeRequest(), timeout=DEADLINE_SECONDS).node.conditions
            return {condition.type for condition in found if condition.status == "True"}

    wait_until(lambda: conditions() == {"Ready", "AggregatorUnreachable"}, "the condition")
    calls.allocate(daemon, "job", vram_bytes=2048 * MIB, percent="25")
    aggregator.start()
    try:
        wait_until(lambda: conditions() == {"Ready"}, "the end of the condition")
    finally:
        aggregator.close()


def test_tcp_without_insecure_is_refused(make_daemon) -> None:
    daemon = make_daemon("--report-to", "127.0.0.1:1").start()
    assert daemon.process.wait(30) == 1
    last = daemon.log_path.read_text().splitlines()[-1]
    assert "report_to" in last
    assert "--insecure" in last
