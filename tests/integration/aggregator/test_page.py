"""The page of the cluster, in a real browser that reaches nothing but this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypervisor.v1 import node_pb2, types_pb2
from tests import browser
from tests.browser import Browser
from tests.fleet import messages as m
from tests.fleet.process import AggregatorProcess, wait_until
from tests.fleet.stream import ReportStream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "there is a browser"),
]
R = m.revision
COLOURS = {"degraded": (217, 164, 0), "no work": (224, 96, 0), "lost": (176, 0, 32)}


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(tmp_path, heartbeat_seconds=60)
    process.start()
    yield process
    process.close()


def mixed() -> list[types_pb2.Gpu]:
    """Idle, half promised, fully promised, degraded, taking no work, lost."""
    gpus = [m.gpu("rack-a", index) for index in range(6)]
    gpus[1].capacity.available_tflops.value = 989 / 2
    gpus[2].capacity.available_vram.bytes = 0
    gpus[3].health = types_pb2.HEALTH_STATE_DEGRADED
    gpus[4].health = types_pb2.HEALTH_STATE_UNHEALTHY
    gpus[4].allocatable = False
    gpus[4].conditions.add(type="Unhealthy", status="True", message="an <b>Xid</b> 79")
    gpus[5].health = types_pb2.HEALTH_STATE_LOST
    gpus[1].model = "<img src=x onerror=alert(1)>"
    return gpus


def loaded(window: Browser, aggregator: AggregatorProcess, nodes: int) -> None:
    window.open(aggregator.http + "/")
    wait_until(lambda: f"{nodes} node{'s' if nodes > 1 else ''} ·" in summary(window), "the map")


def summary(window: Browser) -> str:
    return str(window.run("return document.getElementById('summary').textContent"))


def place(window: Browser, node: int, gpu: int) -> tuple[float, float]:
    """The middle of a card's square, from the layout that the page tells."""
    data = window.run("const c=document.getElementById('map');const b=c.getBoundingClientRect();"
                      "return {...c.dataset, x:b.left, y:b.top}")  # fmt: skip
    cell, columns, across, wide, high = (int(data[name]) for name in ("cell", "columns", "across", "wide", "high"))
    x = data["x"] + node % columns * wide + gpu % across * cell + cell / 2
    y = data["y"] + node // columns * high + gpu // across * cell + cell / 2
    return x, y


def colour(window: Browser, node: int, gpu: int) -> tuple[int, ...]:
    x, y = place(window, node, gpu)
    return tuple(
        window.run(
            "const c=document.getElementById('map'),b=c.getBoundingClientRect(),s=devicePixelRatio;"
            "return [...c.getContext('2d').getImageData((arguments[0]-b.left)*s,(arguments[1]-b.top)*s,1,1).data]",
            x,
            y,
        )[:3]
    )


def panel(window: Browser) -> str:
    return str(window.run("const p=document.getElementById('panel');return p.hidden?'':p.innerText"))


def test_colours_and_drill_down(window: Browser, aggregator: AggregatorProcess, tmp_path: Path) -> None:
    with ReportStream(aggregator.unix) as a, ReportStream(aggregator.unix) as b:
        a.send(m.hello("rack-a"), m.snapshot(R(1, 1), m.state("rack-a", gpus=mixed())))
        b.send(m.hello("rack-b"), m.snapshot(R(1, 1), m.state("rack-b", labels={"tensor-fusion.ai/pool-t": "true"})))
        a.wait_for_revision(1, 1)
        b.wait_for_revision(1, 1)
        loaded(window, aggregator, 2)
        idle, half, full = (colour(window, 0, gpu) for gpu in range(3))
        # The fuller, the darker.
        assert sum(idle) > sum(half) > sum(full)
        assert colour(window, 1, 0) == idle
        for gpu, name in ((3, "degraded"), (4, "no work"), (5, "lost")):
            assert colour(window, 0, gpu) == COLOURS[name]
        for words in ("14 GPUs", "1 degraded", "1 takes no work", "1 missing or lost"):
            assert words in summary(window)
        # Down into a card.
        window.click_at(*place(window, 0, 4))
        wait_until(lambda: m.uuid("rack-a", 4) in panel(window), "the panel")
        chosen = window.run("return [...document.querySelectorAll('tr.chosen')].map(r=>r.dataset.uuid)")
        assert chosen == [m.uuid("rack-a", 4)]
        for words in (
            "takes no work",
            "989 of 989",
            "80.0 GiB of 80.0 GiB",
            "25 %",
            "an <b>Xid</b> 79",
            "<img src=x onerror=alert(1)>",
        ):
            assert words in panel(window)
        assert window.run("return document.querySelectorAll('#panel img, #panel b').length") == 0
        window.picture(tmp_path / "page.png")
        # A link to it works by itself, and goes back.
        window.open(aggregator.http + "/#rack-b%2F3")
        wait_until(lambda: m.uuid("rack-b", 3) in panel(window), "the panel of the link")
        assert window.run("return document.querySelector('tr.chosen').dataset.uuid") == m.uuid("rack-b", 3)
        # By pool, and by name.
        window.run(
            "const p=document.getElementById('pool');p.value='t';p.dispatchEvent(new Event('input',{bubbles:true}))"
        )
        wait_until(lambda: "1 node · 8 GPUs" in summary(window), "the pool")
        window.run(
            "const p=document.getElementById('pool');p.value='';p.dispatchEvent(new Event('input',{bubbles:true}))"
        )
        window.type_into("#search", "rack-a\ue007")
        wait_until(lambda: m.uuid("rack-a", 0) in panel(window), "the node by its name")
        asked = window.run("return performance.getEntriesByType('resource').map(r=>r.name)")
        assert asked
        assert all(url.startswith(aggregator.http) for url in asked)
        assert window.complaints() == []


def test_changes_come_by_themselves_and_an_outage_is_said(window: Browser, aggregator: AggregatorProcess) -> None:
    with ReportStream(aggregator.unix) as stream:
        stream.send(m.hello("rack-a"), m.snapshot(R(1, 1), m.state("rack-a")))
        stream.wait_for_revision(1, 1)
        loaded(window, aggregator, 1)
        before = colour(window, 0, 0)
        stream.send(m.delta(R(1, 1), R(1, 2), node_pb2.NodeDelta(gpus=[m.gpu("rack-a", 0, available_tflops=1)])))
        wait_until(lambda: colour(window, 0, 0) != before, "the change")
    aggregator.kill()
    wait_until(lambda: "can't be reached; what is shown is old" in summary(window), "the outage")
    assert re.fullmatch(r"[\d.]+", window.run("return document.getElementById('map').dataset.cell"))


def test_a_cluster_of_thousands_fits_and_an_empty_one_says_so(window: Browser, aggregator: AggregatorProcess) -> None:
    window.open(aggregator.http + "/")
    wait_until(lambda: "no node has reported yet" in summary(window), "the empty cluster")
    # As the map of ten thousand nodes, drawn by the page's own functions.
    spent = window.run(
        "data={pools:['default'],nodes:Array.from({length:10000},(_,n)=>['node-'+n,1,[0],Array(8).fill(n%100)])};"
        "const begun=performance.now();refresh();return performance.now()-begun"
    )
    assert "10000 nodes · 80000 GPUs" in summary(window)
    assert spent < 5000
    assert window.run("return document.getElementById('map').getBoundingClientRect().width<=innerWidth")
