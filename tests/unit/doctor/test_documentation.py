"""docs/doctor.md is what the code says."""

from __future__ import annotations

from pathlib import Path

from hypervisor.doctor.checks import CLUSTER_CHECKS, GPU_CHECKS, NODE_CHECKS, POD_CHECKS
from hypervisor.doctor.documentation import document

PAGE = Path(__file__).parents[3] / "docs/doctor.md"


def test_the_page_is_that_of_the_code() -> None:
    assert PAGE.read_text() == document() + "\n", "run: python -m hypervisor.doctor.documentation > docs/doctor.md"


def test_ids_are_unique_and_requirements_come_before() -> None:
    for checks in (NODE_CHECKS, POD_CHECKS, CLUSTER_CHECKS):
        seen: set[str] = set()
        for each in checks:
            assert each.id not in seen
            assert set(each.requires) <= seen, each.id
            seen.add(each.id)
    assert {each.id for each in GPU_CHECKS} <= {each.id for each in NODE_CHECKS}


def test_each_check_says_what_it_is() -> None:
    for each in (*NODE_CHECKS, *POD_CHECKS, *CLUSTER_CHECKS):
        assert each.asks.endswith("?"), each.id
        assert each.looks_at
        assert each.source
