"""The /metrics page: a golden page for a known node, and what becomes of subjects that fail or are not there."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import structlog
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from hypervisor.gpu import GpuReaderStatistics
from hypervisor.gpu.health.circuit import Circuit, CircuitState
from hypervisor.gpu.health.facts import HealthFacts
from hypervisor.gpu.health.monitor import HealthStatistics
from hypervisor.metrics import COLLECTORS, Exposition, MetricsView
from hypervisor.model import AllocationUsage, Figure, LearnedCost, NodeIdentity, NodeSnapshot, RefusalReason, Revision
from hypervisor.node.derive import Ratios, derive_gpus
from tests import builders
from tests import node_values as v

GOLDEN = Path(__file__).parents[2] / "golden" / "metrics.txt"
# What is different in each run: times that collectors took, and the process itself.
STEADY = {name: collect for name, collect in COLLECTORS.items() if name != "process"}


@dataclass(frozen=True)
class FeedOfFeed:
    watchers: int
    published: int
    reason: str = "not a number"


@dataclass(frozen=True)
class SomeStatistics:
    waiting: int
    published_total: int
    by_phase: dict
    calls: tuple
    inner: FeedOfFeed
    name: str = "not a number"


def view(allocations=(), usages=(), devices=None) -> MetricsView:
    inventory = v.inventory(*(devices or (v.device(0), v.device(1))))
    gpus = derive_gpus(
        inventory,
        allocations,
        foreign={device.identity.uuid: 0 for device in inventory.devices},
        ratios=Ratios(tflops=1.0, vram=1.0),
        previous={},
        now=5.0,
    )
    snapshot = NodeSnapshot(
        identity=NodeIdentity(name="node", uid="uid", boot_id="boot"),
        revision=Revision(2, 17),
        version="0.1.0",
        system=inventory.system,
        started_at=1000.0,
        conditions=(),
        gpus=gpus,
        allocations=tuple(allocations),
        usages=tuple(usages),
        workers=(builders.make_worker(),),
        simulated=True,
    )
    return MetricsView(
        snapshot=snapshot,
        wall_time=2000.0,
        monotonic_time=100.5,
        statistics={
            "feed": SomeStatistics(
                waiting=2,
                published_total=17,
                by_phase={"active": 3},
                calls=(("ListGpus", "OK", 5), ("Allocate", "NOT_FOUND", 1)),
                inner=FeedOfFeed(watchers=4, published=9),
            ),
            "gpu_reader": GpuReaderStatistics(
                child_pid=77,
                restarts=1,
                rounds=12,
                failures=2,
                hangs=1,
                last_round_seconds=0.25,
                lingering_children=0,
                calls={("nvmlDeviceGetMemoryInfo_v2", 0): 8, ("nvmlDeviceGetMemoryInfo_v2", 15): 1},
                call_seconds={"nvmlDeviceGetMemoryInfo_v2": 0.5},
                rejected_readings={(v.uuid(0), "total_memory", "zero"): 1},
                health=HealthStatistics(
                    circuits={(v.uuid(0), "total_memory"): Circuit(CircuitState.OPEN, 4, 0, 2)},
                    capacity_guard_trips=1,
                    capacity_held=True,
                    xids={(v.uuid(0), 13): 2},
                    xid_last_at={(v.uuid(0), 13): 1990.0},
                    transitions={(v.uuid(0), "healthy", "unhealthy", "RecoveryNeeded"): 1},
                    facts={
                        v.uuid(0): HealthFacts(
                            recovery_action=1,
                            rows_corrected=3,
                            rows_uncorrected=1,
                            remap_pending=True,
                            remap_failed=False,
                            ecc_corrected_volatile=5,
                            ecc_uncorrected_aggregate=7,
                            clock_reasons=0x44,
                            links_up=(True, False, None),
                            fabric_state=2,
                            licensed=False,
                            throttled_seconds=(("hardware_thermal", 2.5),),
                            link_errors=(("crc", (0, 7, None)),),
                        )
                    },
                    log_records=40,
                    log_failure="/dev/kmsg: Operation not permitted",
                    memory_failure="",
                    events_failure=0,
                    gpus_on_bus=2,
                    dropped_occurrences=0,
                ),
                nameplate_bytes={v.uuid(0): v.device(0).vram_bytes.value * 2},
            ),
        },
        refusals={RefusalReason.INSUFFICIENT_VRAM: 3},
    )


def render(shown: MetricsView, *, accept: str = "", encoding: str = "", collectors=STEADY):
    async def main():
        return await Exposition(lambda: shown, collectors=collectors).render(accept, encoding)

    return trio.run(main)


def full_view() -> MetricsView:
    allocations = [v.allocation("pod-a", owner=v.pod("a")), v.allocation("exec-1", index=1)]
    return view(allocations, [v.usage("pod-a", pids=(7,)), v.usage("exec-1", index=1)])


def steady(text: str) -> str:
    return "".join(
        line
        for line in text.splitlines(keepends=True)
        if not line.startswith("gpuhv_collector_duration_seconds{")
        and 'python="' not in line
        and not (line.startswith("gpuhv_allocation_failures_total{") and line.endswith(" 0.0\n"))
    )


def test_golden_page() -> None:
    """Set UPDATE_GOLDEN=1 to write the page anew, and read the difference."""
    text = steady(render(full_view()).body.decode())
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_sources_of_memory_are_compared_where_both_are_known() -> None:
    """The article's 5.3: above 15 % is a finding; half of the nameplate is 50 %."""
    found = values(render(full_view()), "gpuhv_memory_source_deviation_ratio")
    assert found[("pair", "nameplate_nvml"), ("uuid", v.uuid(0))] == 0.5
    assert (("pair", "nameplate_nvml"), ("uuid", v.uuid(1))) not in found


def series(page, parse=parse_text) -> dict:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(page.body.decode())
        for sample in family.samples
    }


def values(page, name: str) -> dict:
    return {labels: value for (found, labels), value in series(page).items() if found == name}


def test_both_formats_say_the_same() -> None:
    plain = render(full_view())
    openmetrics = render(full_view(), accept="application/openmetrics-text; version=1.0.0")
    assert plain.content_type.startswith("text/plain; version=0.0.4")
    assert openmetrics.content_type.startswith("application/openmetrics-text")
    assert openmetrics.body.endswith(b"# EOF\n")
    durations = "gpuhv_collector_duration_seconds"
    first, second = series(plain), series(openmetrics, parse_openmetrics)
    assert {key: value for key, value in first.items() if key[0] != durations} == {
        key: value for key, value in second.items() if key[0] != durations
    }


@pytest.mark.parametrize(
    ("header", "compressed"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False), ("gzip;q=0.0", False), ("", False), ("br", False)],
)
def test_gzip_where_it_is_wanted(header: str, compressed: bool) -> None:
    page = render(full_view(), encoding=header)
    assert (page.encoding == "gzip") is compressed
    body = gzip.decompress(page.body) if compressed else page.body
    assert b"gpuhv_gpu_memory_total_bytes" in body


def test_what_is_not_known_has_no_series() -> None:
    readings = replace(v.readings(), power_watts=Figure.absent("not supported"))
    page = render(view(devices=(v.device(0, readings=readings, tflops=Figure.absent("unknown model")),)))
    for name in ("gpu_power_watts", "capacity_tflops", "allocated_tflops", "available_tflops"):
        assert not values(page, f"gpuhv_{name}"), name
    assert values(page, "gpuhv_capacity_memory_bytes")


def test_series_of_a_pod_go_with_the_pod() -> None:
    assert any("pod_gpu_memory_limit" in name for name, _ in series(render(full_view())))
    gone = series(render(view()))
    assert not [name for name, _ in gone if name.startswith("gpuhv_pod_gpu_") and "unattributed" not in name]


FUNCTIONS = "gpuhv_pod_gpu_function_cost_seconds"


def paced(*costs: LearnedCost, name: str = "trainer") -> AllocationUsage:
    usage = builders.make_device_usage(gpu_uuid=v.device(0).identity.uuid, pacing=builders.make_pacing(costs=costs))
    return builders.make_usage(name, devices=(usage,))


def told(page: str) -> dict:
    return {(dict(at)["function"], dict(at)["kind"]): value for at, value in values(page, FUNCTIONS).items()}


def test_learned_costs_are_of_the_functions_that_were_charged_most() -> None:
    costs = [builders.make_cost(f"kernel{place}", seconds=0.001 * (place + 1)) for place in range(9)]
    page = render(view([v.allocation("trainer")], [paced(*costs)]))
    assert told(page) == {(f"kernel{place}", "function"): pytest.approx(0.001 * (place + 1)) for place in range(5)}
    (at, *_) = values(page, FUNCTIONS)
    assert set(dict(at)) == {"namespace", "pod", "container", "allocation", "uuid", "function", "kind"}
    assert not values(render(view([v.allocation("trainer")], [paced()])), FUNCTIONS)
    assert not values(render(view()), FUNCTIONS), "they go with the Pod"


def test_a_function_in_several_shapes_and_graphs_have_one_series_each() -> None:
    costs = [
        builders.make_cost(seconds=0.001, launches=30),
        builders.make_cost(seconds=0.002, launches=10),
        builders.make_cost("a", graph=True, seconds=0.01, launches=0),
        builders.make_cost("b", graph=True, seconds=0.03, launches=0),
    ]
    page = render(view([v.allocation("trainer")], [paced(*costs)]))
    assert told(page) == {("sgemm", "function"): pytest.approx(0.00125), ("", "graph"): pytest.approx(0.02)}


def test_costs_of_two_pods_of_one_name_do_not_add_up() -> None:
    shown = view(
        [v.allocation("first", owner=v.pod("same")), v.allocation("second", owner=v.pod("same"))],
        [paced(builders.make_cost(), name="first"), paced(builders.make_cost(), name="second")],
    )
    assert told(render(shown)) == {("sgemm", "function"): pytest.approx(0.0012)}


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
@pytest.mark.parametrize(
    "name", ['a"} 1\nevil 2', "back\\slash", "\ud800half", "\x00\x1b[31m", "ä\u202e\ufffd", "x" * 5000, ""]
)
def test_no_name_of_a_function_spoils_the_page(name: str, accept: str) -> None:
    costs = (builders.make_cost(name), builders.make_cost("good"))
    page = render(view([v.allocation("trainer")], [paced(*costs)]), accept=accept)
    parse = parse_openmetrics if accept else parse_text
    shown = [dict(labels)["function"] for at, labels in series(page, parse) if at == FUNCTIONS]
    assert len(shown) == 2
    assert "good" in shown
    assert all(len(each) <= 71 and each.isascii() and each.isprintable() for each in shown)
    assert not [at for at, _ in series(page, parse) if at == "evil"]


def test_pods_of_the_same_name_add_up_instead_of_spoiling_the_scrape() -> None:
    """HAMi 863: series are of a Pod and a device."""
    shown = view([v.allocation("first", owner=v.pod("same")), v.allocation("second", owner=v.pod("same"))])
    (total,) = values(render(shown), "gpuhv_pod_gpu_memory_limit_bytes").values()
    assert total == 16 * v.GIB


def test_a_failing_collector_is_a_metric_and_not_an_outage() -> None:
    def fail(_: MetricsView) -> Iterable:
        raise RuntimeError("broken")

    with structlog.testing.capture_logs() as logs:
        page = render(full_view(), collectors={"broken": fail} | STEADY)
    success = {dict(labels)["collector"]: value for labels, value in values(page, "gpuhv_collector_success").items()}
    assert success == {"broken": 0.0} | dict.fromkeys(STEADY, 1.0)
    assert values(page, "gpuhv_gpu_memory_total_bytes")
    assert [log["collector"] for log in logs] == ["broken"]


def test_fragmentation_counts_what_lies_on_cards_in_use() -> None:
    idle = values(render(view()), "gpuhv_fragmentation_ratio")
    assert set(idle.values()) == {0.0}
    half = values(render(view([v.allocation(vram_bytes=40 * v.GIB, share_ppm=500_000)])), "gpuhv_fragmentation_ratio")
    # Of each card the driver keeps 1 GiB of 80.
    assert list(half.values()) == [pytest.approx(1 / 3), pytest.approx(39 / (39 + 79))]
    full = [v.allocation(str(index), index=index, vram_bytes=v.VRAM, share_ppm=1_000_000) for index in (0, 1)]
    assert not values(render(view(full)), "gpuhv_fragmentation_ratio")


def test_page_is_kept_for_a_second_and_made_once_for_all_who_wait() -> None:
    taken = []

    def take() -> MetricsView:
        taken.append(1)
        return full_view()

    async def main() -> None:
        exposition = Exposition(take, collectors=STEADY, keep_seconds=60)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(exposition.render, "", "")
        assert len(taken) == 1
        # A client that varies its headers gets no page of its own, and none of our memory.
        for version in range(20):
            await exposition.render(f"text/plain; version=0.{version}.0", "gzip")
        assert len(taken) == 2

    trio.run(main)


def test_no_label_holds_a_pid_or_a_path() -> None:
    labels = {label for _, labels in series(render(full_view())) for label, _ in labels}
    assert not labels & {"pid", "container_id", "message", "path", "directory"}
