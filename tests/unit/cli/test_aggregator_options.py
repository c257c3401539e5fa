"""What `hypervisor aggregator` refuses before it starts."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from hypervisor.cli.aggregator import aggregator


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--replicas", "2"], "a SQLite file serves one aggregator; use --kubernetes, or --replicas 1"),
        (["--store", "x.db", "--kubernetes"], "--store and --kubernetes exclude each other"),
        (["--pool", "big"], "--pool big: NAME=LABEL=VALUE is needed"),
        (["--pool", "big=zone"], "'zone' is no NAME=VALUE"),
    ],
)
def test_what_can_not_be_is_refused(flags: list[str], why: str) -> None:
    found = CliRunner().invoke(aggregator, flags)
    assert found.exit_code == 2
    assert why in found.output.replace("\n", " ")


def test_a_cluster_that_is_not_there_is_named() -> None:
    found = CliRunner().invoke(aggregator, ["--kubernetes", "--kubeconfig", "/nowhere/config"])
    assert found.exit_code != 0
    assert "the kubeconfig /nowhere/config can't be used" in str(found.exception) + found.output
