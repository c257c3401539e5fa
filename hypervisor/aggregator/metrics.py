"""/metrics of the aggregator: sums and the state of each queue. No series a GPU: those are the nodes' own.

Counting eighty thousand objects by phase takes milliseconds, so that a page is kept for a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from hypervisor.aggregator.event_log import EventLogStatistics
from hypervisor.aggregator.gpu_feed import FeedStatistics
from hypervisor.aggregator.registry import Registry, RegistryStatistics
from hypervisor.aggregator.report_service import ReportStatistics
from hypervisor.aggregator.writer import WriterStatistics
from hypervisor.metrics.family import Families
from hypervisor.rpc.server_certificates import ServerCertificates
from hypervisor.v1 import cluster_pb2

KEEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a page is made of."""

    registry: RegistryStatistics
    reports: ReportStatistics
    events: EventLogStatistics
    writer: WriterStatistics
    feed: FeedStatistics
    watchers: int
    refused_calls: tuple[tuple[str, int], ...]
    certificates: ServerCertificates | None
    calls: tuple[tuple[str, str, int], ...]
    store: Callable[[Families], None]


class MetricsPage:
    """Makes the page when it is asked for."""

    def __init__(self, registry: Registry, figures: Callable[[], Figures], *, monotonic: Callable[[], float]) -> None:
        self._registry = registry
        self._figures = figures
        self._monotonic = monotonic
        self._kept: tuple[float, str, bytes] | None = None

    def render(self, accept: str) -> tuple[str, bytes]:
        """Content type and body, in the format that the Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        kept = self._kept
        if kept is None or kept[1] != content_type or self._monotonic() - kept[0] > KEEP_SECONDS:
            families = tuple(self._collect())
            # The encoders only call collect(); the class is prometheus_client's word for that.
            kept = (self._monotonic(), content_type, encode(cast("Collector", _Collected(families))))
            self._kept = kept
        return kept[1], kept[2]

    def _collect(self) -> Iterator[Metric]:
        made = Families()
        figures = self._figures()
        self._objects(made)
        _streams(made, figures)
        _storage(made, figures)
        _readers(made, figures)
        _security(made, figures)
        figures.store(made)
        yield from made.families()

    def _objects(self, made: Families) -> None:
        registry = self._registry
        stages = Counter(node.liveness for node in registry.nodes.values())
        for stage in (cluster_pb2.LIVENESS_FRESH, cluster_pb2.LIVENESS_LATE, cluster_pb2.LIVENESS_LOST):
            name = cluster_pb2.Liveness.Name(stage).removeprefix("LIVENESS_").lower()
            made.gauge("aggregator_nodes", "Nodes by how lately they were heard of", stages[stage], liveness=name)
        phases = Counter(gpu.phase for gpu in registry.gpus.values())
        for phase in sorted({"Pending", "Running", "Unknown"} | set(phases)):
            made.gauge("aggregator_gpus", "GPU objects by phase", phases[phase], phase=phase)


class _Collected:
    def __init__(self, families: tuple[Metric, ...]) -> None:
        self._families = families

    def collect(self) -> tuple[Metric, ...]:
        return self._families


def _streams(made: Families, figures: Figures) -> None:
    reports, registry = figures.reports, figures.registry
    made.gauge("aggregator_report_streams", "Open report streams", reports.streams)
    made.counter("aggregator_report_streams_total", "Report streams that were opened", reports.streams_total)
    made.counter(
        "aggregator_report_streams_superseded_total",
        "Report streams that a newer one of the same node replaced",
        reports.superseded_total,
    )
    made.counter("aggregator_resends_total", "Snapshots asked for because of a gap", reports.resends_total)
    for kind, count in reports.messages:
        made.counter("aggregator_messages_total", "Report messages by kind", count, kind=kind)
    for field, count in reports.refused:
        made.counter("aggregator_refused_total", "What was refused, by what was wrong with it", count, field=field)
    made.gauge(
        "aggregator_contested_gpus",
        "GPUs that a node reports and another one holds",
        registry.contested_gpus,
    )
    made.counter("aggregator_object_changes_total", "Changes of objects", registry.changes_total)
    made.gauge("aggregator_version", "Version of the objects", registry.version)


def _storage(made: Families, figures: Figures) -> None:
    writer, events = figures.writer, figures.events
    made.gauge("aggregator_store_failing", "1 when the last commit failed", 1.0 if writer.failing else 0.0)
    made.counter("aggregator_commits_total", "Commits to the store", writer.commits_total)
    made.counter("aggregator_commit_failures_total", "Commits that failed", writer.failures_total)
    made.counter("aggregator_stored_rows_total", "Rows written to the store", writer.rows_total)
    made.gauge("aggregator_last_commit_seconds", "Time that the last commit took", writer.last_commit_seconds)
    made.gauge("aggregator_acknowledgements_waiting", "Nodes that wait for one", writer.acknowledgements_waiting)
    made.gauge("aggregator_events_waiting", "Events received and not yet on disk", events.waiting)
    made.counter("aggregator_events_received_total", "Events received, repeats included", events.received_total)
    made.counter("aggregator_events_stored_total", "Events stored", events.stored_total)
    made.counter("aggregator_events_repeated_total", "Events that were known already", events.duplicates_total)
    made.counter("aggregator_events_dropped_total", "Events that could not be kept", events.refused_total)
    made.counter("aggregator_events_pruned_total", "Events beyond the retention", writer.pruned_events_total)


def _readers(made: Families, figures: Figures) -> None:
    made.gauge("aggregator_watchers", "Open watches", figures.watchers)
    made.counter("aggregator_watch_messages_total", "Messages to watches of GPUs", figures.feed.messages_total)
    made.counter("aggregator_watch_resets_total", "Watches that began anew", figures.feed.resets_total)
    for method, code, count in figures.calls:
        made.counter("aggregator_calls_total", "Calls of ClusterService", count, method=method, code=code)


def _security(made: Families, figures: Figures) -> None:
    for reason, count in figures.refused_calls:
        made.counter(
            "aggregator_refused_calls_total", "Calls refused for who asked, or how often", count, reason=reason
        )
    if (certificates := figures.certificates) is not None:
        failing = 1.0 if certificates.failing else 0.0
        made.gauge("aggregator_certificates_failing", "1 when new certificates can't be used", failing)
        made.counter(
            "aggregator_certificate_reloads_total", "Certificates that were read again", certificates.reloads_total
        )
