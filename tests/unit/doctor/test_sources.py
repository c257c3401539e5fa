"""Every report of the sources has a scenario that is really there."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from hypervisor.doctor.checks import CLUSTER_CHECKS, NODE_CHECKS, POD_CHECKS
from tests.integration.health.scenarios import SCENARIOS
from tests.unit.doctor import (
    cluster_cases,
    driver_cases,
    field_cases,
    kubelet_cases,
    pod_cases,
    runtime_cases,
    symptom_cases,
)
from tests.unit.doctor.sources import ARTICLE, BUG_REPORTS, HANDBOOK, Report

PROJECT = Path(__file__).parents[3]
CASES = [
    case
    for module in (cluster_cases, driver_cases, kubelet_cases, pod_cases, runtime_cases, symptom_cases)
    for case in module.CASES
]
CASES += [*field_cases.NODE_CASES, *field_cases.POD_CASES, *field_cases.CLUSTER_CASES]
# Rows of our collection of bug reports about health and recovery, and about start-up, libraries and versions.
ROWS = {f"9.1/{row}" for row in (1, 2, 3, 4, *range(6, 13), *range(14, 19), 20)}
ROWS |= {f"9.2/{row}" for row in (*range(21, 27), *range(29, 34), 36, 37)}


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((PROJECT / path).read_text(encoding="utf-8"))
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


def missing(report: Report, scenario: str) -> str:
    """What is not there of a scenario; "" when all is."""
    kind, _, name = scenario.partition(": ")
    if kind == "matrix":
        return "" if name in {each.fault for each in SCENARIOS} else f"no row of the matrix is {name!r}"
    if kind == "doctor":
        found = [case for case in CASES if case.check == name]
        if report.source in ("handbook", "article"):
            # Words of the symptom table are the source's own; its cases name it, or the table that repeats it.
            found = [
                case for case in found if case.source.startswith((report.source, "table of 3.4", "7.", "9.", "2."))
            ]
        return "" if found else f"the doctor's {name} has no case of {report.source}"
    path, _, test = scenario.partition("::")
    return "" if test in names_in(path) else f"there is no test {scenario}"


@pytest.mark.parametrize(
    "report", [*BUG_REPORTS, *HANDBOOK, *ARTICLE], ids=lambda each: f"{each.source} {each.symptom}"
)
def test_a_report_has_scenarios(report: Report) -> None:
    assert report.scenarios
    assert report.verdict
    assert [told for scenario in report.scenarios if (told := missing(report, scenario))] == []


def test_every_row_is_reported() -> None:
    assert {report.source for report in BUG_REPORTS} == ROWS


def test_a_row_that_a_case_names_is_one_of_the_reports() -> None:
    """A case that says 9.1/N or 9.2/N is listed with its row, so that neither is changed without the other."""
    listed = {(report.source, scenario) for report in BUG_REPORTS for scenario in report.scenarios}
    named = {
        (f"{part}/{row}", f"doctor: {case.check}")
        for case in CASES
        for part in ("9.1", "9.2")
        for row in _rows(case.source, part)
    }
    assert {each for each in named if each[0] in ROWS} - listed == set()


def _rows(source: str, part: str) -> list[str]:
    _, found, rest = source.partition(f"{part}/")
    return [rest.split(":")[0].split()[0].rstrip(",;")] if found else []


def test_every_check_of_the_doctor_says_where_it_comes_from() -> None:
    for check in (*NODE_CHECKS, *POD_CHECKS, *CLUSTER_CHECKS):
        assert check.source
        assert any(case.check == check.id for case in CASES) or check.id in {
            "hypervisor.running",  # tests/integration/doctor
            "symptom.harmless-sve",  # test_pod_faults.py
        }, check.id


def test_a_scenario_that_is_not_there_is_found() -> None:
    report = Report("9.1/1", "x", "y", ())
    assert missing(report, "matrix: no such fault")
    assert missing(report, "doctor: no.such-check")
    assert missing(report, "tests/unit/doctor/test_sources.py::test_nothing")
