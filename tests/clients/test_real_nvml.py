"""NVIDIA's own libnvidia-ml, of two driver branches, compared with ours of the same branch, answer by answer.

Without a GPU the real library can still be asked what it exports and what it answers before initialisation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hypervisor.simulation.environment import library_folders
from tests.clients.conftest import needed
from tests.clients.debian import library

pytestmark = pytest.mark.clients

DRIVERS = {535: "535.261.03", 550: "550.163.01"}

# Each function in a process of its own: some of the real ones read through what is no pointer.
BEFORE = """
import ctypes, json, os, sys
library = ctypes.CDLL(sys.argv[1])
answers = {}
for name in sys.argv[2].split(","):
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(into, str(getattr(library, name)(*[ctypes.c_void_p(0)] * 6)).encode())
        os._exit(0)
    os.close(into)
    answers[name] = os.read(out, 32).decode() if os.waitpid(child, 0)[1] == 0 else "killed"
    os.close(out)
print(json.dumps(answers))
"""


@pytest.fixture(scope="module", params=list(DRIVERS))
def pair(request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """The real library and ours."""
    real = needed(library, request.param, "libnvidia-ml1", "libnvidia-ml.so.1")
    ours = next(folder / "libnvidia-ml.so.1" for folder in library_folders(DRIVERS[request.param]))
    return real, ours


def exported(library: Path) -> set[str]:
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    names = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}
    return {name for name in names if name.startswith("nvml")}


def test_the_same_names_are_exported(pair: tuple[Path, Path]) -> None:
    real, ours = map(exported, pair)
    assert len(real) > 300
    assert ours == real


def test_the_same_answers_before_initialisation(pair: tuple[Path, Path], simulate) -> None:
    # nvmlInit* would succeed here and fail there; nvmlErrorString gives a pointer
    names = exported(pair[0]) - {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlErrorString"}
    machine = simulate("t4").path

    def answers(library: Path) -> dict[str, str]:
        command = [sys.executable, "-c", BEFORE, str(library), ",".join(sorted(names))]
        variables = os.environ | {"SIM_MACHINE": str(machine)}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=True)
        return dict(json.loads(done.stdout))

    real, ours = map(answers, pair)
    assert "killed" not in real.values()
    assert {name: (code, ours[name]) for name, code in real.items() if ours[name] != code} == {}


def test_without_a_driver_both_say_so(pair: tuple[Path, Path]) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is a real driver here")
    program = "import ctypes, sys; print([ctypes.CDLL(path).nvmlInit_v2() for path in sys.argv[1:]])"
    command = [sys.executable, "-c", program, *map(str, pair)]
    variables = {name: value for name, value in os.environ.items() if name != "SIM_MACHINE"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [9, 9]
