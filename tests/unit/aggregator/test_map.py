"""The map of the cluster: what a card's number says, and the page that reads it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re

import pytest

from hypervisor.aggregator.map import (
    CLASS_STEP,
    DEGRADED,
    FROZEN,
    HEALTHY,
    KEEP_SECONDS,
    MISSING,
    NO_WORK,
    USE_UNKNOWN,
    ClusterMap,
    health_class,
    used_percent,
)
from hypervisor.aggregator.records import GpuObject, NodeRecord, gpu_object
from hypervisor.aggregator.registry import Registry
from hypervisor.aggregator.views import Moment
from hypervisor.aggregator.web import _page
from hypervisor.v1 import cluster_pb2, types_pb2
from tests.fleet import messages as m


def card(**changes: object) -> GpuObject:
    message = m.gpu("a", 0)
    made = gpu_object(
        message, NodeRecord("uid-a", "a"), latest=b"", digest=0, received_at=0.0, intern=lambda text: text
    )
    return made.replaced(**changes)


@pytest.mark.parametrize(
    ("changes", "percent"),
    [
        ({}, 0),
        ({"available_tflops": 989 / 4}, 75),
        ({"available_vram_bytes": 20 * m.GIB}, 75),
        ({"available_tflops": 989 / 2, "available_vram_bytes": 8 * m.GIB}, 90),
        # Twice as much may be promised as there is, and half of that is.
        ({"tflops_ratio": 2.0, "available_tflops": 989.0}, 50),
        ({"available_tflops": None}, 0),
        ({"available_tflops": None, "available_vram_bytes": None}, USE_UNKNOWN),
        ({"available_tflops": 5000.0}, 0),
    ],
)
def test_use_is_what_is_promised_most(changes: dict[str, object], percent: int) -> None:
    assert used_percent(card(**changes)) == percent


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, HEALTHY),
        ({"health": types_pb2.HEALTH_STATE_DEGRADED}, DEGRADED),
        ({"allocatable": False}, NO_WORK),
        ({"phase": "Pending"}, NO_WORK),
        ({"phase": "Unknown"}, MISSING),
        ({"missing_since": 1.0}, MISSING),
        ({"liveness": cluster_pb2.LIVENESS_LOST}, FROZEN),
        ({"liveness": cluster_pb2.LIVENESS_LATE}, HEALTHY),
    ],
)
def test_health_comes_before_use(changes: dict[str, object], expected: int) -> None:
    assert health_class(card(**changes)) == expected


class Cluster:
    """A registry with nodes, and a clock."""

    def __init__(self, *names: str) -> None:
        self.now = 100.0
        self.registry = Registry(
            store_id="s",
            version=0,
            resumable=(0, 0),
            tombstone_limit=10,
            record=lambda *_, **__: None,
            monotonic=lambda: self.now,
            wall=lambda: self.now,
        )
        for name in names:
            self.report(name)
        self.map = ClusterMap(self.registry, moment=lambda: Moment(self.now, self.now))

    def report(self, name: str, **state: object) -> None:
        node = self.registry.add_node(f"uid-{name}", name)
        self.registry.apply_snapshot(node, (1, 1), m.state(name, **state))  # type: ignore[arg-type]

    def cells(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(asyncio.run(self.map.cells()))
        return found


def test_the_map_is_by_name_and_made_once_in_a_while() -> None:
    cluster = Cluster("b", "a")
    made = cluster.cells()
    assert made["pools"] == ["default"]
    assert made["nodes"] == [[name, 1, [0], [0] * 8] for name in "ab"]
    cluster.report("c", gpus=[m.gpu("c", 0, health=types_pb2.HEALTH_STATE_LOST, available_tflops=0)])
    assert cluster.cells() == made
    cluster.now += KEEP_SECONDS + 0.1
    assert cluster.cells()["nodes"][2] == ["c", 1, [0], [MISSING * CLASS_STEP + 100]]


def test_one_node_in_full() -> None:
    cluster = Cluster("a")
    found = cluster.map.node("a")
    assert found is not None
    assert found["node"]["node"]["identity"]["name"] == "a"
    assert [each["object"]["name"] for each in found["gpus"]] == [m.name("a", index) for index in range(8)]
    assert cluster.map.node("b") is None


def test_the_page_loads_nothing_and_runs_only_what_is_its_own() -> None:
    html = "<style>s{}</style><script>1</script>"
    page = _page(html)
    policy = dict(page.headers)["Content-Security-Policy"]
    for element, content in (("script", b"1"), ("style", b"s{}")):
        assert f"{element}-src 'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    from importlib import resources

    real = resources.files("hypervisor.aggregator").joinpath("page.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|@import|url\(", real)
    constants = re.search(r"STEP = (\d+), UNKNOWN_USE = (\d+)", real)
    assert constants is not None
    assert (int(constants[1]), int(constants[2])) == (CLASS_STEP, USE_UNKNOWN)
