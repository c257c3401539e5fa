"""A client of the driver API on one side, nvidia-ml-py on the other: both see the same machine."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hypervisor.simulation.environment import environment, library_folder
from hypervisor.simulation.faults import parse_fault_text
from tests.integration.simulation.conftest import SECONDS, Simulation, heard

LOAD = library_folder().parent / "clients" / "load"
GIB = 1 << 30
CONTEXT = 500 << 20

# For each line of input, what NVML says of each GPU.
READER = """
n.nvmlInit()
hs = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
def code(function, *arguments):
    try:
        return function(*arguments)
    except n.NVMLError as error:
        return f"error {error.value}"
tell("ready")
for line in sys.stdin:
    tell([{"gpu": n.nvmlDeviceGetUtilizationRates(h).gpu,
           "used": n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).used,
           "processes": {str(p.pid): p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(h)}} for h in hs])
"""


@contextmanager
def load(simulation: Simulation, *options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [LOAD, *options], env=environment(simulation.path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def asked(reader: subprocess.Popen[str]):
    assert reader.stdin is not None
    reader.stdin.write("\n")
    reader.stdin.flush()
    return heard(reader)


def wait_for(condition, what: str):
    """The first true answer; the deadline is for machines under load, not for the thing itself."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"never came: {what}")


def test_nvml_follows_a_client_of_the_driver_api(simulate) -> None:
    simulation = simulate("h100-sxm-80gb")
    with simulation.running(READER) as reader:
        assert heard(reader) == "ready"
        assert {(gpu["gpu"], gpu["used"]) for gpu in asked(reader)} == {(0, 0)}
        options = ("--device=2", "--kernel-us=500", f"--hold={GIB}", "--seconds=300")
        with load(simulation, *options) as client:
            gpus = wait_for(lambda: (read := asked(reader))[2]["gpu"] >= 80 and read, "a busy GPU 2")
            assert gpus[2]["processes"] == {str(client.pid): GIB + CONTEXT}
            assert gpus[2]["used"] == GIB + CONTEXT
            assert [gpu for at, gpu in enumerate(gpus) if at != 2] == [{"gpu": 0, "used": 0, "processes": {}}] * 7
            shown = simulation.show()
            assert [process["pid"] for process in shown["processes"]] == [client.pid]
            assert shown["processes"][0]["gpus"]["2"]["bytes"] == GIB + CONTEXT
            assert shown["gpus"][2]["busy_ns"] > 0
            client.kill()
            client.wait()
        gpus = asked(reader)
        assert (gpus[2]["used"], gpus[2]["processes"]) == (0, {})
        wait_for(lambda: asked(reader)[2]["gpu"] == 0, "an idle GPU 2")
    shown = simulation.show()
    assert shown["processes"] == []
    assert shown["gpus"][2]["memory"]["peak_bytes"] == GIB + CONTEXT


def test_processes_that_share_a_card_share_its_time(simulate) -> None:
    simulation = simulate("t4")
    with (
        load(simulation, "--kernel-us=300", "--seconds=300") as one,
        load(simulation, "--kernel-us=300", "--seconds=300") as two,
    ):

        def both_busy() -> dict[str, int] | None:
            shares = simulation.ask("""
                n.nvmlInit()
                h = n.nvmlDeviceGetHandleByIndex(0)
                try:
                    tell({str(s.pid): s.smUtil for s in n.nvmlDeviceGetProcessUtilization(h, 0)})
                except n.NVMLError_NotFound:
                    tell({})
            """)
            return shares if len(shares) == 2 and min(shares.values()) > 0 else None

        shares = wait_for(both_busy, "two busy processes")
        assert set(shares) == {str(one.pid), str(two.pid)}
        assert sum(shares.values()) <= 101  # time slices never overlap; each share is rounded


def test_a_client_on_a_gpu_that_is_lost_is_told(simulate) -> None:
    simulation = simulate("h100-sxm-80gb")
    with (
        simulation.running(READER) as reader,
        load(simulation, "--device=1", "--kernel-us=200", "--seconds=300") as client,
    ):
        assert heard(reader) == "ready"
        wait_for(lambda: asked(reader)[1]["gpu"] > 0, "a busy GPU 1")
        with simulation.opened() as machine:
            machine.add_fault(parse_fault_text("gpu=1,xid=79,lost", 8))
        assert client.wait(timeout=SECONDS) > 0
        assert client.stderr is not None
        assert client.stderr.read().count("\n") == 1


@pytest.mark.parametrize("fault", ["call=cuMemAlloc_v2,return=2", "call=cuMemAlloc*,gpu=0,return=2"])
def test_faults_strike_both_libraries_by_the_same_words(simulate, fault: str) -> None:
    simulation = simulate("t4")
    with simulation.opened() as machine:
        machine.add_fault(parse_fault_text(fault, 1))
    with load(simulation, f"--grow={64 << 20}", "--seconds=0.1") as client:
        out, _ = client.communicate(timeout=SECONDS)
    told = [json.loads(line) for line in out.splitlines()]
    assert [(line["error"], line["held_bytes"]) for line in told if line.get("refused")] == [(2, 0)]
    assert simulation.show()["faults"][0]["hits"] == 1
