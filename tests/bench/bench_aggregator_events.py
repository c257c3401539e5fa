"""Ten thousand events at once, while nodes report: none is lost, and reports are not delayed.

AGGREGATOR_EVENTS=N sets their number.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench import aggregator_fleet as fleet
from tests.bench.aggregator_probe import delays
from tests.bench.figure import Figure
from tests.fleet import messages as m
from tests.fleet.process import AggregatorProcess, all_events
from tests.fleet.stream import ReportStream

EVENTS = int(os.environ.get("AGGREGATOR_EVENTS", "10000"))
_NODES, _BATCH = 20, 100


def measure() -> list[Figure]:
    nodes = min(fleet.NODES, 2_000)
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        with (
            fleet.aggregator_on_a_core(directory, nodes) as aggregator,
            fleet.load_on_a_core(directory, aggregator, nodes, open_seconds=nodes / 400) as load,
        ):
            load.wait_until_acknowledged(after=fleet.now(), seconds=120)
            quiet = delays(aggregator, 5, node="quiet")
            with _burst(aggregator) as stored:
                busy = delays(aggregator, 5, node="busy")
                seconds = stored()
            with aggregator.cluster(aggregator.unix) as cluster:
                kept = [event for event in all_events(cluster) if event[0].startswith("uid-burst-")]
    lost = EVENTS - len(set(kept))
    late, usual = statistics.quantiles(busy, n=100)[98], statistics.quantiles(quiet, n=100)[98]
    note = f"{EVENTS} events of {_NODES} nodes, {nodes} nodes report"
    return [
        Figure(
            name="aggregator: events of a burst that are lost or doubled",
            value=lost + len(kept) - len(set(kept)),
            unit="events",
            target="0",
            holds=len(kept) == len(set(kept)) == EVENTS,
            device="none",
            note=f"{note}; all acknowledged after {seconds:.1f} s",
        ),
        Figure(
            name="aggregator: report to watcher during the burst, p99",
            value=late * 1e3,
            unit="ms",
            target="<= 1000 ms",
            holds=late <= 1,
            baseline=usual * 1e3,
            least=min(busy) * 1e3,
            most=max(busy) * 1e3,
            device="none",
            note=f"{note}; baseline: the same without events",
        ),
    ]


@contextmanager
def _burst(aggregator: AggregatorProcess) -> Iterator[Callable[[], float]]:
    """Sends all events while the block runs; what it gives waits for their acknowledgement and returns the seconds."""
    each = EVENTS // _NODES
    with ExitStack() as stack:
        streams = [stack.enter_context(ReportStream(aggregator.unix)) for _ in range(_NODES)]
        names = [f"burst-{number}" for number in range(_NODES)]
        for name, stream in zip(names, streams, strict=True):
            stream.send(m.hello(name), m.snapshot(m.revision(1, 1), m.state(name, gpus=[])))
            stream.wait_for_revision(1, 1)
        begun = fleet.now()
        ended: list[float] = []

        def send() -> None:
            for first in range(1, each + 1, _BATCH):
                for name, stream in zip(names, streams, strict=True):
                    batch = range(first, min(first + _BATCH, each + 1))
                    stream.send(m.events(*(m.event(name, 1, number) for number in batch)))
            for stream in streams:
                stream.wait_for_event(1, each)
            ended.append(fleet.now())

        sender = threading.Thread(target=send)
        sender.start()

        def stored() -> float:
            sender.join()
            return ended[0] - begun

        yield stored
