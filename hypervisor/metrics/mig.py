"""How cards are divided by MIG, and what became of the attempts to."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from hypervisor.metrics.family import Families
from hypervisor.metrics.view import MetricsView
from hypervisor.workers.mig.partitions import PartitionsStatistics


def collect(view: MetricsView) -> Iterable[Metric]:
    """Instances of ours by profile, those of others, operations since the start, cards that wait for a reset."""
    statistics = view.statistics.get("mig")
    if not isinstance(statistics, PartitionsStatistics):
        return
    families = Families()
    for profile, count in statistics.instances.items():
        families.gauge("mig_instances", "MIG instances that this daemon made", float(count), profile=profile)
    families.gauge("mig_foreign_instances", "MIG instances that others made", float(statistics.foreign_instances))
    for (operation, result), count in statistics.operations_total.items():
        families.counter("mig_operations_total", "Changes of MIG instances", count, operation=operation, result=result)
    families.gauge(
        "mig_mode_pending", "Cards whose MIG mode changes with their next reset", float(statistics.mode_pending)
    )
    yield from families.families()
