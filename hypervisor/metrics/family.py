"""Metric families with unique series: two sources of the same labels add up, for a duplicate spoils a whole scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

PREFIX = "gpuhv_"


class Families:
    """Collects samples by family, in the order in which the families are first named."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def gauge(self, name: str, text: str, value: float | None, **labels: str) -> None:
        """Add to a gauge; None adds nothing, for what is not known has no series."""
        self._add(GaugeMetricFamily, name, text, value, labels)

    def counter(self, name: str, text: str, value: float | None, **labels: str) -> None:
        """Add to a counter; the name ends with _total."""
        self._add(CounterMetricFamily, name, text, value, labels)

    def families(self) -> Iterator[Metric]:
        """The families that have a series."""
        for name, family in self._families.items():
            yield family.metric(name)

    def _add(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        text: str,
        value: float | None,
        labels: dict[str, str],
    ) -> None:
        if value is None:
            return
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = _Family(kind, text, tuple(labels))
        family.add(tuple(labels.values()), value)


class _Family:
    def __init__(
        self, kind: type[GaugeMetricFamily] | type[CounterMetricFamily], text: str, labels: tuple[str, ...]
    ) -> None:
        self._kind = kind
        self._text = text
        self._labels = labels
        self._values: dict[tuple[str, ...], float] = {}

    def add(self, labels: tuple[str, ...], value: float) -> None:
        self._values[labels] = self._values.get(labels, 0.0) + value

    def metric(self, name: str) -> Metric:
        family = self._kind(PREFIX + name, self._text, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


def info(name: str, text: str, rows: Iterable[dict[str, str]]) -> InfoMetricFamily:
    """Strings as labels of a series that is 1; name without _info."""
    listed = list(rows)
    family = InfoMetricFamily(PREFIX + name, text)
    for row in listed:
        family.add_metric([], row)
    return family
