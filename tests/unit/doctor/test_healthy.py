"""On a healthy machine every check is silent."""

from __future__ import annotations

from pathlib import Path

from hypervisor.doctor.check import examine, gate_failures
from hypervisor.doctor.checks import NODE_CHECKS
from hypervisor.model import Verdict
from tests.unit.doctor.machines import healthy

# What this machine has not: a GPU Operator, a daemon with library variables, and nobody named an image.
NOT_HERE = {"hypervisor.toolkit-ready", "hypervisor.library-path", "runtime.cuda-version"}


def test_all_checks_pass(tmp_path: Path) -> None:
    diagnosis = examine(NODE_CHECKS, healthy(tmp_path).subject(), name="node")
    loud = [result for result in diagnosis.results if result.verdict in (Verdict.WARN, Verdict.FAIL)]
    assert loud == []
    skipped = {result.check_id: result.evidence for result in diagnosis.results if result.verdict is Verdict.SKIP}
    assert set(skipped) == NOT_HERE, skipped
    assert diagnosis.first_broken == ""
    assert gate_failures(NODE_CHECKS, diagnosis) == ()


def test_an_empty_directory_has_no_gpu(tmp_path: Path) -> None:
    machine = healthy(tmp_path / "other")
    machine.directory, machine.facts, machine.objects = tmp_path / "empty", None, {}
    machine.index.nodes.clear()
    machine.index.links.clear()
    diagnosis = examine(NODE_CHECKS, machine.subject(), name="node")
    assert diagnosis.first_broken == "pci.gpu-present"
    assert [result.check_id for result in diagnosis.results if result.verdict is Verdict.FAIL] == ["pci.gpu-present"]
