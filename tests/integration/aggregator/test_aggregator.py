"""A real aggregator process, and report streams over real gRPC."""

from __future__ import annotations

import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from hypervisor.rpc.client import refusal_of
from hypervisor.v1 import cluster_pb2, node_pb2, report_pb2, types_pb2
from tests.fleet import messages as m
from tests.fleet.process import DEADLINE_SECONDS, PROGRAM, AggregatorProcess, all_events, all_gpus, wait_until
from tests.fleet.stream import ReportStream

R = m.revision


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(tmp_path)
    process.start()
    yield process
    process.close()


def open_stream(aggregator: AggregatorProcess, name: str) -> ReportStream:
    stream = ReportStream(aggregator.address)
    stream.send(m.hello(name))
    stream.wait_for("welcome")
    return stream


def report(aggregator: AggregatorProcess, name: str, **state: object) -> ReportStream:
    stream = open_stream(aggregator, name)
    stream.send(m.snapshot(R(1, 1), m.state(name, **state)))  # type: ignore[arg-type]
    stream.wait_for_revision(1, 1)
    return stream


def test_a_report_becomes_objects_and_events(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a") as stream, aggregator.cluster(aggregator.unix) as cluster:
        stream.send(m.events(m.event("a", 1, 1), m.event("a", 1, 2)))
        stream.wait_for_event(1, 2)
        gpus = all_gpus(cluster)
        assert sorted(gpus) == [m.name("a", index) for index in range(8)]
        shown = gpus[m.name("a", 3)]
        assert (shown.node_name, shown.phase, shown.node_liveness) == ("a", "Running", cluster_pb2.LIVENESS_FRESH)
        assert list(shown.pools) == ["default"]
        assert shown.gpu.capacity.tflops.value == 989.0
        assert shown.gpu.readings.temperature_celsius.value == 40.0
        assert shown.gpu.readings.temperature_celsius.age_seconds >= 0.5
        events = cluster.ListEvents(cluster_pb2.ClusterListEventsRequest()).events
        assert list(events) == [m.event("a", 1, 1), m.event("a", 1, 2)]
        nodes = cluster.ListNodes(cluster_pb2.ListNodesRequest()).nodes
        assert [node.node.identity.name for node in nodes] == ["a"]
        pool = cluster.ListPools(cluster_pb2.ListPoolsRequest()).pools[0]
        assert (pool.name, pool.node_count, pool.gpu_count, pool.phase) == ("default", 1, 8, "Running")
        assert (pool.tflops, pool.vram_bytes) == (8 * 989.0, 8 * 80 * m.GIB)


def test_deltas_heartbeats_and_gaps(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a") as stream, aggregator.cluster() as cluster:
        stream.send(m.delta(R(1, 1), R(1, 4), node_pb2.NodeDelta(gpus=[m.gpu("a", 0, available_tflops=1.5)])))
        stream.wait_for_revision(1, 4)
        assert all_gpus(cluster)[m.name("a", 0)].gpu.capacity.available_tflops.value == 1.5
        # The same once more, and one that is older: harmless.
        stream.send(m.delta(R(1, 1), R(1, 4), node_pb2.NodeDelta(gpus=[m.gpu("a", 0, available_tflops=1.5)])))
        stream.send(m.delta(R(1, 0), R(1, 2), node_pb2.NodeDelta(gpus=[m.gpu("a", 0, available_tflops=7)])))
        stream.send(m.snapshot(R(1, 3), m.state("a", gpus=[])))
        # One that builds on what never came: asked for everything.
        stream.send(m.delta(R(1, 6), R(1, 7), node_pb2.NodeDelta(removed_gpu_uuids=[m.uuid("a", 0)])))
        assert "1.6" in stream.wait_for("resend").resend.reason
        assert len(all_gpus(cluster)) == 8
        assert all_gpus(cluster)[m.name("a", 0)].gpu.capacity.available_tflops.value == 1.5
        stream.send(m.snapshot(R(1, 7), m.state("a", gpus=[m.gpu("a", 1)])))
        stream.wait_for_revision(1, 7)
        assert list(all_gpus(cluster)) == [m.name("a", 1)]


def test_a_heartbeat_that_is_ahead_asks_for_a_snapshot(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a") as stream:
        beat = report_pb2.ReportRequest(heartbeat=report_pb2.ReportHeartbeat(revision=R(1, 1), uptime_seconds=5))
        stream.send(beat)
        beat.heartbeat.revision.revision = 9
        stream.send(beat)
        assert "1.9" in stream.wait_for("resend").resend.reason


def test_events_are_kept_once_in_any_order(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a") as stream, aggregator.cluster() as cluster:
        stream.send(m.events(m.event("a", 1, 2), m.event("a", 1, 3)), m.events(m.event("a", 1, 1), m.event("a", 1, 3)))
        stream.send(m.events(m.event("a", 2, 4), m.event("a", 1, 2)))
        stream.wait_for_event(2, 4)
        assert sorted(all_events(cluster)) == [("uid-a", 1, 1), ("uid-a", 1, 2), ("uid-a", 1, 3), ("uid-a", 2, 4)]


def refusals(stream: ReportStream, count: int) -> list[types_pb2.Refusal]:
    def found() -> list[types_pb2.Refusal] | None:
        all_of_them = [response.refused for response in list(stream.received) if response.HasField("refused")]
        return all_of_them if len(all_of_them) >= count else None

    return wait_until(found, f"refusal {count}")


def test_what_is_refused_names_its_field_and_the_stream_lives_on(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a") as stream, report(aggregator, "b") as other, aggregator.cluster() as cluster:
        wrong = m.gpu("a", 2)
        wrong.capacity.tflops.value = float("nan")
        for number, (request, field) in enumerate(
            [
                (b"\xff\xff\xff no message", "message"),
                (b"", "content"),
                (m.snapshot(R(0, 0), m.state("a")), "snapshot.revision"),
                (m.snapshot(R(1, 5), m.state("b")), "snapshot.state.node.identity.uid"),
                (m.snapshot(R(1, 5), m.state("a", gpus=[m.gpu("a", 0), m.gpu("a", 0)])), "snapshot.state.gpus[1].uuid"),
                (
                    m.delta(R(1, 1), R(1, 2), node_pb2.NodeDelta(gpus=[m.gpu("a", 1), wrong])),
                    "delta.changes.gpus[1].capacity.tflops.value",
                ),
                (m.hello("a"), "hello"),
            ],
            start=1,
        ):
            stream.send(request)
            refused = refusals(stream, number)
            assert (refused[-1].field, refused[-1].reason) == (field, "INVALID_ARGUMENT")
        assert len(all_gpus(cluster)) == 16
        for lively, name in ((stream, "a"), (other, "b")):
            lively.send(m.delta(R(1, 1), R(1, 9), node_pb2.NodeDelta(removed_gpu_uuids=[m.uuid(name, 7)])))
            lively.wait_for_revision(1, 9)
        assert len(all_gpus(cluster)) == 14


def broken(message: report_pb2.ReportRequest, chance: random.Random) -> bytes:
    """The message with a few bytes replaced, cut out or put in."""
    raw = bytearray(message.SerializeToString())
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(raw))
        raw[at : at + chance.choice([0, 1, 1, 3])] = bytes(
            chance.randrange(256) for _ in range(chance.choice([0, 1, 2]))
        )
    return bytes(raw)


def test_a_stream_of_broken_reports_is_refused_piece_by_piece_and_all_live_on(aggregator: AggregatorProcess) -> None:
    chance = random.Random(9)
    with report(aggregator, "a") as stream, report(aggregator, "b") as other, aggregator.cluster() as cluster:
        before = {name: gpu for name, gpu in all_gpus(cluster).items() if gpu.node_name == "b"}
        whole = [
            m.snapshot(R(1, 2), m.state("a")),
            m.delta(R(1, 1), R(1, 2), node_pb2.NodeDelta(node=m.node("a"), gpus=[m.gpu("a", 1)])),
            m.events(m.event("a", 1, 1)),
            report_pb2.ReportRequest(heartbeat=report_pb2.ReportHeartbeat(revision=R(1, 1), uptime_seconds=5)),
        ]
        stream.send(*(broken(chance.choice(whole), chance) for _ in range(200)))
        # One whose answer can be told from the others', which shows that all before it were read.
        stream.send(m.hello("a"))
        stream.wait(lambda response: response.refused.field == "hello", "the refusal of the last one")
        assert stream.error is None
        refused = [response.refused for response in stream.received if response.HasField("refused")]
        assert all(each.field and each.message and each.reason == "INVALID_ARGUMENT" for each in refused)
        other.send(m.delta(R(1, 1), R(1, 2), node_pb2.NodeDelta(removed_gpu_uuids=[m.uuid("b", 7)])))
        other.wait_for_revision(1, 2)
        after = {name: gpu.gpu.capacity for name, gpu in all_gpus(cluster).items() if gpu.node_name == "b"}
        assert after.keys() == before.keys() - {m.name("b", 7)}
    assert "Traceback" not in aggregator.log.read_text()


def test_events_that_are_not_the_nodes_own_are_dropped_and_the_rest_kept(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a") as stream, aggregator.cluster() as cluster:
        foreign, odd, late = m.event("b", 1, 1), m.event("a", 1, 2), m.event("a", 1, 3)
        odd.reason = "not one word"
        late.first_at.seconds = 1 << 60
        stream.send(m.events(foreign, odd, late, m.event("a", 1, 4)))
        stream.wait_for_event(1, 4)
        assert all_events(cluster) == [("uid-a", 1, 4)]
        assert "gpuhv_aggregator_events_dropped_total 3.0" in wait_until(
            lambda: page if "dropped_total 3.0" in (page := aggregator.get("/metrics")) else None, "the metric"
        )


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (b"\xff", "hello"),
        (m.snapshot(R(1, 1), m.state("a")), "hello"),
        (report_pb2.ReportRequest(hello=report_pb2.Hello()), "hello.node.name"),
    ],
)
def test_a_stream_begins_with_a_hello(
    aggregator: AggregatorProcess, request_: report_pb2.ReportRequest | bytes, field: str
) -> None:
    with ReportStream(aggregator.address) as stream:
        stream.send(request_)
        error = stream.wait_for_error()
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        refusal = refusal_of(error)
        assert refusal is not None
        assert refusal.field == field


def test_a_new_stream_of_a_node_ends_its_old_one(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a") as old, open_stream(aggregator, "a") as new, aggregator.cluster() as cluster:
        error = old.wait_for_error()
        assert error.code() is grpc.StatusCode.ALREADY_EXISTS
        welcome = new.wait_for("welcome").welcome
        assert (welcome.held.epoch, welcome.held.revision) == (1, 1)
        new.send(m.delta(R(1, 1), R(1, 2), node_pb2.NodeDelta(removed_gpu_uuids=[m.uuid("a", 0)])))
        new.wait_for_revision(1, 2)
        assert len(all_gpus(cluster)) == 7


def test_silence_makes_a_node_late_then_lost_and_deletes_nothing(tmp_path: Path) -> None:
    aggregator = AggregatorProcess(tmp_path, heartbeat_seconds=0.1)
    aggregator.start()
    try:
        with report(aggregator, "a") as stream, aggregator.cluster() as cluster:
            stages: list[int] = []

            def stage() -> int:
                found = cluster.ListNodes(cluster_pb2.ListNodesRequest()).nodes[0].liveness
                if not stages or stages[-1] != found:
                    stages.append(found)
                return found

            wait_until(lambda: stage() == cluster_pb2.LIVENESS_LOST, "lost")
            assert stages[-2:] == [cluster_pb2.LIVENESS_LATE, cluster_pb2.LIVENESS_LOST]
            gpus = all_gpus(cluster)
            assert len(gpus) == 8
            assert {gpu.phase for gpu in gpus.values()} == {"Running"}
            assert {gpu.node_liveness for gpu in gpus.values()} == {cluster_pb2.LIVENESS_LOST}
            pool = cluster.ListPools(cluster_pb2.ListPoolsRequest()).pools[0]
            assert (pool.tflops, pool.available_tflops) == (8 * 989.0, 0.0)
            request = cluster_pb2.ClusterListGpusRequest(filter=cluster_pb2.GpuFilter(only_allocatable=True))
            assert not cluster.ListGpus(request).gpus
            stream.send(report_pb2.ReportRequest(heartbeat=report_pb2.ReportHeartbeat(revision=R(1, 1))))
            wait_until(lambda: stage() == cluster_pb2.LIVENESS_FRESH, "fresh again")
            about = types_pb2.ObjectReference(kind="Node", name="a")

            def told() -> list[str]:
                listed = cluster.ListEvents(cluster_pb2.ClusterListEventsRequest(regarding=about)).events
                return [event.reason for event in listed]

            wait_until(lambda: told()[:2] == ["NodeLost", "NodeReturned"], "the events of it")
    finally:
        aggregator.close()


def command(listen: str, store: Path) -> list[str]:
    return ["aggregator", "--listen", listen, "--store", str(store), "--http-listen", "127.0.0.1:0"]


def test_simulated_nodes_are_refused_unless_allowed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, *command(f"unix:{tmp_path}/a.sock", tmp_path / "s.db")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("gRPC on unix:")
            process.stdout.readline()
            with ReportStream(f"unix:{tmp_path}/a.sock") as stream:
                stream.send(m.hello("a"))
                error = stream.wait_for_error()
                assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
                assert "--allow-simulated" in error.details()
            # One that hides it in its hello.
            with ReportStream(f"unix:{tmp_path}/a.sock") as stream:
                stream.send(m.hello("a", simulated=False), m.snapshot(R(1, 1), m.state("a")))
                assert stream.wait_for("refused").refused.field == "simulated"
        finally:
            process.terminate()


def test_a_clock_that_is_wrong_does_no_harm(aggregator: AggregatorProcess) -> None:
    wrong = m.gpu("a", 0)
    wrong.readings.temperature_celsius.observed_at.FromSeconds(1)
    wrong.readings.power_watts.age_seconds = float("nan")
    wrong.readings.power_watts.observed_at.seconds = 1 << 62
    with report(aggregator, "a", gpus=[wrong]), aggregator.cluster() as cluster:
        shown = all_gpus(cluster)[m.name("a", 0)].gpu.readings
        now = time.time()
        assert abs(shown.temperature_celsius.observed_at.seconds - now) < 60
        assert abs(shown.power_watts.observed_at.seconds - now) < 60
        assert 0 <= shown.power_watts.age_seconds < 60


def test_restart_keeps_objects_and_events(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a") as stream, aggregator.cluster() as cluster:
        stream.send(m.events(m.event("a", 1, 1)))
        stream.wait_for_event(1, 1)
        before = all_gpus(cluster)
    aggregator.kill()
    aggregator.start()
    with aggregator.cluster() as cluster:
        after = all_gpus(cluster)
        assert list(after) == list(before)
        for name, gpu in after.items():
            assert gpu.gpu.capacity.tflops.value == before[name].gpu.capacity.tflops.value
            assert gpu.gpu.topology == before[name].gpu.topology
            # Not known until the node reports again, and so absent.
            assert not gpu.gpu.HasField("readings")
            assert gpu.node_liveness == cluster_pb2.LIVENESS_LATE
        with open_stream(aggregator, "a") as stream:
            welcome = stream.wait_for("welcome").welcome
            assert not welcome.HasField("held")
            assert (welcome.held_event_epoch, welcome.held_event_sequence) == (1, 1)
            stream.send(m.snapshot(R(1, 1), m.state("a")))
            wait_until(lambda: all_gpus(cluster)[m.name("a", 0)].gpu.HasField("readings"), "readings again")


def test_sigterm_stops_cleanly_with_open_streams_and_watches(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a") as stream, aggregator.cluster() as cluster:
        watch = cluster.WatchGpus(cluster_pb2.WatchGpusRequest())
        assert next(watch).reset
        events = cluster.WatchEvents(cluster_pb2.ClusterWatchEventsRequest())
        begins_at(events, 0)
        stream.send(m.events(m.event("a", 1, 1)))
        next(events)
        # Not acknowledged yet, and yet on disk when it has ended.
        stream.send(m.delta(R(1, 1), R(1, 2), node_pb2.NodeDelta(removed_gpu_uuids=[m.uuid("a", 0)])))
        wait_until(lambda: len(all_gpus(cluster)) == 7, "the delta")
        assert aggregator.stop() == 0
        assert list(events) == []
        assert stream.wait_for_error().code() is grpc.StatusCode.UNAVAILABLE
    assert "Traceback" not in aggregator.log.read_text()
    aggregator.start()
    with aggregator.cluster() as cluster:
        assert len(all_gpus(cluster)) == 7


def test_pages_are_of_one_version(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a") as stream, report(aggregator, "b"), aggregator.cluster() as cluster:
        request = cluster_pb2.ClusterListGpusRequest(page=node_pb2.Page(size=5))
        first = cluster.ListGpus(request)
        names = [gpu.name for gpu in first.gpus]
        stream.send(m.snapshot(R(1, 2), m.state("a", gpus=[])))
        stream.wait_for_revision(1, 2)
        token = first.next_page_token
        while token:
            request.page.token = token
            response = cluster.ListGpus(request)
            assert response.version == first.version
            names += [gpu.name for gpu in response.gpus]
            token = response.next_page_token
        assert names == [m.name(node, index) for node in "ab" for index in range(8)]
        for wrong, code in (
            ("nonsense.5", grpc.StatusCode.ABORTED),
            (first.next_page_token.split(".")[0] + ".x", grpc.StatusCode.INVALID_ARGUMENT),
        ):
            request.page.token = wrong
            with pytest.raises(grpc.RpcError) as caught:
                cluster.ListGpus(request)
            assert caught.value.code() is code
        request.page.token = first.next_page_token
        request.filter.node_name = "a"
        with pytest.raises(grpc.RpcError) as caught:
            cluster.ListGpus(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def mixed_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    """Cards that differ; nothing changes any more."""
    process = AggregatorProcess(tmp_path_factory.mktemp("mixed"), heartbeat_seconds=60)
    process.start()
    gpus = [
        m.gpu("a", 0, peers=3),
        m.gpu("a", 1, peers=3, tier=2, model="Tesla T4"),
        m.gpu("a", 2, peers=3, available_tflops=10),
    ]
    lost = m.gpu("b", 0, peers=1, health=types_pb2.HEALTH_STATE_LOST)
    with (
        report(process, "a", gpus=gpus),
        report(process, "b", gpus=[lost], labels={"tensor-fusion.ai/pool-train": "true"}),
    ):
        yield process
    process.close()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, [("a", 0), ("a", 1), ("a", 2), ("b", 0)]),
        ({"node_name": "b"}, [("b", 0)]),
        ({"pool": "train"}, [("b", 0)]),
        ({"pool": "default"}, [("a", 0), ("a", 1), ("a", 2)]),
        ({"model": "tesla t4"}, [("a", 1)]),
        ({"vendor": "amd"}, []),
        ({"min_available_tflops": 500}, [("a", 0), ("a", 1), ("b", 0)]),
        ({"min_available_vram_bytes": 80 * m.GIB + 1}, []),
        ({"max_tier": 1}, [("a", 0), ("a", 2), ("b", 0)]),
        ({"only_allocatable": True}, [("a", 0), ("a", 1), ("a", 2)]),
        ({"isolation": types_pb2.ISOLATION_MODE_SOFT}, [("a", 0), ("a", 1), ("a", 2), ("b", 0)]),
    ],
)
def test_filters(mixed_fleet: AggregatorProcess, wanted: dict[str, object], expected: list[tuple[str, int]]) -> None:
    with mixed_fleet.cluster() as cluster:
        request = cluster_pb2.ClusterListGpusRequest(filter=cluster_pb2.GpuFilter(**wanted))  # type: ignore[arg-type]
        assert [gpu.name for gpu in cluster.ListGpus(request).gpus] == [m.name(*place) for place in expected]


def test_field_masks(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a"), aggregator.cluster() as cluster:
        request = cluster_pb2.ClusterListGpusRequest()
        request.fields.paths.extend(["name", "gpu.capacity.available_tflops.value"])
        shown = cluster.ListGpus(request).gpus[0]
        expected = cluster_pb2.ClusterGpu(name=m.name("a", 0))
        expected.gpu.capacity.available_tflops.value = 989.0
        assert shown == expected
        request.fields.paths.append("gpu.nonsense")
        with pytest.raises(grpc.RpcError) as caught:
            cluster.ListGpus(request)
        refusal = refusal_of(caught.value)
        assert refusal is not None
        assert (refusal.field, "gpu.nonsense" in refusal.message) == ("fields", True)


def test_get_gpu_ignores_case_and_names_what_is_not_there(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a"), aggregator.cluster() as cluster:
        assert cluster.GetGpu(cluster_pb2.GetGpuRequest(uuid="gPu-A-3")).gpu.gpu.index == 3
        with pytest.raises(grpc.RpcError) as caught:
            cluster.GetGpu(cluster_pb2.GetGpuRequest(uuid="GPU-none"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


class Watcher:
    """Keeps what a client of WatchGpus would keep."""

    def __init__(self, messages: Iterator[cluster_pb2.WatchGpusResponse]) -> None:
        self.gpus: dict[str, cluster_pb2.ClusterGpu] = {}
        self.resets = 0
        self.version = 0
        self.store_id = ""
        self._messages = messages
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for message in self._messages:
                if message.reset:
                    self.gpus.clear()
                    self.resets += 1
                for gpu in message.gpus:
                    self.gpus[gpu.name] = gpu
                for name in message.removed:
                    self.gpus.pop(name, None)
                self.store_id = message.store_id
                if not message.more:
                    self.version = message.version
        except grpc.RpcError:
            return


def test_a_watch_follows_resumes_and_tells_when_it_can_not(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a") as stream, aggregator.cluster() as cluster:
        call = cluster.WatchGpus(cluster_pb2.WatchGpusRequest())
        watcher = Watcher(call)
        wait_until(lambda: len(watcher.gpus) == 8, "the snapshot")
        stream.send(
            m.delta(
                R(1, 1),
                R(1, 2),
                node_pb2.NodeDelta(
                    gpus=[m.gpu("a", 1, available_tflops=3)], removed_gpu_uuids=[m.uuid("a", 0), m.uuid("a", 2)]
                ),
            )
        )
        wait_until(lambda: len(watcher.gpus) == 6 and watcher.gpus[m.name("a", 1)], "the change")
        assert watcher.gpus[m.name("a", 1)].gpu.capacity.available_tflops.value == 3
        assert watcher.resets == 1
        call.cancel()
        stream.send(m.delta(R(1, 2), R(1, 3), node_pb2.NodeDelta(removed_gpu_uuids=[m.uuid("a", 3)])))
        stream.wait_for_revision(1, 3)

        def resume(version: int, store_id: str) -> cluster_pb2.WatchGpusResponse:
            again = cluster.WatchGpus(
                cluster_pb2.WatchGpusRequest(resume_after_version=version, store_id=store_id), timeout=10
            )
            message: cluster_pb2.WatchGpusResponse = next(again)
            again.cancel()
            return message

        resumed = resume(watcher.version, watcher.store_id)
        assert (resumed.reset, list(resumed.removed), list(resumed.gpus)) == (False, [m.name("a", 3)], [])
        assert resume(watcher.version + 10_000, watcher.store_id).reset
        assert resume(watcher.version, "another store").reset
        aggregator.kill()
        aggregator.start()
        # Across a restart as well, from what was durable.
        assert not resume(watcher.version, watcher.store_id).reset
        assert m.name("a", 3) in resume(watcher.version, watcher.store_id).removed
        assert resume(resumed.version + 500, watcher.store_id).reset


def test_a_filtered_watch_tells_what_no_longer_matches(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a") as stream, aggregator.cluster() as cluster:
        wanted = cluster_pb2.GpuFilter(min_available_tflops=500)
        watcher = Watcher(cluster.WatchGpus(cluster_pb2.WatchGpusRequest(filter=wanted)))
        wait_until(lambda: len(watcher.gpus) == 8, "the snapshot")
        changes = node_pb2.NodeDelta(gpus=[m.gpu("a", 1, available_tflops=499)])
        stream.send(m.delta(R(1, 1), R(1, 2), changes))
        wait_until(lambda: m.name("a", 1) not in watcher.gpus, "the removal")
        stream.send(m.delta(R(1, 2), R(1, 3), node_pb2.NodeDelta(gpus=[m.gpu("a", 1)])))
        wait_until(lambda: m.name("a", 1) in watcher.gpus, "the return")
        assert watcher.resets == 1


def test_watching_events(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a") as stream, aggregator.cluster() as cluster:
        stream.send(m.events(*(m.event("a", 1, number, index=number % 2) for number in range(1, 11))))
        stream.wait_for_event(1, 10)
        regarding = types_pb2.ObjectReference(kind="GPU", name=m.uuid("a", 1).upper())
        everything = cluster.WatchEvents(cluster_pb2.ClusterWatchEventsRequest(regarding=regarding))
        begins_at(everything, 0)
        assert [next(everything).event.sequence for _ in range(5)] == [1, 3, 5, 7, 9]
        new = cluster.WatchEvents(cluster_pb2.ClusterWatchEventsRequest(only_new=True))
        normals = cluster.WatchEvents(cluster_pb2.ClusterWatchEventsRequest(type=types_pb2.EVENT_TYPE_NORMAL))
        begins_at(new, 10)
        begins_at(normals, 0)
        stream.send(m.events(m.event("a", 1, 11, index=1)))
        assert next(new).event.sequence == 11
        assert next(everything).event.sequence == 11
        normal = m.event("a", 1, 12)
        normal.type = types_pb2.EVENT_TYPE_NORMAL
        stream.send(m.events(normal))
        assert next(normals).event.sequence == 12
        for call in (everything, new, normals):
            call.cancel()
        aggregator_sees_watchers(aggregator, 0)


def begins_at(watch: Any, number: int, *, reset: bool = False) -> str:
    """Reads a watch's first message; returns the store's id."""
    first = next(watch)
    assert not first.HasField("event")
    assert (first.number, first.reset) == (number, reset)
    return str(first.store_id)


def test_a_watch_of_events_resumes_and_tells_when_it_can_not(aggregator: AggregatorProcess) -> None:
    def watch(after: int, store: str, **wanted: Any) -> Any:
        return cluster.WatchEvents(
            cluster_pb2.ClusterWatchEventsRequest(resume_after_number=after, store_id=store, **wanted)
        )

    with report(aggregator, "a") as stream, aggregator.cluster() as cluster:
        stream.send(m.events(*(m.event("a", 1, number) for number in range(1, 21))))
        stream.wait_for_event(1, 20)
        everything = cluster.WatchEvents(cluster_pb2.ClusterWatchEventsRequest())
        store = begins_at(everything, 0)
        seen = [next(everything) for _ in range(7)]
        assert [message.number for message in seen] == list(range(1, 8))
        # From a list on nothing is missed either.
        listed = cluster.ListEvents(cluster_pb2.ClusterListEventsRequest())
        assert (listed.number, listed.store_id) == (20, store)
    aggregator.kill()
    aggregator.start()
    with report(aggregator, "a") as stream, aggregator.cluster() as cluster:
        resumed = watch(7, store, only_new=True)
        assert begins_at(resumed, 7) == store
        assert [next(resumed).event.sequence for _ in range(13)] == list(range(8, 21))
        # Another store's place, and one that this store has never come to.
        for after, of in ((7, "another"), (21, store)):
            other = watch(after, of)
            begins_at(other, 0, reset=True)
            assert next(other).event.sequence == 1
        # Retention takes the oldest away while nobody watches.
        stream.send(m.events(*(m.event("a", 1, number) for number in range(21, 1_021))))
        stream.wait_for_event(1, 1_020)
    aggregator.stop()
    aggregator.start("--event-retention-count", "1000")
    with aggregator.cluster() as cluster:
        oldest = cluster_pb2.ClusterListEventsRequest(page=node_pb2.Page(size=1))
        wait_until(lambda: cluster.ListEvents(oldest).events[0].sequence == 21, "events are forgotten")
        late = watch(7, store)
        begins_at(late, 7, reset=True)
        assert next(late).event.sequence == 21
        begins_at(watch(20, store), 20)
        # A page token of another store is told as such.
        with pytest.raises(grpc.RpcError) as refused:
            cluster.ListEvents(cluster_pb2.ClusterListEventsRequest(page=node_pb2.Page(token="another.3")))
        assert refused.value.code() is grpc.StatusCode.ABORTED


def aggregator_sees_watchers(aggregator: AggregatorProcess, count: int) -> None:
    line = f"gpuhv_aggregator_watchers {count}.0"
    wait_until(lambda: line in aggregator.get("/metrics"), f"{count} watchers")


def test_events_by_pages_and_after_a_restart(aggregator: AggregatorProcess) -> None:
    with report(aggregator, "a") as stream, aggregator.cluster() as cluster:
        stream.send(m.events(*(m.event("a", 1, number) for number in range(1, 31))))
        stream.wait_for_event(1, 30)
        request = cluster_pb2.ClusterListEventsRequest(page=node_pb2.Page(size=7))
        sequences: list[int] = []
        while True:
            response = cluster.ListEvents(request)
            sequences += [event.sequence for event in response.events]
            if not response.next_page_token:
                break
            request.page.token = response.next_page_token
        assert sequences == list(range(1, 31))
    aggregator.kill()
    aggregator.start()
    with aggregator.cluster() as cluster:
        # Older than what memory holds: from the store.
        watch = cluster.WatchEvents(cluster_pb2.ClusterWatchEventsRequest())
        begins_at(watch, 0)
        assert [next(watch).event.sequence for _ in range(30)] == list(range(1, 31))
        watch.cancel()


def test_health_reflection_and_pages_of_the_http_port(aggregator: AggregatorProcess) -> None:
    with grpc.insecure_channel(aggregator.unix) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "hypervisor.v1.ReportService", "hypervisor.v1.ClusterService"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        listed = next(reflection.ServerReflectionInfo(iter([request]))).list_services_response.service
        assert {"hypervisor.v1.ReportService", "hypervisor.v1.ClusterService"} <= {found.name for found in listed}
    assert aggregator.get("/healthz") == "ok\n"
    assert '"ready":true' in aggregator.get("/readyz").replace(" ", "")
    with report(aggregator, "a"):
        page = wait_until(
            lambda: page if 'gpus{phase="Running"} 8.0' in (page := aggregator.get("/metrics")) else None, "the metrics"
        )
        assert 'gpuhv_aggregator_nodes{liveness="fresh"} 1.0' in page
        assert "gpuhv_aggregator_report_streams 1.0" in page


@pytest.mark.parametrize(
    "raw", [b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", b"\x00\x01nonsense\r\n\r\n"]
)
def test_the_http_port_answers_nonsense_and_lives_on(aggregator: AggregatorProcess, raw: bytes) -> None:
    host, port = aggregator.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(raw)
        assert connection.recv(100).startswith((b"HTTP/1.1 405", b"HTTP/1.1 400"))
    assert aggregator.get("/healthz") == "ok\n"


def test_a_second_aggregator_on_the_same_store_is_refused(aggregator: AggregatorProcess, tmp_path: Path) -> None:
    second = subprocess.run(
        [*PROGRAM, *command(f"unix:{tmp_path}/b.sock", aggregator.store)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert second.returncode == 1
    assert f"process {aggregator.pid}" in second.stderr
    assert "Traceback" not in second.stderr


def test_what_can_not_be_bound_is_named(aggregator: AggregatorProcess, tmp_path: Path) -> None:
    for flags, words in (
        (["--listen", "127.0.0.1:0"], "--insecure"),
        (["--listen", aggregator.address, "--insecure"], "in use by process"),
        (["--listen", aggregator.unix], "in use by process"),
        (["--listen", "nonsense"], "unix:PATH or HOST:PORT"),
        (["--http-listen", aggregator.http.removeprefix("http://")], "in use by process"),
        (["--store", "/proc/none/store.db"], "--store"),
    ):
        arguments = ["--store", str(tmp_path / "other.db"), "--listen", f"unix:{tmp_path}/c.sock"]
        if "--listen" in flags:
            arguments = arguments[:2]
        if "--http-listen" not in flags:
            arguments += ["--http-listen", "127.0.0.1:0"]
        failed = subprocess.run(
            [*PROGRAM, "aggregator", *arguments, *flags], capture_output=True, text=True, timeout=DEADLINE_SECONDS
        )
        assert failed.returncode == 1, flags
        assert words in failed.stderr.splitlines()[-1], failed.stderr
        assert "Traceback" not in failed.stderr


def test_pools_of_the_command_line_select_nodes_by_their_labels(tmp_path: Path) -> None:
    process = AggregatorProcess(tmp_path, "--pool", "east=zone=east", "--pool", "all=zone=east,size=big")
    process.start()
    try:
        for name, labels in (("a", {"zone": "east"}), ("b", {"zone": "east", "size": "big"}), ("c", {"zone": "west"})):
            with open_stream(process, name) as stream:
                stream.send(m.snapshot(R(1, 1), m.state(name, gpus=[m.gpu(name, 0)], labels=labels)))
                stream.wait_for_revision(1, 1)
        with process.cluster() as stub:
            found = {name: sorted(gpu.pools) for name, gpu in all_gpus(stub).items()}
            pools = {pool.name: pool.node_count for pool in stub.ListPools(cluster_pb2.ListPoolsRequest()).pools}
            nodes = stub.ListNodes(cluster_pb2.ListNodesRequest()).nodes
    finally:
        process.close()
    assert found == {m.name("a", 0): ["east"], m.name("b", 0): ["all", "east"], m.name("c", 0): ["default"]}
    assert pools == {"all": 1, "default": 1, "east": 2}
    assert [dict(each.node.labels) for each in nodes][2] == {"zone": "west"}
