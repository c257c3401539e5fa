"""Supervised workers: one series a worker, gone with it."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from hypervisor.metrics.family import Families
from hypervisor.metrics.view import MetricsView
from hypervisor.model import WorkerPhase


def collect(view: MetricsView) -> Iterable[Metric]:
    """Phase, readiness, restarts, start and limits of each worker."""
    families = Families()
    for worker in view.snapshot.workers:
        labels = {"worker": worker.worker_id, "allocation": worker.allocation_id}
        for phase in WorkerPhase:
            families.gauge(
                "worker_phase",
                "1 for the phase that the worker is in",
                float(worker.phase is phase),
                phase=phase.value,
                **labels,
            )
        families.gauge("worker_ready", "1 when the worker's readiness probe passes", float(worker.ready), **labels)
        families.counter("worker_restarts_total", "Starts of the worker after its first one", worker.restarts, **labels)
        families.gauge(
            "worker_start_time_seconds",
            "Start of the worker's current or last run, seconds since 1970",
            worker.started_at or None,
            **labels,
        )
        for uuid in worker.gpu_uuids:
            families.gauge(
                "worker_sm_limit_ratio",
                "Share of the SMs that the worker's clients can use, as the hardware rounds it",
                None if worker.effective_sm_percent is None else worker.effective_sm_percent / 100,
                uuid=uuid,
                **labels,
            )
            families.gauge(
                "worker_memory_limit_bytes",
                "VRAM that each of the worker's clients can use",
                worker.memory_limit_bytes,
                uuid=uuid,
                **labels,
            )
    yield from families.families()
