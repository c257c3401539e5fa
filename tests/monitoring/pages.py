"""Metrics pages, as names, labels and values."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.monitoring.queries import Need

GOLDEN = Path(__file__).parents[1] / "golden/metrics.txt"
# What Prometheus and the chart's PodMonitors add to each series.
TARGET_LABELS = frozenset({"job", "instance", "namespace", "pod", "container"})
NODE_TARGET_LABELS = TARGET_LABELS | {"node"}
_JOBS = frozenset({("job", "gpu-hypervisor"), ("job", "gpu-hypervisor-aggregator")})


class Pages:
    """All series that are known, and what is missing for a need."""

    def __init__(self) -> None:
        self._labels: dict[str, set[str]] = {"up": set(NODE_TARGET_LABELS)}
        self._values: dict[str, set[tuple[str, str]]] = defaultdict(set)

    def add(self, text: str, target_labels: frozenset[str]) -> None:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._labels.setdefault(sample.name, set(target_labels)).update(sample.labels)
                self._values[sample.name].update(sample.labels.items())

    @property
    def names(self) -> set[str]:
        return set(self._labels)

    def lacking(self, need: Need) -> str:
        """What of the need no page has; empty: nothing."""
        if need.metric not in self._labels:
            return f"no page has {need.metric}"
        if unknown := need.labels - self._labels[need.metric]:
            return f"{need.metric} has no label {', '.join(sorted(unknown))}"
        if never := need.values - self._values[need.metric] - _JOBS:
            return f"{need.metric} never has {sorted(never)}"
        return ""
