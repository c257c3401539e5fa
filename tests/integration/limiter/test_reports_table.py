"""Each bug report of reports.csv has a test that names it."""

from __future__ import annotations

import ast
import csv
from pathlib import Path

import pytest

from buildsupport.native import ROOT

TABLE = Path(__file__).with_name("reports.csv")


def rows() -> list[list[str]]:
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return list(csv.reader(lines))


def names_of(function: ast.FunctionDef) -> str:
    """What the test says of itself: its name, as words, and its docstring."""
    return f"{function.name.replace('_', ' ')} {' '.join((ast.get_docstring(function) or '').split())}".lower()


@pytest.mark.parametrize(("report", "how", "what", "test"), rows(), ids=[row[0] for row in rows()])
def test_a_report_has_a_test_that_names_it(report: str, how: str, what: str, test: str) -> None:
    assert how in ("S", "K")
    assert what
    path, _, name = test.partition("::")
    functions = [node for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)]
    found = {function.name: function for function in functions}
    assert name in found, f"{report}: {path} has no {name}"
    said = names_of(found[name])
    assert report.lower() in said or report.lower().replace("-", " ") in said, f"{test} does not name {report}"


def test_no_report_is_listed_twice_and_no_named_test_is_left_out() -> None:
    listed = rows()
    assert len({row[0] for row in listed}) == len(listed)
    tests = {row[3].partition("::")[2] for row in listed}
    for path in Path(__file__).parent.glob("test_reports*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith(("test_hami", "test_nvshare", "test_gpu")):
                assert node.name in tests or node.name == "test_nvshare_29_kinds_of_memory_stay_what_they_are"
