"""docs/metrics.md, from the source of the collectors and from the statistics of the daemon's feeds."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from buildsupport.reference.markdown import MADE, code, table
from buildsupport.reference.metric_calls import PREFIX, Family, families
from hypervisor.metrics.feeds import exported_name

ROOM = Path(__file__).parents[2] / "hypervisor"

_HEAD = f"""# Metrics

{MADE}

`/metrics` of a node (port 8001) and of the aggregator (port 8002), in the Prometheus text format or OpenMetrics, as the Accept header asks. A page reads the last snapshot: a scrape never calls the driver, however often it comes.

- **Unknown is not zero.** What the driver does not tell, or tells unbelievably, has no series. An alert on a figure that may be missing needs `absent()` or a join with `gpuhv_gpu_info`.
- Labels of a GPU are its `uuid`; `gpuhv_gpu_info` has the rest for joins: `gpuhv_gpu_power_watts * on (uuid) group_left (model) gpuhv_gpu_info`.
- Series of a Pod have `namespace`, `pod` and `container`; those of a share outside Kubernetes have `allocation` and leave the others empty. They go when the Pod goes. No label holds a pid, a container id or free text, but for `function`, which a program of the Pod has named: at most five for each device of a Pod, of at most 71 printable letters.
- Bytes, seconds, watts, degrees Celsius, joules and ratios (1 is the whole) are in the name.
- A collector that fails costs its own families and nothing else: `gpuhv_collector_success` is 0 for it.
- `process_…` are the daemon's own CPU, memory and file descriptors, under the names of all Prometheus clients.
"""  # noqa: E501 - Markdown has one line a paragraph

# (heading, module)
_NODE = (
    ("Node", "metrics/node.py"),
    ("GPU", "metrics/gpu.py"),
    ("Health", "metrics/health.py"),
    ("Sources of memory figures", "metrics/memory_sources.py"),
    ("Capacity", "metrics/capacity.py"),
    ("Pods and allocations", "metrics/allocation.py"),
    ("Workers", "metrics/workers.py"),
    ("Driver", "metrics/driver.py"),
    ("MIG", "metrics/mig.py"),
    ("Collectors", "metrics/exposition.py"),
)
_AGGREGATOR = ("aggregator/metrics.py", "aggregator/sqlite_store.py", "aggregator/kubernetes/store.py")
# Modules that only pass families on, or make them from other things.
PASSING = ("metrics/family.py", "metrics/feeds.py")


@dataclass(frozen=True)
class Feed:
    """A part of the daemon with statistics. source is module:class, of what its statistics() returns."""

    name: str
    source: str
    about: str


FEEDS = (
    Feed("state", "hypervisor.node.state:StateStatistics", "The node's state and who follows it"),
    Feed("commands", "hypervisor.node.commands:CommandStatistics", "Commands that change something"),
    Feed("control", "hypervisor.node.control:ControlStatistics", "The compute control"),
    Feed("http", "hypervisor.http.server:HttpStatistics", "The HTTP server"),
    Feed("rpc", "hypervisor.rpc.node_server:RpcStatistics", "The gRPC server"),
    Feed("allocations", "hypervisor.allocations:AllocationsStatistics", "Allocations and their files"),
    Feed("journal", "hypervisor.node.journal:JournalStatistics", "The journal of events"),
    Feed("workers", "hypervisor.workers.supervisor:SupervisorStatistics", "The supervisor of workers"),
    Feed("doctor", "hypervisor.node.inspecting:InspectionStatistics", "The doctor's checks, run from time to time"),
    Feed("reporter", "hypervisor.rpc.report_client:ReportStatistics", "Reports to an aggregator, with `report_to`"),
    Feed(
        "declarations",
        "hypervisor.node.declarations:DeclarationsStatistics",
        "Declared allocations, with `allocations_dir`",
    ),
    Feed("device_plugin", "hypervisor.rpc.device_plugin:PluginStatistics", "Kubelet's device plugin API"),
    Feed("pods", "hypervisor.node.kubernetes_pods:PodsStatistics", "Pods of this node"),
    Feed("pod_events", "hypervisor.node.kubernetes_events:PodEventsStatistics", "Events on Pods"),
    Feed("binder", "hypervisor.node.kubernetes_binder:BinderStatistics", "Grants that are bound to Pods"),
    Feed("card_use", "hypervisor.node.kubernetes_use:UseStatistics", "Use of cards by others"),
)


def document() -> str:
    """The whole page."""
    return "\n".join(_lines())


def node_families() -> list[Family]:
    """All families of a node but those of its feeds."""
    return [family for _, module in _NODE for family in families(ROOM / module)]


def aggregator_families() -> list[Family]:
    """All families of the aggregator."""
    return [family for module in _AGGREGATOR for family in families(ROOM / module)]


def feed_families(feed: Feed) -> list[Family]:
    """The families of a feed, from the fields of its statistics."""
    module, _, name = feed.source.partition(":")
    statistics = getattr(importlib.import_module(module), name)
    return list(_fields(feed.name, statistics))


def modules_with_families() -> set[str]:
    """What this page reads, below the package's folder."""
    return {*(module for _, module in _NODE), *_AGGREGATOR}


def _fields(path: str, statistics: type[Any]) -> Iterator[Family]:
    hints = get_type_hints(statistics)
    for field in fields(statistics):
        hint = hints[field.name]
        if hint in (int, float, bool):
            yield _feed_family(f"{path}_{field.name}", field.name, ())
        elif get_origin(hint) is Mapping:
            yield _feed_family(f"{path}_{field.name}", field.name, ("kind",))
        elif get_origin(hint) is tuple:
            yield _feed_family(f"{path}_{field.name}_total", f"{field.name}_total", ("method", "code"))
        elif is_dataclass(hint) and isinstance(hint, type):
            yield from _fields(f"{path}_{field.name}", hint)


def _feed_family(path: str, field: str, labels: tuple[str, ...]) -> Family:
    name = exported_name(path, field)
    text = f"{path.replace('_', ' ')}, as the feed counts it"
    return Family(PREFIX + name, "counter" if name.endswith("_total") else "gauge", text, labels)


def _lines() -> Iterator[str]:
    yield _HEAD
    yield "## Of a node\n"
    for heading, module in _NODE:
        yield from (f"### {heading}\n", *_table(families(ROOM / module)), "")
    yield "## Of the parts of a node's daemon\n"
    yield "Every queue and every feed counts what passes through it; a part that is not in use has no series.\n"
    for feed in FEEDS:
        yield from (f"### `{feed.name}`: {feed.about}\n", *_feed_table(feed), "")
    yield "## Of the aggregator\n"
    yield "No series a GPU: those are the nodes' own.\n"
    yield from (*_table(aggregator_families()), "")


def _table(found: Iterable[Family]) -> Iterator[str]:
    rows = ((code(each.name), each.kind, ", ".join(map(code, each.labels)), each.text) for each in found)
    return table(("metric", "type", "labels", "meaning"), rows)


def _feed_table(feed: Feed) -> Iterator[str]:
    rows = ((code(each.name), each.kind, ", ".join(map(code, each.labels))) for each in feed_families(feed))
    return table(("metric", "type", "labels"), rows)
