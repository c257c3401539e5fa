"""Each function of the simulated driver is probed, and answers what the interface's description says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from hypervisor.simulation.environment import environment, library_folder
from tests.integration.simulation import cuda_probes
from tests.integration.simulation.conftest import Simulation


def implemented() -> set[str]:
    """The exports that are not stubs: those are weak symbols."""
    library = library_folder() / "libcuda.so.1"
    listed = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True, check=True).stdout
    return {words[2] for line in listed.splitlines() if len(words := line.split()) == 3 and words[1] == "T"}


def test_every_function_answers_as_described(simulate: Callable[[str], Simulation], tmp_path: Path) -> None:
    answers = cuda_probes.run(cuda_probes.build(tmp_path), environment(simulate("h100-sxm-80gb").path))
    assert not isinstance(answers, str), answers
    assert [answer for answer in answers if answer.code != answer.expected] == []
    assert implemented() - {answer.function for answer in answers} == set()
    assert len(answers) >= 600


def test_an_old_driver_lacks_what_came_later(simulate: Callable[[str], Simulation], tmp_path: Path) -> None:
    """The same program on the 535 branch: what it has not is not found."""
    machine = simulate(
        'version: 1\ndriver: {version: "535.261.03", cuda: 12020}\ngpus: [{count: 1, profile: a100-sxm-80gb}]\n'
    )
    answers = cuda_probes.run(cuda_probes.build(tmp_path), environment(machine.path))
    assert not isinstance(answers, str), answers
    missing = {answer.function for answer in answers if answer.code == -1}
    assert {"cuGreenCtxCreate", "cuCtxCreate_v4", "cuGraphAddNode_v2", "cuLogsCurrent"} <= missing
    assert {"cuInit", "cuMemAlloc_v2", "cuGraphAddNode", "cuLibraryLoadData"}.isdisjoint(missing)
