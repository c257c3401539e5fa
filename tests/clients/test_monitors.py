"""gpustat, nvitop and nvtop: monitors that people keep open."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import time
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import pytest

from hypervisor.simulation.environment import environment
from hypervisor.simulation.faults import parse_fault_text
from tests.clients.conftest import GIB, SECONDS, load, needed, shown
from tests.clients.debian import unpacked_from
from tests.clients.tools import tool

pytestmark = [pytest.mark.clients, pytest.mark.slow]

MIG_NODE = """\
version: 1
driver: {version: "550.163.01", cuda: 12040}
gpus: [{count: 1, profile: h100-sxm-80gb}]
mig: {gpu0: {mode: on, instances: [3g.40gb, 1g.10gb]}}
"""
BUSY = ("--device=2", "--kernel-us=500", f"--hold={GIB}", "--seconds=300")


def until_busy(machine: Path, read) -> None:
    """Waits until what a monitor says of GPU 2 is a load."""
    deadline = time.monotonic() + SECONDS
    while read() < 80:
        assert time.monotonic() < deadline, "never busy"


def test_gpustat(simulate) -> None:
    node = simulate("h100-sxm-80gb")
    gpustat = needed(tool, "gpustat")

    def read() -> list[dict[str, object]]:
        return list(json.loads(shown(node.path, gpustat, "--json"))["gpus"])

    assert [gpu["uuid"] for gpu in read()] == [gpu["uuid"] for gpu in node.show()["gpus"]]
    assert {gpu["memory.total"] for gpu in read()} == {81559}
    with load(node.path, *BUSY) as client:
        until_busy(node.path, lambda: read()[2]["utilization.gpu"])
        gpus = read()
        assert [gpu["memory.used"] for gpu in gpus] == [0, 0, 1524, 0, 0, 0, 0, 0]
        assert [(one["pid"], one["gpu_memory_usage"]) for one in gpus[2]["processes"]] == [(client.pid, 1524)]


def test_nvitop(simulate) -> None:
    node = simulate("h100-sxm-80gb")
    nvitop = needed(tool, "nvitop")
    with load(node.path, *BUSY) as client:

        def utilisation() -> int:
            text = shown(node.path, nvitop, "-1", COLUMNS="120")
            rates = re.findall(r"MiB / 79\.65GiB │\s+(\d+)%", text)
            return int(rates[0]) if rates else 0

        until_busy(node.path, utilisation)
        text = shown(node.path, nvitop, "-1")
        assert re.search(rf"│   2\s+{client.pid} C\s+\S+\s+1524MiB\s+\d+\s", text)
        assert text.count("H100 80GB HBM3") == 8


def test_nvitop_with_mig(simulate) -> None:
    text = shown(simulate(MIG_NODE).path, needed(tool, "nvitop"), "-1")
    assert re.findall(r"│ 0:(\d)\s+(\S+) @ GI/CI:\s*(\d+)/(\d+)", text) == [
        ("0", "3g.40gb", "1", "0"),
        ("1", "1g.10gb", "11", "0"),
    ]
    assert "39.50GiB" in text


def test_nvitop_with_a_lost_gpu(simulate) -> None:
    node = simulate("h100-sxm-80gb")
    with node.opened() as machine:
        machine.add_fault(parse_fault_text("gpu=3,xid=79,lost", 8))
    assert shown(node.path, needed(tool, "nvitop"), "-1").count("H100 80GB HBM3") == 7


def nvtop() -> Path:
    codename = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    program = needed(unpacked_from, codename[1] if codename else "bookworm", "nvtop") / "usr/bin/nvtop"
    missing = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    if absent := re.findall(r"(\S+) => not found", missing):
        pytest.skip(f"nvtop needs {', '.join(absent)}")
    return program


def test_nvtop(simulate) -> None:
    """On a terminal of its own: it shows the client's pid and the GPU's memory, and ends when told to."""
    node = simulate("h100-sxm-80gb")
    program = nvtop()
    with load(node.path, *BUSY) as client:
        child, terminal = pty.fork()
        if child == 0:
            os.execvpe(
                program, [str(program), "-C", "-p"], environment(node.path) | {"TERM": "xterm", "HOME": "/nonexistent"}
            )
        try:
            ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
            wanted = ("H100 80GB HBM3", str(client.pid), "1524MiB")
            seen, deadline = "", time.monotonic() + SECONDS
            while not all(text in seen for text in wanted):
                assert time.monotonic() < deadline, f"never came: {[text for text in wanted if text not in seen]}"
                if select.select([terminal], [], [], 1)[0]:
                    seen += os.read(terminal, 65536).decode(errors="replace")
            os.write(terminal, b"q")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            child = 0
        finally:
            if child:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            os.close(terminal)
