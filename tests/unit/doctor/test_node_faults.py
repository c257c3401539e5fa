"""Every check of a node tells the faults of its sources, and stays silent about the machine that has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hypervisor.doctor.check import examine, gate_failures
from hypervisor.doctor.checks import NODE_CHECKS
from hypervisor.model import SkipReason, Verdict
from tests.unit.doctor import driver_cases, field_cases, kubelet_cases, runtime_cases
from tests.unit.doctor.case import Case, assert_told
from tests.unit.doctor.machines import Machine, healthy

CASES = (*driver_cases.CASES, *kubelet_cases.CASES, *runtime_cases.CASES, *field_cases.NODE_CASES)
# Asked of the machine itself only: tested in tests/integration/doctor.
LIVE_ONLY = {"hypervisor.running"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fault_is_told(case: Case, tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    case.breaks(machine)
    diagnosis = examine(NODE_CHECKS, machine.subject(), name="node")
    assert_told(case, diagnosis)
    checks = {each.id: each for each in NODE_CHECKS}
    if checks[case.check].gate:
        assert case.check in {result.check_id for result in gate_failures(NODE_CHECKS, diagnosis)}


@pytest.mark.parametrize("well", field_cases.WELL, ids=lambda well: well[0])
def test_what_looks_like_a_fault_and_is_none(well: tuple[str, Callable[[Machine], object]], tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    well[1](machine)
    diagnosis = examine(NODE_CHECKS, machine.subject(), name="node")
    assert [each for each in diagnosis.results if each.verdict in (Verdict.WARN, Verdict.FAIL)] == []
    assert gate_failures(NODE_CHECKS, diagnosis) == ()


@pytest.mark.parametrize("cuda", ["12.4", "99.1"])
def test_an_image_that_nobody_can_judge_does_not_pass_the_gate(cuda: str, tmp_path: Path) -> None:
    machine = healthy(tmp_path).told(driver_version="", cuda_version="").write("/sys/module/nvidia/version", "")
    runtime_cases._wants(cuda)(machine)
    diagnosis = examine(NODE_CHECKS, machine.subject(), name="node")
    assert "runtime.cuda-version" in {each.check_id for each in gate_failures(NODE_CHECKS, diagnosis)}


def test_a_cuda_older_than_any_table_runs(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    runtime_cases._wants("9.2")(machine)
    diagnosis = examine(NODE_CHECKS, machine.subject(), name="node")
    assert gate_failures(NODE_CHECKS, diagnosis) == ()


def test_every_check_is_broken_twice() -> None:
    counted = Counter(case.check for case in CASES)
    assert {each.id for each in NODE_CHECKS if counted[each.id] < 2} == LIVE_ONLY


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 69, 92, 94, 121, 154])
def test_xids_that_are_a_programs_or_nothing_take_no_card_away(number: int, tmp_path: Path) -> None:
    """nvidia-stack.md 9.1 rows 1 to 3: application and ignored Xids by NVIDIA's catalogue."""
    machine = healthy(tmp_path).log(f"NVRM: Xid (PCI:0000:18:00): {number}, pid=1, name=python, Ch 00000008")
    result = next(
        each for each in examine(NODE_CHECKS, machine.subject(), name="").results if each.check_id == "driver.xid"
    )
    assert result.verdict is Verdict.PASS


def test_libraries_where_the_daemon_s_variables_lead_are_there(tmp_path: Path) -> None:
    """Handbook: TF_NVML_LIB_PATH and TF_CUDA_LIB_PATH name files that are really there."""
    machine = healthy(tmp_path)
    driver_cases._no_libraries(machine)
    kubelet_cases._daemon(TF_NVML_LIB_PATH="/opt/nv", TF_CUDA_LIB_PATH="/opt/nv/libcuda.so.1")(machine)
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        machine.write(f"/proc/600/root/opt/nv/{name}", "")
    results = {each.check_id: each for each in examine(NODE_CHECKS, machine.subject(), name="").results}
    assert results["driver.library"].verdict is Verdict.PASS, results["driver.library"]
    assert results["hypervisor.library-path"].verdict is Verdict.PASS


def test_a_contained_error_is_no_fault_of_the_card(tmp_path: Path) -> None:
    """nvidia-stack.md 3.1: 48 with 94 on the same card."""
    machine = healthy(tmp_path).log("NVRM: Xid (PCI:0000:18:00): 48, DBE", "NVRM: Xid (PCI:0000:18:00): 94, Contained")
    results = {each.check_id: each for each in examine(NODE_CHECKS, machine.subject(), name="").results}
    assert results["driver.xid"].verdict is Verdict.PASS


def test_what_does_not_depend_on_the_broken_link_still_runs(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    driver_cases._unloaded(machine).remove(kubelet_cases.SOCKET)
    diagnosis = examine(NODE_CHECKS, machine.subject(), name="node")
    results = {each.check_id: each for each in diagnosis.results}
    assert diagnosis.first_broken == "driver.module-loaded"
    assert results["driver.device-files"].skip_reason is SkipReason.BLOCKED
    assert results["driver.access"].skip_reason is SkipReason.BLOCKED
    assert results["registration.kubelet-socket"].verdict is Verdict.FAIL
    assert results["runtime.handler"].verdict is Verdict.PASS


def test_what_can_not_be_read_is_said_and_fails_the_gate(tmp_path: Path) -> None:
    machine = healthy(tmp_path).unreadable("/proc/modules")
    diagnosis = examine(NODE_CHECKS, machine.subject(), name="node")
    result = next(each for each in diagnosis.results if each.check_id == "driver.module-loaded")
    assert result.skip_reason is SkipReason.UNREADABLE
    assert "run the doctor as root" in result.evidence[0]
    assert "driver.module-loaded" in {each.check_id for each in gate_failures(NODE_CHECKS, diagnosis)}


def _wsl(machine: Machine) -> None:
    driver_cases._no_cards(machine)
    machine.char("/dev/dxg", 10, 125).write("/usr/lib/wsl/lib/libnvidia-ml.so.1", "")


def _simulated(machine: Machine) -> None:
    driver_cases._no_cards(machine)
    driver_cases._unloaded(machine).told(simulated=True)


@pytest.mark.parametrize("platform", [_wsl, _simulated])
def test_machines_without_device_files_of_linux(platform: object, tmp_path: Path) -> None:
    """nvidia-stack.md 1.11 and 9.2 row 29: WSL 2 has /dev/dxg and no minor numbers."""
    machine = healthy(tmp_path)
    platform(machine)  # type: ignore[operator]
    diagnosis = examine(NODE_CHECKS, machine.subject(), name="node")
    assert [each for each in diagnosis.results if each.verdict is Verdict.FAIL] == []


def test_a_check_that_fails_by_itself_takes_no_other_down(tmp_path: Path) -> None:
    machine = healthy(tmp_path).write("/sys/bus/pci/devices/0000:18:00.0/resource", "no such numbers\n")
    results = {each.check_id: each for each in examine(NODE_CHECKS, machine.subject(), name="").results}
    assert results["pci.memory-windows"].verdict is Verdict.WARN
    assert "ValueError" in results["pci.memory-windows"].evidence[0]
    assert results["driver.module-loaded"].verdict is Verdict.PASS
