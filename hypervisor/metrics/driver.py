"""The gpu-reader and the driver behind it: calls of NVML, failures, readings that were not believed."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from hypervisor.gpu import GpuReaderStatistics
from hypervisor.metrics.family import Families
from hypervisor.metrics.view import MetricsView


def collect(view: MetricsView) -> Iterable[Metric]:
    """What the reader has counted since the start of the daemon, over all its children."""
    statistics = view.statistics.get("gpu_reader")
    if not isinstance(statistics, GpuReaderStatistics):
        return
    families = Families()
    for (call, code), count in statistics.calls.items():
        families.counter("nvml_calls_total", "Calls of NVML by return code", count, call=call, code=str(code))
    for call, seconds in statistics.call_seconds.items():
        families.counter("nvml_call_seconds_total", "Time spent in calls of NVML", seconds, call=call)
    for (uuid, field, reason), count in statistics.rejected_readings.items():
        text = "Readings that were not believed"
        families.counter("reading_rejected_total", text, count, uuid=uuid, field=field, reason=reason)
    families.gauge("nvml_initialized", "1 while a reader holds the driver", float(statistics.child_pid is not None))
    families.counter("nvml_reinits_total", "Starts of the reader after the first", statistics.restarts)
    families.counter("gpu_reader_rounds_total", "Rounds of reading all GPUs", statistics.rounds)
    families.counter("gpu_reader_failures_total", "Readers that failed", statistics.failures)
    families.counter("gpu_reader_hangs_total", "Readers that hung in the driver", statistics.hangs)
    families.gauge("gpu_reader_round_seconds", "Time of the last round", statistics.last_round_seconds)
    families.gauge(
        "gpu_reader_lingering", "Readers that were ended and still hang in the driver", statistics.lingering_children
    )
    yield from families.families()
