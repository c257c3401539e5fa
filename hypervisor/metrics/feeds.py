"""The counters of every feed and queue of the daemon, as gpuhv_FEED_FIELD."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass

from prometheus_client.core import Metric

from hypervisor.metrics.family import Families
from hypervisor.metrics.view import MetricsView

# Fields that only grow but whose names don't end as a counter's must.
_GROWING = frozenset({"published", "messages", "heartbeats", "resets", "coalesced", "refused", "acknowledged"})
# Numbers that have a name of their own in the list of metrics.
_NAMES = {"reporter_connected": "report_stream_connected", "journal_unacknowledged": "report_queue_length"}
# Feeds with a collector of their own.
_TOLD_ELSEWHERE = frozenset({"gpu_reader", "mig"})


def collect(view: MetricsView) -> Iterable[Metric]:
    """Every number in every feed's statistics; what else they hold is for people."""
    families = Families()
    for feed, statistics in view.statistics.items():
        if feed in _TOLD_ELSEWHERE:
            continue
        for path, value, labels in _numbers(feed, statistics):
            name, text = _named(path), f"{path.replace('_', ' ')}, as the feed counts it"
            if name.endswith("_total"):
                families.counter(name, text, value, **labels)
            else:
                families.gauge(name, text, value, **labels)
    yield from families.families()


def exported_name(path: str, field: str) -> str:
    """The name, without its prefix, under which a number is exported; path is FEED_FIELD."""
    return _named(_counted(path, field))


def _counted(path: str, field: str) -> str:
    return f"{path}_total" if field in _GROWING else path


def _named(name: str) -> str:
    return _NAMES.get(name, name)


def _numbers(path: str, statistics: object) -> Iterator[tuple[str, float, dict[str, str]]]:
    """Name, value and labels of the numbers in a statistics object, and in those that it holds."""
    if not is_dataclass(statistics):
        return
    for field in fields(statistics):
        value = getattr(statistics, field.name)
        name = _counted(f"{path}_{field.name}", field.name)
        if isinstance(value, (int, float)):
            yield name, float(value), {}
        elif isinstance(value, Mapping):
            yield from _labelled(name, value)
        elif isinstance(value, tuple):
            yield from _calls(name, value)
        else:
            yield from _numbers(name, value)


def _labelled(name: str, value: Mapping[object, object]) -> Iterator[tuple[str, float, dict[str, str]]]:
    for key, each in value.items():
        if isinstance(key, str) and isinstance(each, (int, float)):
            yield name, float(each), {"kind": key}


def _calls(name: str, rows: tuple[object, ...]) -> Iterator[tuple[str, float, dict[str, str]]]:
    """Rows of (method, status code, number of calls)."""
    for row in rows:
        match row:
            case (str(method), str(code), int(number)):
                yield f"{name}_total", float(number), {"method": method, "code": code}
