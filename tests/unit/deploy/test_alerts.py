"""Alerts and dashboards as texts; tests/integration/deploy holds them against real pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.monitoring.pages import GOLDEN, NODE_TARGET_LABELS, Pages
from tests.monitoring.queries import Query, QueryError, alert_queries, alerts, dashboard_queries, dashboards, needs

ROOT = Path(__file__).parents[3]
RUNBOOKS = ROOT / "docs/runbooks.md"
SEVERITIES = {"critical", "warning", "info"}


def test_every_query_is_promql_and_shows_labels_that_its_result_has() -> None:
    empty = [query.where for query in (*alert_queries(), *dashboard_queries()) if not needs(query)]
    assert empty == []


def test_the_check_sees_what_is_wrong() -> None:
    pages = Pages()
    pages.add(GOLDEN.read_text(), NODE_TARGET_LABELS)

    def lacking(text: str, *shown: str) -> str:
        return next((why for need in needs(Query("", text, frozenset(shown))) if (why := pages.lacking(need))), "")

    assert lacking("gpuhv_gpu_healthy", "node", "uuid") == ""
    assert lacking("gpuhv_gpu_helthy") == "no page has gpuhv_gpu_helthy"
    assert lacking("gpuhv_gpu_healthy", "xid") == "gpuhv_gpu_healthy has no label xid"
    assert "never has" in lacking('gpuhv_gpu_health_state{state=~"unhealthy|gone"}')
    with pytest.raises(QueryError, match="uuid is not left"):
        lacking("sum by (node) (gpuhv_gpu_healthy)", "uuid")
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        lacking("sum(gpuhv_gpu_healthy")


def test_every_alert_says_how_bad_it_is_and_has_a_runbook() -> None:
    sections = re.findall(r"^## (\w+)$", RUNBOOKS.read_text(), re.MULTILINE)
    names = [rule["alert"] for rule in alerts()]
    assert sections == names, "one section an alert, in the same order"
    for rule in alerts():
        assert rule["labels"]["severity"] in SEVERITIES
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"


def test_dashboards_are_for_node_pod_and_cluster_and_their_panels_lie_beside_each_other() -> None:
    assert set(dashboards()) == {"node", "pod", "cluster"}
    assert len({board["uid"] for board in dashboards().values()}) == 3
    for board in dashboards().values():
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        taken: dict[tuple[int, int], str] = {}
        for panel in board["panels"]:
            place = panel["gridPos"]
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    assert x < 24, panel["title"]
                    assert taken.setdefault((x, y), panel["title"]) == panel["title"]
        variables = {variable["name"] for variable in board["templating"]["list"]} | {"__rate_interval"}
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables, panel["title"]
                assert panel["datasource"]["uid"] == "${datasource}"
