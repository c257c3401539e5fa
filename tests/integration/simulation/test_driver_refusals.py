"""What the simulated driver refuses, and that it is silent unless it is asked to speak."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hypervisor.cli.main import main
from hypervisor.simulation.environment import environment
from hypervisor.simulation.machine import MachineError, opened
from tests.integration.simulation.conftest import Simulation

NO_DEVICE = 100
NOT_SUPPORTED = 801
DRIVER_NOT_LOADED = 9
INIT = "tell([ctypes.CDLL('libcuda.so.1').cuInit(0), ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2()])"


def truncated(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def of_another_version(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(8)  # behind the magic word
        (version,) = struct.unpack("<I", file.read(4))
        file.seek(8)
        file.write(struct.pack("<I", version + 1))


def half_written(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(12)  # the word that the creator stores last
        file.write(struct.pack("<I", 0))


def only_begun(path: Path) -> None:
    """A copy that ended early, into a file that had its size already."""
    size = path.stat().st_size
    os.truncate(path, 65536)
    os.truncate(path, size)


def written_over(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(32)
        file.write(b"\x5a" * 4096)


def no_machine(path: Path) -> None:
    path.write_bytes(b"not a machine")


@pytest.mark.parametrize("damage", [truncated, of_another_version, half_written, only_begun, written_over, no_machine])
def test_a_damaged_machine_is_no_device(
    simulate: Callable[[str], Simulation], damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both libraries, the Python module and the command say so, each in its own way."""
    machine = simulate("t4")
    copy = machine.path.with_name("damaged")
    # Sparse as it is: only what was written is copied.
    subprocess.run(["cp", "--sparse=always", str(machine.path), str(copy)], check=True)
    damage(copy)
    assert machine.ask(INIT, SIM_MACHINE=str(copy)) == [NO_DEVICE, DRIVER_NOT_LOADED]
    assert machine.ask(INIT, SIM_MACHINE=str(copy.with_name("absent"))) == [NO_DEVICE, DRIVER_NOT_LOADED]
    assert machine.ask(INIT) == [0, 0]
    with pytest.raises(MachineError), opened(copy):
        pass
    with pytest.raises(SystemExit) as ended:
        main(["sim", "show", "--machine", str(copy)])
    said = capsys.readouterr()
    assert (ended.value.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert str(copy) in said.err


@pytest.mark.parametrize(("wish", "lines"), [("", 0), ("0", 0), ("1", 1)])
def test_a_stub_speaks_once_and_only_when_asked(simulate: Callable[[str], Simulation], wish: str, lines: int) -> None:
    machine = simulate("t4")
    program = machine.program(
        "cuda = ctypes.CDLL('libcuda.so.1'); cuda.cuInit(0); tell([cuda.cuGLInit() for _ in range(3)])"
    )
    done = subprocess.run(
        program, env=environment(machine.path) | {"SIM_LOG": wish}, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [NOT_SUPPORTED] * 3
    assert len(done.stderr.splitlines()) == lines
    assert ("cuGLInit" in done.stderr) == bool(lines)
