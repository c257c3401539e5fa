"""`hypervisor sim`, as a person uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hypervisor.cli.sim import table
from hypervisor.simulation.faults import parse_fault_text
from tests.integration.simulation.conftest import Simulation


def sim(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from hypervisor.cli import main; main()", "sim", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def done(*arguments: str | Path) -> str:
    result = sim(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def refused(status: int, *arguments: str | Path) -> str:
    result = sim(*arguments)
    assert result.returncode == status, result
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    path = tmp_path / "machine"
    done("create", "h100-sxm-80gb", "--machine", path)
    return path


def test_a_program_sees_the_machine(machine: Path) -> None:
    program = (
        "import pynvml as n; n.nvmlInit(); "
        "print(*[n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())])"
    )
    uuids = done("run", "--machine", machine, "--", sys.executable, "-c", program).split()
    shown = json.loads(done("show", "--machine", machine, "-o", "json"))
    assert uuids == [gpu["uuid"] for gpu in shown["gpus"]]
    assert len(uuids) == 8


def test_a_program_s_status_is_passed_on(machine: Path) -> None:
    assert sim("run", "--machine", machine, "--", "sh", "-c", "exit 42").returncode == 42
    assert "can't be run: No such file" in refused(127, "run", "--machine", machine, "--", "no-such-program")


def test_the_table_fits_80_columns(machine: Path) -> None:
    lines = done("show", "--machine", machine).splitlines()
    assert len(lines) == 10
    assert max(map(len, lines)) <= 80
    assert "lost" not in lines[5]
    done("fault", "gpu=3,xid=79,lost", "--machine", machine)
    lines = done("show", "--machine", machine).splitlines()
    assert lines[5].endswith("lost")
    assert max(map(len, lines)) <= 80


def test_faults_come_and_go(machine: Path) -> None:
    number = done("fault", "call=nvmlDeviceGetName,return=3", "--machine", machine).strip()
    faults = json.loads(done("show", "-o", "json", "--machine", machine))["faults"]
    assert [(str(fault["id"]), fault["action"], fault["call"]) for fault in faults] == [
        (number, "return", "nvmlDeviceGetName")
    ]
    done("fault", "--clear", number, "--machine", machine)
    assert "there is no fault" in refused(1, "fault", "--clear", number, "--machine", machine)
    assert json.loads(done("show", "-o", "json", "--machine", machine))["faults"] == []
    done("fault", "--clear", "all", "--machine", machine)
    assert "gpu: must be a whole number from 0 to 7" in refused(2, "fault", "gpu=8,lost", "--machine", machine)
    refused(2, "fault", "--machine", machine)


def test_each_fault_is_told_in_words(simulate: Callable[[str], Simulation]) -> None:
    told = {
        "driver=590.44.01": "driver changed from 580.65.06",
        "driver=590.44.01,at=60s": "driver to become 590.44.01",
        "gpu=1,xid=31": "Xid 31 on GPU 1",
        "gpu=1,lost": "lost on GPU 1",
        "gpu=2,renumber=0": "enumerated at index 0 on GPU 2",
        "gpu=0,set=link4.active,value=0": "link4.active of GPU 0 is 0",
        "call=cuMem*,return=2": "return 2 in cuMem* on any GPU, 0 times so far",
        "call=cuMem*,delay=5ms": "delay 5 ms in cuMem* on any GPU, 0 times so far",
        "call=cuMem*,hang=forever": "hang for ever in cuMem* on any GPU, 0 times so far",
        "call=cuMem*,return=zero": "zero in cuMem* on any GPU, 0 times so far",
    }
    with simulate("h100-sxm-80gb").opened() as opened:
        for text, words in told.items():
            number = opened.add_fault(parse_fault_text(text, opened.gpu_count))
            assert f"fault {number}: {words}" in list(table(opened.show()))
            opened.clear_fault(number)


def test_a_sound_machine_passes_its_check(machine: Path) -> None:
    assert done("show", "--check", "--machine", machine) == f"machine {machine}: sound\n"


def test_time_is_stepped_only_where_it_is_virtual(machine: Path, tmp_path: Path) -> None:
    assert "runs in real time" in refused(1, "step", "5ms", "--machine", machine)
    yaml = tmp_path / "virtual.yaml"
    yaml.write_text(
        'version: 1\ndriver: {version: "580.65.06", cuda: 13000}\n'
        "clock: {mode: virtual}\ngpus: [{count: 1, profile: t4}]\n"
    )
    path = tmp_path / "virtual"
    done("create", yaml, "--machine", path)
    done("step", "5ms", "--machine", path)
    clock = json.loads(done("show", "-o", "json", "--machine", path))["clock"]
    assert (clock["mode"], clock["now_ns"]) == ("virtual", 5_000_000)
    assert "no time with a unit" in refused(2, "step", "5", "--machine", path)


def test_mistakes_are_one_line_and_change_nothing(machine: Path, tmp_path: Path) -> None:
    before = machine.stat()
    assert "there is a file of that name already; remove it with" in refused(1, "create", "t4", "--machine", machine)
    assert machine.stat() == before
    assert "h200: is no profile; there are a100" in refused(2, "create", "h200", "--machine", tmp_path / "x")
    yaml = tmp_path / "wrong.yaml"
    yaml.write_text("version: 1\ndrivers: {}\n")
    assert f"{yaml}:2: drivers: is not a key here; allowed are" in refused(
        2, "create", yaml, "--machine", tmp_path / "x"
    )
    assert not (tmp_path / "x").exists()
    assert "No such file" in refused(1, "create", "t4", "--machine", tmp_path / "no" / "folder")
    assert "no such machine file; make it with" in refused(1, "show", "--machine", tmp_path / "x")
    assert "no such machine file" in refused(1, "run", "--machine", tmp_path / "x", "--", "true")
    refused(2, "run", "--machine", machine)


def test_destroy_removes_machines_only(machine: Path, tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear machine, this is not for you.")
    assert "not a machine file; it is left alone" in refused(1, "destroy", "--machine", letter)
    assert letter.exists()
    with machine.open("r+b") as file:
        file.truncate(4096)
    assert "truncated" in refused(1, "show", "--machine", machine)
    done("destroy", "--machine", machine)
    assert not machine.exists()
