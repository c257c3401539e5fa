"""Watches: resume, reset, tombstones, latest-wins, heartbeats, events, and the end of them all."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import trio

from hypervisor.model import Refusal
from hypervisor.rpc.node_feed import NodeFeed
from hypervisor.v1 import node_pb2 as pb
from hypervisor.v1 import types_pb2 as types
from tests import builders
from tests.integration.rpc.conftest import in_thread, run, serving, stub_of
from tests.integration.rpc.fakes import FakeJournal
from tests.integration.rpc.test_queries import DEADLINE, refusal


class Watch:
    """A watcher in a thread of gRPC's own: next() waits for one message with a deadline."""

    def __init__(self, call) -> None:
        self._call = call

    async def next(self):
        return await in_thread(next, self._call)


@contextmanager
def watching(address: str, *, after: tuple[int, int] | None = None):
    resume = types.Revision(epoch=after[0], revision=after[1]) if after else None
    with stub_of(address) as stub:
        call = stub.WatchNode(pb.WatchNodeRequest(resume_after=resume), timeout=DEADLINE)
        try:
            yield Watch(call)
        finally:
            call.cancel()


@contextmanager
def watching_events(address: str, **request):
    with stub_of(address) as stub:
        call = stub.WatchEvents(pb.WatchEventsRequest(**request), timeout=DEADLINE)
        try:
            yield Watch(call)
        finally:
            call.cancel()


def test_reset_then_deltas_with_tombstones(settings) -> None:
    async def body() -> None:
        async with serving(settings, snapshot=builders.make_snapshot(allocations=2)) as node:
            with watching(node.read) as watch:
                first = await watch.next()
                assert first.HasField("reset")
                assert (first.revision.epoch, first.revision.revision) == (1, 1)
                assert len(first.reset.gpus) == 8
                assert [a.spec.allocation_id for a in first.reset.allocations] == ["pod-0", "pod-1"]
                node.server.publish(builders.make_snapshot(allocations=1, number=2))
                second = await watch.next()
                assert list(second.delta.removed_allocation_ids) == ["pod-1"]
                assert list(second.delta.gpus) == []
                changed = builders.make_gpu(3, revision=builders.revision(3))
                gpus = tuple(changed if index == 3 else builders.make_gpu(index) for index in range(8))
                node.server.publish(builders.make_snapshot(allocations=1, number=3, gpus=gpus))
                third = await watch.next()
                assert [gpu.uuid for gpu in third.delta.gpus] == [builders.uuid(3)]
                assert list(third.delta.removed_allocation_ids) == []
                assert not third.delta.HasField("node")

    run(body)


def test_resume_gets_what_was_missed(settings) -> None:
    async def body() -> None:
        async with serving(settings, snapshot=builders.make_snapshot(allocations=3)) as node:
            with watching(node.read) as watch:
                await watch.next()
                # pod-1 and pod-2 go, and pod-1 comes back; each state is seen before the next, so that none is skipped.
                for number, allocations in ((2, 2), (3, 1), (4, 2)):
                    node.server.publish(builders.make_snapshot(allocations=allocations, number=number))
                    assert (await watch.next()).revision.revision == number
            with watching(node.read, after=(1, 1)) as watch:
                message = await watch.next()
                assert message.revision.revision == 4
                assert list(message.delta.removed_allocation_ids) == ["pod-2"]
                assert [a.spec.allocation_id for a in message.delta.allocations] == ["pod-1"]
            with watching(node.read, after=(1, 4)) as watch:
                assert (await watch.next()).HasField("heartbeat")  # accepted, and nothing was missed

    run(body)


@pytest.mark.parametrize("after", [(0, 0), (2, 1), (1, 99), (2**64 - 1, 2**64 - 1)])
def test_what_cannot_be_resumed_is_reset(settings, after: tuple[int, int]) -> None:
    async def body() -> None:
        async with serving(settings) as node:
            with watching(node.read, after=after) as watch:
                message = await watch.next()
                assert message.HasField("reset")
                assert message.revision.revision == 1
            assert node.server.statistics().node_feed.resets == 1

    run(body)


def test_heartbeats_come_though_states_without_a_change_do(settings) -> None:
    async def body() -> None:
        async with serving(settings, heartbeat_seconds=0.2) as node:
            with watching(node.read) as watch:
                assert (await watch.next()).HasField("reset")
                begun = time.monotonic()
                async with trio.open_nursery() as nursery:

                    async def keep_publishing() -> None:
                        for number in range(2, 1000):
                            node.server.publish(builders.make_snapshot(allocations=3, number=number))
                            await trio.sleep(0.02)

                    nursery.start_soon(keep_publishing)
                    message = await watch.next()
                    nursery.cancel_scope.cancel()
                assert message.HasField("heartbeat")
                assert message.revision.revision > 1
                assert time.monotonic() - begun >= 0.15

    run(body)


def test_a_slow_watcher_skips_states_and_misses_no_deletion(settings) -> None:
    """The client reads nothing while thousands of states go by, more than any buffer on the way holds."""
    last = 1500

    def state(number: int):
        # Allocation temporary-N lives in state N only; kept-N from state N on, for a few.
        names = [f"kept-{kept}" for kept in range(min(number, 20))] + [f"temporary-{number}"]
        base = builders.make_snapshot(number=number)
        allocations = tuple(
            builders.make_allocation(name, revision=builders.revision(number if name.startswith("t") else 1))
            for name in names
        )
        return replace(base, allocations=allocations)

    async def body() -> None:
        async with serving(settings, snapshot=state(1)) as node:
            with watching(node.read) as watch:
                for number in range(2, last + 1):
                    node.server.publish(state(number))
                    if number % 50 == 0:
                        await trio.sleep(0.001)
                known: dict[str, int] = {}
                messages = 0
                while True:
                    message = await watch.next()
                    messages += 1
                    if message.HasField("reset"):
                        known = {a.spec.allocation_id: 1 for a in message.reset.allocations}
                    for allocation in message.delta.allocations:
                        known[allocation.spec.allocation_id] = 1
                    for removed in message.delta.removed_allocation_ids:
                        known.pop(removed, None)
                    if message.revision.revision == last:
                        break
                expected = {allocation.spec.allocation_id for allocation in state(last).allocations}
                assert set(known) == expected
                assert messages < last

    run(body)


def test_events_from_the_journal_then_new_ones(settings) -> None:
    async def body() -> None:
        journal = FakeJournal([builders.make_event(sequence) for sequence in range(1, 301)])
        async with serving(settings, journal=journal) as node:
            with watching_events(node.read, after_epoch=1, after_sequence=298) as watch:
                assert [(await watch.next()).event.sequence for _ in range(2)] == [299, 300]
                journal.emit(builders.make_event(301))
                message = await watch.next()
                assert message.event.sequence == 301
                assert message.event.message == "pod-301 got 40% and 8Gi of GPU 0"
                assert message.event.first_at.seconds == int(builders.CREATED_AT) + 301
            with watching_events(node.read) as watch:
                assert [(await watch.next()).event.sequence for _ in range(301)] == list(range(1, 302))

    run(body)


def test_only_new_events_of_one_object(settings) -> None:
    async def body() -> None:
        journal = FakeJournal([builders.make_event(sequence) for sequence in range(1, 301)])
        async with serving(settings, journal=journal) as node:
            about = types.ObjectReference(kind="Allocation", name="pod-302")
            with watching_events(node.read, only_new=True, regarding=about) as watch:
                while node.server.statistics().event_feed.watchers < 1:  # noqa: ASYNC110 - the count has no event
                    await trio.sleep(0.005)
                for sequence in (301, 302, 303):
                    journal.emit(builders.make_event(sequence))
                assert (await watch.next()).event.sequence == 302

    run(body)


def test_lost_events_are_said(settings) -> None:
    async def body() -> None:
        journal = FakeJournal(kept=10)
        for sequence in range(1, 31):
            journal.emit(builders.make_event(sequence))
        async with serving(settings, journal=journal) as node:
            with watching_events(node.read, after_epoch=1, after_sequence=5) as watch:
                message = await watch.next()
                assert (message.event.sequence, message.lost_before) == (21, 15)
                assert (await watch.next()).lost_before == 0
            with watching_events(node.read) as watch:
                assert (await watch.next()).lost_before == 0  # from the oldest that is kept: nothing was asked for

    run(body)


def test_watchers_above_the_bound_are_refused(settings) -> None:
    async def body() -> None:
        async def fill() -> list[str]:
            feed = NodeFeed(builders.make_snapshot(), max_watchers=2)
            open_watches = [feed.watch(None) for _ in range(3)]
            outcomes = []
            for watch in open_watches:
                try:
                    outcomes.append((await anext(watch)).WhichOneof("content"))
                except Refusal as error:
                    outcomes.append(error.reason.value)
            for watch in open_watches:
                await watch.aclose()
            assert feed.statistics().watchers == 0
            assert feed.statistics().refused == 1
            return outcomes

        result = await in_thread(lambda: asyncio.run(fill()))
        assert result == ["reset", "reset", "TOO_MANY_WATCHERS"]

    run(body)


def test_bad_event_types_are_refused(settings) -> None:
    async def body() -> None:
        async with serving(settings) as node:
            with watching_events(node.read, type=77) as watch:
                with pytest.raises(grpc.RpcError) as caught:
                    await watch.next()
                assert refusal(caught.value)[1].field == "type"

    run(body)


SERVER = """
import sys, time, trio
from hypervisor.config import Settings
from hypervisor.rpc import open_node_server
from tests import builders
from tests.integration.rpc.fakes import FakeCommands, FakeJournal

async def main(directory):
    settings = Settings(listen=(f"unix:{directory}/read.sock",), admin_listen=f"unix:{directory}/admin.sock")
    async with open_node_server(
        settings, snapshot=builders.make_snapshot(), commands=FakeCommands(), events=FakeJournal()
    ):
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        begun = time.monotonic()
    print(f"{time.monotonic() - begun:.3f}", flush=True)

trio.run(main, sys.argv[1])
"""


def test_a_stop_with_a_hundred_watches_is_quick_and_silent(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert server.stdin is not None
    assert server.stdout is not None
    ended: queue.Queue[grpc.StatusCode] = queue.Queue()
    assert server.stdout.readline() == "ready\n"
    with stub_of(f"unix:{tmp_path}/read.sock") as stub, stub_of(f"unix:{tmp_path}/admin.sock") as other:
        calls = [stub.WatchNode(pb.WatchNodeRequest(), timeout=60) for _ in range(50)]
        calls += [other.WatchEvents(pb.WatchEventsRequest(), timeout=60) for _ in range(50)]
        for call in calls:
            call.add_done_callback(lambda done: ended.put(done.code()))
        for call in calls[:50]:
            assert next(call).HasField("reset")
        for call in calls[50:]:
            call.initial_metadata()
        server.stdin.write("\n")
        server.stdin.flush()
        out, err = server.communicate(timeout=30)
        codes = [ended.get(timeout=10) for _ in calls]
    assert err == ""
    assert server.returncode == 0
    assert float(out) < 1.0
    assert set(codes) == {grpc.StatusCode.OK}
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_comes_together_with_the_end_is_told() -> None:
    """The daemon publishes that it stops, and then stops: both may be done before a watcher has its turn."""

    async def body() -> None:
        feed = NodeFeed(builders.make_snapshot())
        watch = feed.watch(None)
        assert (await anext(watch)).revision.revision == 1
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        feed.publish(builders.make_snapshot(allocations=1, number=2))
        feed.close()
        assert (await waiting).revision.revision == 2
        with pytest.raises(StopAsyncIteration):
            await anext(watch)
        assert [message async for message in feed.watch(None)] == []

    asyncio.run(body())
