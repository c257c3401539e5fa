"""kill -9 of an aggregator with ten thousand nodes, and a start: how long until all have reported again, and whether
they come as a herd.

AGGREGATOR_NODES as in aggregator_fleet; AGGREGATOR_TLS=only: with certificates.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

from tests.bench import aggregator_fleet as fleet
from tests.bench.figure import Figure

# A thundering herd is all of them within a second or two; the aggregator names a time that is long enough for itself.
_MOST_A_SECOND = 1_000


def measure() -> list[Figure]:
    tls = os.environ.get("AGGREGATOR_TLS") == "only"
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        *certificates, folder = fleet.write_certificates(directory, fleet.NODES) if tls else (None,)
        with (
            fleet.aggregator_on_a_core(directory, fleet.NODES, folder) as aggregator,
            fleet.load_on_a_core(
                directory,
                aggregator,
                fleet.NODES,
                open_seconds=fleet.NODES / 300,
                certificates=tuple(map(str, certificates)),
            ) as load,
        ):
            load.wait_until_acknowledged(after=fleet.now(), seconds=240)
            # Those that were welcomed early know of fewer others, until their next acknowledgement has come: with every
            # third heartbeat.
            load.wait_for_lines(int(4 * fleet.HEARTBEAT_SECONDS))
            killed = fleet.now()
            aggregator.kill()
            aggregator.start()
            serving = fleet.now() - killed
            whole = load.wait_until_acknowledged(after=killed + 1.5, seconds=240) - killed
            lines = [line for line in load.lines if line["at"] >= killed]
    begun = [later["begun"] - line["begun"] for line, later in itertools.pairwise(lines)]
    note = f"{fleet.NODES} nodes x {fleet.GPUS} GPUs{', mTLS' if tls else ''}, one core; serving after {serving:.1f} s"
    return [
        Figure(
            name="aggregator: restart and full resync",
            value=whole,
            unit="s",
            target="<= 60 s",
            holds=whole <= 60,
            device="none",
            note=note,
        ),
        Figure(
            name="aggregator: most connections begun in a second of it",
            value=max(begun),
            unit="1/s",
            target=f"<= {_MOST_A_SECOND} 1/s",
            holds=max(begun) <= _MOST_A_SECOND,
            device="none",
            note=note,
        ),
    ]
