"""Our writer of the text formats says what prometheus_client's says, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from hypervisor.metrics.text import Format, wanted_format, wants_gzip, write


class Collected:
    def __init__(self, families) -> None:
        self._families = families

    def collect(self):
        return self._families


# What Prometheus sends.
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
texts = st.text(max_size=20)
values = st.floats() | st.integers(-(2**60), 2**60)


@given(
    text=texts.filter(str.strip),
    rows=st.lists(st.tuples(texts, texts, values), max_size=5, unique_by=lambda row: row[:2]),
    single=values,
)
def test_same_bytes_as_prometheus_client(text, rows, single) -> None:
    gauge = GaugeMetricFamily("gpuhv_some_bytes", text, labels=["zone", "area"])
    counter = CounterMetricFamily("gpuhv_some_total", text, labels=["zone", "area"])
    info = InfoMetricFamily("gpuhv_some", text)
    plain = GaugeMetricFamily("gpuhv_plain", text)
    plain.add_metric([], single)
    for zone, area, value in rows:
        gauge.add_metric([zone, area], value)
        counter.add_metric([zone, area], value)
        info.add_metric([], {"zone": zone, "area": area})
    families = [gauge, counter, info, plain]
    assert write(families, Format.PROMETHEUS) == generate_latest(Collected(families))
    # UTF-8 allowed, for otherwise the library puts underscores into HELP texts.
    assert write(families, Format.OPENMETRICS) == generate_openmetrics(Collected(families), escaping=ALLOWUTF8)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Format.PROMETHEUS),
        ("*/*", Format.PROMETHEUS),
        ("text/plain", Format.PROMETHEUS),
        ("application/openmetrics-text", Format.OPENMETRICS),
        (PROMETHEUS_3, Format.OPENMETRICS),
        ("text/plain, application/openmetrics-text;q=0.1", Format.PROMETHEUS),
        ("application/openmetrics-text;q=0", Format.PROMETHEUS),
        ("application/openmetrics-text;q=much", Format.PROMETHEUS),
    ],
)
def test_format_that_is_wanted(accept: str, form: Format) -> None:
    assert wanted_format(accept) is form


@pytest.mark.parametrize(
    ("header", "wanted"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("*", True), ("gzip;q=0, *", False), ("", False), ("br", False)],
)
def test_compression_that_is_wanted(header: str, wanted: bool) -> None:
    assert wants_gzip(header) is wanted
