"""The aggregator under the reports of ten thousand nodes, without and with certificates: CPU, memory, and how soon a
change is seen.

AGGREGATOR_NODES and AGGREGATOR_SECONDS as in aggregator_fleet; AGGREGATOR_TLS=0 leaves out the run with certificates,
AGGREGATOR_TLS=only the other one.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from tests.bench import aggregator_fleet as fleet
from tests.bench.aggregator_probe import delays
from tests.bench.figure import Figure

# Real nodes that start together have the jitter of their own starts.
_OPENED_PER_SECOND = {False: 500.0, True: 300.0}
_MEMORY_MIB = {False: 1024, True: 1638.4}


def measure() -> list[Figure]:
    wanted = os.environ.get("AGGREGATOR_TLS", "1")
    runs = {"0": [False], "only": [True]}.get(wanted, [False, True])
    return [figure for tls in runs for figure in _run(tls=tls)]


def _run(*, tls: bool) -> list[Figure]:
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        *certificates, folder = fleet.write_certificates(directory, fleet.NODES) if tls else (None,)
        open_seconds = fleet.NODES / _OPENED_PER_SECOND[tls]
        with (
            fleet.aggregator_on_a_core(directory, fleet.NODES, folder) as aggregator,
            fleet.load_on_a_core(
                directory,
                aggregator,
                fleet.NODES,
                open_seconds=open_seconds,
                certificates=tuple(map(str, certificates)),
            ) as load,
        ):
            begun = fleet.now()
            opened = load.wait_until_acknowledged(after=begun, seconds=180) - begun
            first = load.lines[-1]
            cpu, at = fleet.cpu_seconds(aggregator.pid), fleet.now()
            found = delays(aggregator, fleet.SECONDS)
            share = (fleet.cpu_seconds(aggregator.pid) - cpu) / (fleet.now() - at)
            resident, peak = fleet.resident_bytes(aggregator.pid), fleet.peak_bytes(aggregator.pid)
            last = load.wait_for_lines(1)[-1]
    if last["refused"] or last["open"] < fleet.NODES:
        raise RuntimeError(f"not all nodes are well: {last}")
    rate = (last["sent"] - first["sent"]) / (last["at"] - first["at"])
    name = "aggregator with mTLS" if tls else "aggregator"
    note = f"{fleet.NODES} nodes x {fleet.GPUS} GPUs, {rate:.0f} reports of all GPUs/s, one core; load in C"
    late = statistics.quantiles(found, n=100)[98]
    return [
        _figure(f"{name}: CPU, % of its core", share * 100, "%", 100, note),
        _figure(
            f"{name}: resident memory", resident / 2**20, "MiB", _MEMORY_MIB[tls], f"{note}; peak {peak >> 20} MiB"
        ),
        Figure(
            name=f"{name}: report to watcher, p99",
            value=late * 1e3,
            unit="ms",
            target="<= 1000 ms",
            holds=late <= 1,
            least=min(found) * 1e3,
            most=max(found) * 1e3,
            device="none",
            note=f"{note}; {len(found)} changes",
        ),
        _figure(f"{name}: all connected and stored", opened, "s", 60, f"{note}; opened over {open_seconds:.0f} s"),
    ]


def _figure(name: str, value: float, unit: str, most: float, note: str) -> Figure:
    """The target is that for 10,000 nodes; the note says how many there were."""
    return Figure(
        name=name, value=value, unit=unit, target=f"<= {most:g} {unit}", holds=value <= most, device="none", note=note
    )
