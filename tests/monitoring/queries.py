"""Queries of alerts and dashboards, and which metrics, labels and values of labels each of them needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import promql_parser as promql
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
_SERIES = re.compile(r"label_values\((?P<query>.*), *(?P<label>\w+)\)")
_LEGEND = re.compile(r"\{\{ *(?:\$labels\.)?(\w+) *\}\}")
_KEEPS_LABELS = {"topk", "bottomk"}


class QueryError(Exception):
    """A query asks for a label that an operator in it takes away."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query, where it stands, and the labels of its result that a legend or a text uses."""

    where: str
    text: str
    shown: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Need:
    """A metric with labels that it must have, and values that some series of it must have had."""

    metric: str
    labels: frozenset[str]
    values: frozenset[tuple[str, str]]


def alerts() -> list[dict]:
    """Every alert."""
    groups = yaml.safe_load((DEPLOY / "chart/alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alert_queries() -> Iterator[Query]:
    for rule in alerts():
        yield Query(rule["alert"], rule["expr"], frozenset(_LEGEND.findall(rule["annotations"]["summary"])))


def dashboards() -> dict[str, dict]:
    """Every dashboard, by the name of its file."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((DEPLOY / "dashboards").glob("*.json"))}


def dashboard_queries() -> Iterator[Query]:
    for name, board in dashboards().items():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                text = target["expr"].replace("$__rate_interval", "5m")
                yield Query(f"{name}: {panel['title']}", text, frozenset(_LEGEND.findall(target["legendFormat"])))
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                match = _SERIES.fullmatch(variable["query"]["query"])
                assert match is not None, variable
                yield Query(f"{name}: ${variable['name']}", match["query"], frozenset({match["label"]}))


def needs(query: Query) -> list[Need]:
    """What the query needs. Raises ValueError for what is no PromQL, and QueryError."""
    try:
        return list(_needs(promql.parse(query.text), query.shown))
    except (ValueError, QueryError) as error:
        error.add_note(f"in {query.where}: {query.text}")
        raise


def _needs(node: promql.Expr, wanted: frozenset[str]) -> Iterator[Need]:
    match node:
        case promql.VectorSelector():
            matchers = node.matchers.matchers
            values = {(each.name, value) for each in matchers for value in each.value.split("|") if _is_plain(value)}
            yield Need(str(node.name), wanted | {each.name for each in matchers}, frozenset(values))
        case promql.MatrixSelector():
            yield from _needs(node.vector_selector, wanted)
        case promql.AggregateExpr():
            by = frozenset(node.modifier.labels) if node.modifier else frozenset()
            if str(node.op) in _KEEPS_LABELS:
                by |= wanted
            if not wanted <= by:
                raise QueryError(f"{', '.join(wanted - by)} is not left by {node.op} by ({', '.join(by)})")
            yield from _needs(node.expr, by)
        case promql.BinaryExpr():
            yield from _needs(node.lhs, wanted)
            yield from _needs(node.rhs, wanted)
        case promql.Call():
            # absent() has the labels of its own selector.
            below = frozenset() if node.func.name == "absent" else wanted
            for argument in node.args:
                yield from _needs(argument, below)
        case promql.ParenExpr():
            yield from _needs(node.expr, wanted)
        case promql.NumberLiteral():
            return
        case _:
            raise QueryError(f"no test knows {type(node).__name__}")


def _is_plain(value: str) -> bool:
    """Neither a variable of a dashboard nor a pattern."""
    return re.fullmatch(r"[\w-]+", value) is not None
