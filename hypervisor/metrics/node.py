"""The node, its daemon, and what it has refused."""

from __future__ import annotations

import platform
from collections.abc import Iterable

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric

from hypervisor.metrics.family import Families, info
from hypervisor.metrics.view import MetricsView
from hypervisor.model import ConditionStatus, RefusalReason


def collect_node(view: MetricsView) -> Iterable[Metric]:
    """Versions, readiness, conditions and the revision of the state."""
    snapshot = view.snapshot
    yield info(
        "build", "Version of the hypervisor", [{"version": snapshot.version, "python": platform.python_version()}]
    )
    yield info(
        "node",
        "Versions on the node",
        [
            {
                "driver_version": snapshot.system.driver_version,
                "nvml_version": snapshot.system.nvml_version,
                "cuda_version": snapshot.system.cuda_version,
                "kernel": snapshot.system.kernel_version,
                "simulated": "true" if snapshot.simulated else "false",
            }
        ],
    )
    families = Families()
    for condition in snapshot.conditions:
        families.gauge(
            "node_condition",
            "1 when the condition is true; all but Ready are there only while something is wrong",
            float(condition.status is ConditionStatus.TRUE),
            condition=condition.type,
            reason=condition.code.value,
        )
    families.gauge("node_epoch", "Starts of the daemon on this state directory", snapshot.revision.epoch)
    families.gauge("node_revision", "Revision of the state", snapshot.revision.revision)
    families.gauge("node_start_time_seconds", "Start of the daemon, seconds since 1970", snapshot.started_at)
    families.gauge("gpus", "GPUs that are known", len(snapshot.gpus))
    families.gauge("allocations", "Allocations that exist", len(snapshot.allocations))
    yield from families.families()


def collect_refusals(view: MetricsView) -> Iterable[Metric]:
    """Refusals by reason; every reason from the start, so that a rate can be taken of the first."""
    families = Families()
    for reason in RefusalReason:
        families.counter(
            "allocation_failures_total",
            "Commands that were refused",
            view.refusals.get(reason, 0),
            reason=reason.value,
        )
    yield from families.families()


def collect_process(_: MetricsView) -> Iterable[Metric]:
    """CPU, memory and file descriptors of the daemon itself, under the names that all Prometheus clients use."""
    return ProcessCollector(registry=None).collect()
