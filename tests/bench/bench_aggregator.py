"""The aggregator under the reports of many nodes: CPU, memory, and how soon a change is seen by a watcher.

AGGREGATOR_NODES=N sets the number of nodes (1,000 by default), AGGREGATOR_SECONDS how long is measured. Load and
aggregator share this machine; the CPU figure is the aggregator's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from hypervisor.v1 import cluster_pb2, node_pb2
from tests.bench.figure import Figure
from tests.fleet import messages as m
from tests.fleet.process import AggregatorProcess
from tests.fleet.stream import ReportStream

HEARTBEAT_SECONDS = 5.0
PROBES_PER_SECOND = 10


def measure() -> list[Figure]:
    nodes = int(os.environ.get("AGGREGATOR_NODES", "1000"))
    seconds = float(os.environ.get("AGGREGATOR_SECONDS", "8"))
    with tempfile.TemporaryDirectory() as directory:
        aggregator = AggregatorProcess(
            Path(directory),
            "--max-nodes",
            str(nodes + 1),
            "--log-level",
            "warning",
            heartbeat_seconds=HEARTBEAT_SECONDS,
        )
        aggregator.start()
        try:
            return _measured(aggregator, nodes, seconds)
        finally:
            aggregator.close()


def _measured(aggregator: AggregatorProcess, nodes: int, seconds: float) -> list[Figure]:
    command = [sys.executable, "-m", "tests.bench.aggregator_load", aggregator.address, str(nodes), str(seconds)]
    with subprocess.Popen([*command, str(HEARTBEAT_SECONDS)], stdout=subprocess.PIPE, text=True) as load:
        assert load.stdout is not None
        opened = json.loads(load.stdout.readline())["opened_seconds"]
        begun, cpu = time.monotonic(), _cpu_seconds(aggregator.pid)
        delays = _probed(aggregator, seconds - 1)
        cpu_share = (_cpu_seconds(aggregator.pid) - cpu) / (time.monotonic() - begun)
        resident = _resident_bytes(aggregator.pid)
        result = json.loads(load.stdout.readline())
    if result["failed"]:
        raise RuntimeError(f"{result['failed']} streams failed")
    rate = result["messages"] / seconds
    load_note = f"{nodes} nodes x 8 GPUs, {rate:.0f} full reports/s"
    late = statistics.quantiles(delays, n=100)[98]
    least, most = min(delays) * 1e3, max(delays) * 1e3
    return [
        _figure("aggregator: CPU, % of a core", cpu_share * 100, "%", 100, load_note),
        _figure("aggregator: resident memory", resident / 2**20, "MiB", 1024, load_note),
        Figure(
            name="aggregator: report to watcher, p99",
            value=late * 1e3,
            unit="ms",
            target="<= 1000 ms",
            holds=late <= 1,
            least=least,
            most=most,
            device="none",
            note=f"{load_note}, {len(delays)} changes",
        ),
        _figure("aggregator: all connected and stored", opened, "s", 60, load_note),
    ]


def _figure(name: str, value: float, unit: str, most: float, note: str) -> Figure:
    """The target is that for 10,000 nodes; the note says how many there were."""
    return Figure(
        name=name, value=value, unit=unit, target=f"<= {most:g} {unit}", holds=value <= most, device="none", note=note
    )


def _probed(aggregator: AggregatorProcess, seconds: float) -> list[float]:
    """Seconds from the sending of a changed fact to its arrival at a watcher."""
    seen: dict[float, float] = {}
    changed = threading.Condition()

    def follow(call: Iterator[cluster_pb2.WatchGpusResponse]) -> None:
        with contextlib.suppress(grpc.RpcError):  # how a watch ends that is cancelled
            for message in call:
                now = time.monotonic()
                with changed:
                    for gpu in message.gpus:
                        seen[gpu.gpu.capacity.available_tflops.value] = now
                    changed.notify()

    delays: list[float] = []
    with ReportStream(aggregator.address) as stream, aggregator.cluster() as cluster:
        stream.send(m.hello("probe"), m.snapshot(m.revision(1, 1), m.state("probe", gpus=[m.gpu("probe", 0)])))
        stream.wait_for_revision(1, 1)
        call = cluster.WatchGpus(cluster_pb2.WatchGpusRequest(filter=cluster_pb2.GpuFilter(node_name="probe")))
        follower = threading.Thread(target=follow, args=(call,), daemon=True)
        follower.start()
        until = time.monotonic() + seconds
        number = 1
        while time.monotonic() < until:
            value = 0.5 * number
            delta = node_pb2.NodeDelta(gpus=[m.gpu("probe", 0, available_tflops=value)])
            sent = time.monotonic()
            stream.send(m.delta(m.revision(1, number), m.revision(1, number + 1), delta))
            number += 1
            with changed:
                if not changed.wait_for(lambda wanted=value: wanted in seen, timeout=10):  # type: ignore[misc]
                    raise RuntimeError("a change was not seen within 10 s")
                delays.append(seen[value] - sent)
            time.sleep(1 / PROBES_PER_SECOND)
        call.cancel()
        follower.join()
    return delays


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
