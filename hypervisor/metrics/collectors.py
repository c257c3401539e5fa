"""The table of collectors: one row a subject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import Metric

from hypervisor.metrics import allocation, capacity, driver, feeds, gpu, health, memory_sources, mig, node, workers
from hypervisor.metrics.view import MetricsView

Collect = Callable[[MetricsView], Iterable[Metric]]

COLLECTORS: Mapping[str, Collect] = {
    "node": node.collect_node,
    "gpu": gpu.collect,
    "health": health.collect,
    "memory_sources": memory_sources.collect,
    "capacity": capacity.collect,
    "allocation": allocation.collect,
    "workers": workers.collect,
    "refusals": node.collect_refusals,
    "driver": driver.collect,
    "mig": mig.collect,
    "feeds": feeds.collect,
    "process": node.collect_process,
}
