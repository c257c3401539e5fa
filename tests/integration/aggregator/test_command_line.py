"""`hypervisor get` and `describe` against an aggregator."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypervisor.v1 import node_pb2, types_pb2
from tests.fleet import messages as m
from tests.fleet.process import DEADLINE_SECONDS, PROGRAM, AggregatorProcess, wait_until
from tests.fleet.stream import ReportStream


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[AggregatorProcess]:
    # The stream sends no heartbeats; it is fresh for as long as a test may take.
    process = AggregatorProcess(tmp_path, heartbeat_seconds=60)
    process.start()
    with ReportStream(process.address) as stream:
        stream.send(m.hello("rack-a"), m.snapshot(m.revision(1, 1), m.state("rack-a")))
        stream.send(m.events(m.event("rack-a", 1, 1, index=3)))
        stream.wait_for_event(1, 1)
        yield process
    process.close()


def run(aggregator: AggregatorProcess, *arguments: str, status: int = 0) -> str:
    done = subprocess.run(
        [*PROGRAM, *arguments, "--server", aggregator.unix], capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if status == 0 else done.stderr


def test_tables_fit_and_say_where(aggregator: AggregatorProcess) -> None:
    gpus = run(aggregator, "get", "gpus").splitlines()
    assert len(gpus) == 9
    assert max(map(len, gpus)) <= 80
    assert {"NODE", "PHASE", "HEARD", "TFLOPS"} <= set(gpus[0].split())
    assert {"rack-a", "Running", "Fresh", "989/989"} <= set(gpus[1].split())
    nodes = run(aggregator, "get", "nodes").splitlines()
    assert max(map(len, nodes)) <= 80
    assert {"rack-a", "Fresh"} <= set(nodes[1].split())
    assert {"default", "Running", "1", "8"} <= set(run(aggregator, "get", "pools").splitlines()[1].split())
    assert "GPU/GPU-rack-a-3" in run(aggregator, "get", "events", "-o", "wide")


def test_an_empty_list_says_why(tmp_path: Path) -> None:
    process = AggregatorProcess(tmp_path)
    process.start()
    try:
        for kind in ("gpus", "nodes"):
            done = subprocess.run(
                [*PROGRAM, "get", kind, "--server", process.unix],
                capture_output=True,
                text=True,
                timeout=DEADLINE_SECONDS,
            )
            assert (done.returncode, done.stdout) == (0, "")
            assert done.stderr.startswith(f"no {kind}: no node has reported yet; start daemons with --report-to")
    finally:
        process.close()


def test_json_is_the_protos(aggregator: AggregatorProcess) -> None:
    found = json.loads(run(aggregator, "get", "gpus", "gpu-rack-a-3", "-o", "json"))
    items = found.get("items", [found])
    assert items[0]["nodeName"] == "rack-a"
    assert items[0]["gpu"]["capacity"]["tflops"]["value"] == 989
    assert run(aggregator, "get", "gpus", "-o", "name").split() == [m.name("rack-a", index) for index in range(8)]


def test_describe_tells_all_and_its_events(aggregator: AggregatorProcess) -> None:
    page = run(aggregator, "describe", "gpu", "GPU-rack-a-3")
    for words in ("rack-a", "Running", "989", "Links:", "event 1 of rack-a"):
        assert words in page
    assert "event 1" not in run(aggregator, "describe", "gpu", "GPU-rack-a-4")
    assert "Last heard of" in run(aggregator, "describe", "node", "rack-a")


def test_what_an_aggregator_does_not_keep(aggregator: AggregatorProcess) -> None:
    assert "ask the daemon of their node" in run(aggregator, "get", "pods", status=2)
    assert "GPU-none" in run(aggregator, "get", "gpus", "GPU-none", status=1)


def test_watching(aggregator: AggregatorProcess) -> None:
    lines: list[str] = []
    with subprocess.Popen(
        [*PROGRAM, "get", "gpus", "-w", "-o", "json", "--server", aggregator.unix], stdout=subprocess.PIPE, text=True
    ) as watch:
        assert watch.stdout is not None
        lines += [watch.stdout.readline() for _ in range(8)]
        assert {json.loads(line)["type"] for line in lines} == {"ADDED"}
        with ReportStream(aggregator.address) as stream:
            stream.send(m.hello("rack-a"))
            gone = node_pb2.NodeDelta(removed_gpu_uuids=[m.uuid("rack-a", 5)])
            stream.send(m.delta(m.revision(1, 1), m.revision(1, 2), gone))
            change = json.loads(watch.stdout.readline())
            assert (change["type"], change["object"]["name"]) == ("DELETED", m.name("rack-a", 5))
        assert aggregator.stop() == 0
        assert wait_until(lambda: watch.poll() is not None and [watch.returncode], "the end") == [3]
    aggregator.start()


def sequences(text: str) -> list[int]:
    return [int(name.rpartition("/")[2]) for name in text.split()]


def test_events_about_one_object_and_of_one_type(aggregator: AggregatorProcess) -> None:
    normal, of_node, of_pod = (m.event("rack-a", 1, number, index=3) for number in (2, 3, 4))
    normal.type = types_pb2.EVENT_TYPE_NORMAL
    of_node.regarding.CopyFrom(types_pb2.ObjectReference(kind="Node", name="rack-a"))
    of_pod.regarding.CopyFrom(types_pb2.ObjectReference(kind="Pod", namespace="ml", name="train"))
    with ReportStream(aggregator.address) as stream:
        stream.send(m.hello("rack-a"), m.events(normal, of_node, of_pod, m.event("rack-a", 1, 5, index=4)))
        stream.wait_for_event(1, 5)

        def told(*flags: str) -> list[int]:
            return sequences(run(aggregator, "get", "events", "-o", "name", *flags))

        assert told("--for", "gpu/GPU-RACK-A-3") == [1, 2]
        # By the beginning of its UUID, as everywhere; and of one that is gone, whose events stay.
        assert told("--for", "gpu/gpu-rack-a-4") == [5]
        assert told("--for", "gpu/GPU-gone") == []
        assert told("--for", "gpu/GPU-rack-a-3", "--type", "Warning") == [1]
        assert told("--type", "normal") == [2]
        # The aggregator's own events about it have numbers of their own.
        assert 3 in told("--for", "node/rack-a")
        assert told("--for", "pod/ml/train") == told("--for", "pod/train") == [4]
        assert told("--for", "pod/other/train") == []
        with subprocess.Popen(
            [
                *(*PROGRAM, "get", "events", "-w", "-o", "name", "--server", aggregator.unix),
                *("--for", "gpu/GPU-rack-a-3", "--type", "Warning"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        ) as watch:
            assert watch.stdout is not None
            assert sequences(watch.stdout.readline()) == [1]
            stream.send(m.events(m.event("rack-a", 1, 6, index=4), m.event("rack-a", 1, 7, index=3)))
            assert sequences(watch.stdout.readline()) == [7]
            watch.terminate()
    assert "KIND/NAME" in run(aggregator, "get", "events", "--for", "gpu", status=2)
    assert "select events" in run(aggregator, "get", "gpus", "--type", "Warning", status=2)
    assert "more of it" in run(aggregator, "get", "events", "--for", "gpu/GPU-rack", status=1)
