"""A cluster as an aggregator tells of it: one daemon reports, then no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import DaemonProcess, wait_until
from tests.fleet.process import AggregatorProcess
from tests.integration.doctor.command import checks, doctor


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(tmp_path)
    process.start()
    yield process
    process.close()


def told(server: str) -> dict[str, Any]:
    """The checks of `doctor cluster`, by id."""
    return checks(doctor("cluster", "--server", server, "-o", "json"))


def test_a_node_that_reports_and_then_is_silent(
    make_daemon: Callable[..., DaemonProcess], aggregator: AggregatorProcess
) -> None:
    daemon = make_daemon("--report-to", aggregator.address, "--insecure").start().wait_ready()

    def verdict(check: str) -> str:
        return str(told(aggregator.address)[check]["verdict"])

    wait_until(lambda: verdict("cluster.gpus") == "pass", "the node to report")
    found = told(aggregator.address)
    assert "8 GPUs" in str(found["cluster.aggregator"]["evidence"])
    assert [name for name, each in found.items() if each["verdict"] in ("warn", "fail")] == []

    daemon.kill()
    wait_until(lambda: verdict("cluster.nodes-alive") == "fail", "the silence to be told")
