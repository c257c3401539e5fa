"""Hand-written pages name only checks, commands, settings, metrics and events that there are."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from buildsupport.reference import metrics
from buildsupport.reference.events import OWN
from buildsupport.reference.pages import PAGES
from hypervisor.cli.main import hypervisor
from hypervisor.doctor.checks import CLUSTER_CHECKS, NODE_CHECKS, POD_CHECKS
from hypervisor.model.event_reasons import EVENT_REASONS
from tests.documentation.blocks import DOCS

WRITTEN = sorted({path.name for path in DOCS.glob("*.md")} - PAGES.keys())


def words(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


# On the other pages names with a dot are files and values of the chart.
@pytest.mark.parametrize("page", ["health.md", "runbooks.md", "security.md", "troubleshooting.md"])
def test_checks_of_the_doctor(page: str) -> None:
    known = {each.id for each in (*NODE_CHECKS, *POD_CHECKS, *CLUSTER_CHECKS)}
    stages = {name.partition(".")[0] for name in known}
    named = re.findall(r"`([a-z]+\.[a-z]+(?:-[a-z]+)*)`", words(page))
    checks = {name for name in named if name.partition(".")[0] in stages and not name.endswith(".json")}
    assert sorted(checks - known) == []


def test_metrics() -> None:
    known = {each.name for each in (*metrics.node_families(), *metrics.aggregator_families())}
    known |= {each.name for feed in metrics.FEEDS for each in metrics.feed_families(feed)}
    for page in WRITTEN:
        named = set(re.findall(r"`(gpuhv_[a-z_]+[a-z])(?:\{[^`]*)?`", words(page)))
        assert sorted(named - known) == [], page


@pytest.mark.parametrize("page", WRITTEN)
def test_commands(page: str) -> None:
    context = click.Context(hypervisor)
    known = set(hypervisor.list_commands(context))
    named = set(re.findall(r"(?:`|^\$ |^)hypervisor ([a-z][a-z-]+)", words(page), re.MULTILINE))
    assert sorted(named - known) == []


def test_there_are_hand_written_pages() -> None:
    assert {"concepts.md", "troubleshooting.md", "security.md"} <= set(WRITTEN)
    assert Path(DOCS / "index.md").exists()


def test_events() -> None:
    known = EVENT_REASONS.keys() | {reason for reasons in OWN.values() for reason in reasons}
    for page in WRITTEN:
        named = set(re.findall(r"[Ee]vents? `([A-Z][A-Za-z]+)`", words(page)))
        assert sorted(named - known) == [], page
