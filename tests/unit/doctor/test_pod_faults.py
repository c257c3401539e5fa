"""Every check of a Pod tells the faults of its sources, and stays silent about the Pod that has none."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hypervisor.doctor.check import examine
from hypervisor.doctor.checks import POD_CHECKS
from hypervisor.doctor.pod_subject import PodSubject
from hypervisor.model import Diagnosis, Verdict
from tests.unit.doctor import field_cases, pod_cases, symptom_cases
from tests.unit.doctor.case import Case, assert_told
from tests.unit.doctor.machines import Machine, healthy
from tests.unit.doctor.pod_cases import _annotated, _environment, _label_on_deployment, _log

CASES = (*pod_cases.CASES, *symptom_cases.CASES, *field_cases.POD_CASES)
NEVER_LOUD = {"symptom.harmless-sve"}
# Of the healthy Pod: it is no worker, has no remote connection and wants no whole card.
NOT_HERE = {"pod.whole-card", "pod.worker-limits", "pod.connection"}


def diagnose(machine: Machine, name: str = "train") -> Diagnosis:
    return examine(POD_CHECKS, PodSubject(machine.subject(), "ml", name), name=f"ml/{name}")


def test_all_checks_pass(tmp_path: Path) -> None:
    diagnosis = diagnose(healthy(tmp_path))
    assert [each for each in diagnosis.results if each.verdict in (Verdict.WARN, Verdict.FAIL)] == []
    assert {each.check_id for each in diagnosis.results if each.verdict is Verdict.SKIP} == NOT_HERE


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fault_is_told(case: Case, tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    case.breaks(machine)
    assert_told(case, diagnose(machine))


def test_every_check_is_broken_twice() -> None:
    counted = Counter(case.check for case in CASES)
    assert {each.id for each in POD_CHECKS if counted[each.id] < 2} == NEVER_LOUD


def test_a_label_on_the_deployment_alone(tmp_path: Path) -> None:
    """Handbook: label and annotations belong on the Pod template."""
    machine = healthy(tmp_path)
    _label_on_deployment(machine)
    result = next(each for each in diagnose(machine, "tra-1").results if each.check_id == "pod.label")
    assert result.verdict is Verdict.FAIL
    assert "spec.template.metadata" in result.remedy


def test_shared_isolation_has_no_limit_by_design(tmp_path: Path) -> None:
    """Handbook: isolation shared limits nothing, and that is no fault."""
    machine = healthy(tmp_path)
    _environment("MODE=soft", "MODE=shared")(machine)
    _annotated(isolation="shared")(machine)
    machine.allocation(isolation="shared")
    results = {each.check_id: each for each in diagnose(machine).results}
    assert results["pod.preload"].verdict is Verdict.SKIP
    assert "by design" in results["pod.isolation-mode"].evidence[0]


def test_an_error_that_can_be_ignored(tmp_path: Path) -> None:
    """Handbook: errors to ignore."""
    machine = healthy(tmp_path)
    _log("Error in cpuinfo: prctl(PR_SVE_GET_VL) failed")(machine)
    results = {each.check_id: each for each in diagnose(machine).results}
    assert results["symptom.harmless-sve"].verdict is Verdict.PASS
    assert "can be ignored" in results["symptom.harmless-sve"].evidence[0]


def test_what_a_program_logs_is_shown_without_its_secrets(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    _log("CUDA out of memory while token=hunter2 from 10.1.2.3")(machine)
    results = {each.check_id: each for each in diagnose(machine).results}
    assert results["symptom.out-of-memory"].evidence == ("CUDA out of memory while token=<removed> from <address>",)


def test_a_link_in_the_container_does_not_lead_out_of_it(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    machine.write("/etc/secret", "limiter /host/libcuda_limiter.so\n")
    preload = machine.directory / pod_cases.CONTAINER[1:] / "etc/ld.so.preload"
    preload.unlink()
    preload.symlink_to("/etc/secret")
    results = {each.check_id: each for each in diagnose(machine).results}
    assert results["pod.preload"].verdict is Verdict.FAIL
