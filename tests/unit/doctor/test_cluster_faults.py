"""Every check of a cluster tells the faults of its sources, and stays silent about the cluster that has none."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hypervisor.doctor.checks import CLUSTER_CHECKS
from hypervisor.doctor.diagnose import diagnose_cluster
from hypervisor.model import Verdict
from tests.unit.doctor import cluster_cases, field_cases
from tests.unit.doctor.case import Case, assert_told
from tests.unit.doctor.cluster_cases import cluster
from tests.unit.doctor.machines import healthy

CASES = (*cluster_cases.CASES, *field_cases.CLUSTER_CASES)


def test_all_checks_pass(tmp_path: Path) -> None:
    machine = healthy(tmp_path).add("namespaces", {"metadata": {"name": "tensor-fusion-sys"}})
    diagnosis = diagnose_cluster(cluster(machine))
    assert [each for each in diagnosis.results if each.verdict is not Verdict.PASS] == []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fault_is_told(case: Case, tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    case.breaks(machine)
    assert_told(case, diagnose_cluster(cluster(machine)))


def test_every_check_is_broken_twice() -> None:
    counted = Counter(case.check for case in CASES)
    assert {each.id for each in CLUSTER_CHECKS if counted[each.id] < 2} == set()
