"""The commands of the runbooks work: on a simulated node, on an aggregator, and, in names, on what the chart makes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess, wait_until
from tests.fleet.process import AggregatorProcess
from tests.integration.conftest import daemons
from tests.integration.node import calls
from tests.monitoring.runbooks import commands

HERE = [command for command in commands() if command[0] == "hypervisor"]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaemonProcess, dict[str, str]]]:
    """A node with an allocation, and what the words in capitals stand for there."""
    with closing(AggregatorProcess(tmp_path_factory.mktemp("runbooks"))) as aggregator, daemons() as make:
        aggregator.start()
        daemon = make("--report-to", aggregator.unix, "--node-name", "gpu-1").start().wait_ready()
        calls.allocate(daemon, "job", vram_bytes=1 << 30, percent="25", gpu="0")
        wait_until(lambda: 'liveness="fresh"} 1.0' in aggregator.get("/metrics"), "the node to report")
        uuid = calls.list_gpus(daemon)[0].uuid
        yield daemon, {"NODE": "gpu-1", "UUID": uuid, "ALLOCATION": "job", "AGGREGATOR": aggregator.unix}


@pytest.mark.slow
@pytest.mark.parametrize("command", HERE, ids=" ".join)
def test_commands_of_the_node_work(
    command: list[str], places: tuple[DaemonProcess, dict[str, str]], tmp_path: Path
) -> None:
    daemon, meanings = places
    words = command[1:]
    for name, meaning in meanings.items():
        words = [word.replace(name, meaning) for word in words]
    if "--server" not in words:
        words += ["--server", daemon.read_address]
    done = subprocess.run(
        [sys.executable, "-m", "hypervisor", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    # The doctor ends with 1 when it finds something, as it does on a machine whose bus has no GPU.
    assert done.returncode in ((0, 1) if words[0] == "doctor" else (0,)), done.stderr
    assert done.stdout or done.stderr in ("no workers\n", "no events\n")
