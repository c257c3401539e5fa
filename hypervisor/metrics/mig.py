"""How cards are divided by MIG, and what became of the attempts to."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from hypervisor.metrics.family import Families
from hypervisor.metrics.view import MetricsView
from hypervisor.workers.mig.partitions import PartitionsStatistics


def collect(view: MetricsView) -> Iterable[Metric]:
    """Each instance with its card and what holds it; of ours how many by profile, those of others, operations since
    the start, cards that wait for a reset."""
    yield from _instances(view)
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


def _instances(view: MetricsView) -> Iterable[Metric]:
    """Readings and limits of an instance are those of any device, under its own UUID; here is what joins them to the
    card."""
    families = Families()
    held = {grant.gpu_uuid for allocation in view.snapshot.allocations for grant in allocation.grants}
    for gpu in view.snapshot.gpus:
        partition = gpu.identity.partition
        if partition is None:
            continue
        families.gauge(
            "mig_instance_allocated",
            "1 when the MIG instance is granted to somebody",
            float(gpu.identity.uuid in held),
            uuid=gpu.identity.uuid,
            parent_uuid=partition.parent_uuid,
            profile=partition.profile,
            gpu_instance=str(partition.gpu_instance_id),
            compute_instance=str(partition.compute_instance_id),
        )
    yield from families.families()
