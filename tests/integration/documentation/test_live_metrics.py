"""What running programs export is what the reference lists, by name and type."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from buildsupport.reference import metrics
from tests.daemon_process import DaemonProcess, wait_until

_TYPE = re.compile(r"^# TYPE (gpuhv_\w+) (\w+)$", re.MULTILINE)
# In the Prometheus format an info is a gauge that is 1.
_KINDS = {"gauge": "gauge", "counter": "counter", "info": "gauge"}


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The gRPC address and the URL of an aggregator's HTTP port."""
    address, log = f"unix:{tmp_path / 'hub.sock'}", tmp_path / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "hypervisor", "aggregator", "--listen", address, "--allow-simulated"),
                *("--store", str(tmp_path / "hub.db"), "--http-listen", "127.0.0.1:0"),
            ],
            stderr=written,
        )

    def served() -> str:
        lines = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
        return next((line["http"] for line in lines if line.get("event") == "serving"), "")

    try:
        yield address, wait_until(served, f"the aggregator; {log.read_text()}")
    finally:
        process.terminate()
        process.wait(15)


def listed(page: str) -> Mapping[str, str]:
    return dict(_TYPE.findall(page))


@pytest.mark.slow
def test_every_exported_metric_is_in_the_reference(
    make_daemon: Callable[..., DaemonProcess], aggregator: tuple[str, str]
) -> None:
    address, http = aggregator
    daemon = make_daemon("--report-to", address).start().wait_ready()
    daemon.cli("allocate", "share", "--gpu", "0", "--compute", "40%", admin=True)
    connected = "gpuhv_report_stream_connected 1.0"
    wait_until(lambda: connected in daemon.get("/metrics")[1], "the report stream")
    node = listed(daemon.get("/metrics")[1])
    known = {each.name: _KINDS[each.kind] for each in metrics.node_families()}
    known |= {each.name: _KINDS[each.kind] for feed in metrics.FEEDS for each in metrics.feed_families(feed)}
    assert len(node) > 100
    assert {name: kind for name, kind in node.items() if known.get(name) != kind} == {}
    with urllib.request.urlopen(f"{http.rstrip('/')}/metrics", timeout=10) as answer:
        hub = listed(answer.read().decode())
    known = {each.name: _KINDS[each.kind] for each in metrics.aggregator_families()}
    assert len(hub) > 20
    assert {name: kind for name, kind in hub.items() if known.get(name) != kind} == {}
