"""kill -9 of the aggregator and of real daemons on simulated machines, at random: afterwards every object equals its
node's truth, and every event of the nodes' journals is there once.

CLUSTER_CHAOS_SECONDS sets how long; five minutes by default.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from hypervisor.v1 import cluster_pb2, node_pb2
from tests.daemon_process import DaemonProcess
from tests.fleet.process import AggregatorProcess, all_gpus, wait_until
from tests.integration.conftest import make_daemon
from tests.integration.node import calls

__all__ = ["make_daemon"]  # a fixture

SECONDS = float(os.environ.get("CLUSTER_CHAOS_SECONDS", "300"))
SETTLE_SECONDS = 120.0
MIB = 1 << 20
Truth = dict[str, tuple[float, int, tuple[str, ...]]]


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(tmp_path, heartbeat_seconds=0.5)
    process.start()
    yield process
    process.close()


class Victim:
    """A daemon that lives, changes its allocations, is killed and comes back."""

    def __init__(self, daemon: DaemonProcess, chance: random.Random) -> None:
        self.daemon = daemon
        self.kills = self.changes = 0
        self._chance = chance
        self._number = 0

    def live(self, until: float) -> None:
        while time.monotonic() < until:
            end = min(until, time.monotonic() + self._chance.uniform(1.0, 8.0))
            while time.monotonic() < end:
                self._change()
            self.daemon.kill()
            self.kills += 1
            self.daemon.start().wait_ready()

    def _change(self) -> None:
        held = [allocation.spec.allocation_id for allocation in calls.list_allocations(self.daemon)]
        if held and self._chance.random() < 0.5:
            calls.release(self.daemon, self._chance.choice(held))
        else:
            self._number += 1
            gpu = str(self._chance.randrange(8))
            name = f"job-{self._number}"
            try:
                calls.allocate(self.daemon, name, vram_bytes=2048 * MIB, percent="5", gpu=gpu)
            except calls.Refused:
                return  # the card is full
        self.changes += 1

    def truth(self) -> Truth:
        return {gpu.uuid: seen(gpu) for gpu in calls.list_gpus(self.daemon)}

    def journal(self) -> list[tuple[str, int, int]]:
        found: list[tuple[str, int, int]] = []
        with calls.stub(self.daemon) as node:
            token = ""
            while True:
                request = node_pb2.ListEventsRequest(page=node_pb2.Page(size=1000, token=token))
                answer = node.ListEvents(request, timeout=calls.SECONDS)
                found += [(event.node_uid, event.epoch, event.sequence) for event in answer.events]
                token = answer.next_page_token
                if not token:
                    return sorted(found)


def seen(gpu) -> tuple[float, int, tuple[str, ...]]:
    capacity = gpu.capacity
    return capacity.available_tflops.value, capacity.available_vram.bytes, tuple(sorted(gpu.allocation_ids))


def live_and_die(victims: list[Victim], aggregator: AggregatorProcess, chance: random.Random) -> int:
    """All of it, for as long as was asked for; returns how often the aggregator was killed."""
    until = time.monotonic() + SECONDS
    failures: list[BaseException] = []

    def live(victim: Victim) -> None:
        try:
            victim.live(until)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    threads = [threading.Thread(target=live, args=(victim,)) for victim in victims]
    for thread in threads:
        thread.start()
    killed = 0
    never = threading.Event()
    while any(thread.is_alive() for thread in threads):
        never.wait(chance.uniform(0.5, 6.0))  # the time between two deaths
        aggregator.kill()
        killed += 1
        never.wait(chance.choice([0.0, 0.0, 2.0]))  # sometimes it stays away for a while
        aggregator.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return killed


def told(aggregator: AggregatorProcess) -> list[tuple[str, int, int]]:
    """Every event that the aggregator keeps."""
    request = cluster_pb2.ClusterListEventsRequest(page=node_pb2.Page(size=1000))
    found: list[tuple[str, int, int]] = []
    with aggregator.cluster(aggregator.unix) as cluster:
        while True:
            answer = cluster.ListEvents(request, timeout=calls.SECONDS)
            found += [(event.node_uid, event.epoch, event.sequence) for event in answer.events]
            request.page.token = answer.next_page_token
            if not answer.next_page_token:
                return found


def differing(victim: Victim, aggregator: AggregatorProcess) -> tuple[set[tuple[str, int, int]], ...]:
    """What only the node has, what only the aggregator has, and what is there twice."""
    journal = set(victim.journal())
    uid = next(iter(journal))[0]
    kept = [event for event in told(aggregator) if event[0] == uid]
    return journal - set(kept), set(kept) - journal, {event for event in kept if kept.count(event) > 1}


@pytest.mark.slow
def test_a_cluster_that_is_killed_again_and_again(
    aggregator: AggregatorProcess, make_daemon: Callable[..., DaemonProcess]
) -> None:
    victims = [
        Victim(
            make_daemon(
                *("--node-name", f"node-{number}", "--report-to", aggregator.unix),
                *("--journal-events", "1000000"),  # all of them, however many there are on a fast machine
            )
            .start()
            .wait_ready(),
            random.Random(f"victim-{number}"),
        )
        for number in range(2)
    ]
    assert live_and_die(victims, aggregator, random.Random(7)) > 1
    assert all(victim.kills and victim.changes for victim in victims)

    def shown() -> Truth:
        with aggregator.cluster(aggregator.unix) as cluster:
            return {found.gpu.uuid: seen(found.gpu) for found in all_gpus(cluster).values()}

    def truth() -> Truth:
        return {uuid: what for victim in victims for uuid, what in victim.truth().items()}

    wait_until(lambda: shown() == truth(), "every object", seconds=SETTLE_SECONDS)
    for victim in victims:
        try:
            wait_until(partial(caught_up, victim, aggregator), "every event, once", seconds=SETTLE_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}: {differing(victim, aggregator)}") from None
    assert "Traceback" not in aggregator.log.read_text()


def caught_up(victim: Victim, aggregator: AggregatorProcess) -> bool:
    return not any(differing(victim, aggregator))
