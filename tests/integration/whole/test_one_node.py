"""One node, end to end: daemon, exec and a client program, judged by the simulator's ledger and by nvidia-ml-py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hypervisor.simulation.environment import environment
from hypervisor.simulation.machine import opened
from tests.daemon_process import DaemonProcess, wait_until
from tests.simulated_load import LOAD, assert_share, program

GIBIBYTE = 2**30
PYNVML = """
import json, pynvml as n
n.nvmlInit()
found = []
for index in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(index)
    found.append({"uuid": n.nvmlDeviceGetUUID(h), "model": n.nvmlDeviceGetName(h),
                  "vram": n.nvmlDeviceGetMemoryInfo(h).total})
print(json.dumps(found))
"""


def listed(daemon: DaemonProcess, *arguments: str) -> list[dict]:
    return json.loads(daemon.cli("get", *arguments, "-o", "json").stdout)["items"]


def exec_(daemon: DaemonProcess, *options: str) -> list[str]:
    return program("exec", "--server", daemon.owner_address, *options, "--")


@contextmanager
def running(daemon: DaemonProcess, command: list[str], group: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A client in the background; its first words are awaited."""
    with output.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, env=os.environ | {"SIM_GROUP": group})
    try:
        wait_until(lambda: output.read_text().count("\n") >= 1, f"the first words of {group}")
        yield process
    finally:
        process.terminate()
        process.wait(30)


def ledger(machine_path: Path, group: str, gpu: int) -> dict:
    """The group's figures on a GPU, and the machine's time in seconds."""
    with opened(machine_path) as machine:
        state = machine.show()
    row = next(row for row in state["groups"] if row["name"] == group)
    return {**row["gpus"][str(gpu)], "now": state["clock"]["now_ns"] / 1e9}


def share_over(machine_path: Path, group: str, gpu: int, seconds: float) -> float:
    """Busy share of the group over so many seconds of the machine's time."""
    before = ledger(machine_path, group, gpu)
    after = wait_until(
        lambda: (found := ledger(machine_path, group, gpu))["now"] >= before["now"] + seconds and found, "the window"
    )
    return (after["busy_ns"] - before["busy_ns"]) / 1e9 / (after["now"] - before["now"])


def test_gpus_are_listed_with_what_schedulers_ask_for(daemon: DaemonProcess) -> None:
    gpus = listed(daemon, "gpus")
    assert [gpu["index"] for gpu in gpus] == list(range(8))
    assert len({gpu["uuid"] for gpu in gpus}) == 8
    for gpu in gpus:
        assert gpu["model"] == "NVIDIA H100 80GB HBM3"
        assert gpu["capacity"]["tflops"]["value"] == 989
        assert gpu["capacity"]["tflops"]["source"] == "FIGURE_SOURCE_CATALOGUE"
        assert int(gpu["capacity"]["vram"]["bytes"]) == 81559 * 2**20
        assert gpu["topology"]["numaNode"] == (0 if gpu["index"] < 4 else 1)
        links = gpu["topology"]["links"]
        assert {link["peerUuid"] for link in links} == {other["uuid"] for other in gpus} - {gpu["uuid"]}
        assert all(link["nvlinkCount"] == 18 and link["nvlinkSwitched"] and link["tier"] == 0 for link in links)
        assert gpu["simulated"] is True


def test_nvml_sees_what_the_api_says(daemon: DaemonProcess) -> None:
    command = program("sim", "run", "--machine", str(daemon.machine), "--", sys.executable, "-c", PYNVML)
    seen = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert seen == [
        {"uuid": gpu["uuid"], "model": gpu["model"], "vram": int(gpu["capacity"]["vram"]["bytes"])}
        for gpu in listed(daemon, "gpus")
    ]


def test_a_client_sees_its_limit_and_is_refused_at_it(daemon: DaemonProcess) -> None:
    nvml = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(3)).total)"
    command = [*exec_(daemon, "--gpu", "3", "--vram", "2Gi"), sys.executable, "-c", nvml]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) == 2 * GIBIBYTE

    command = [*exec_(daemon, "--gpu", "3", "--vram", "2Gi"), str(LOAD), "--idle", "--grow=134217728", "--seconds=0"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"SIM_GROUP": "grown"}, timeout=60)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told[0]["total_bytes"] == 2 * GIBIBYTE
    assert next(line for line in told if "refused" in line)["refused"] is True
    assert any(line.get("alive") for line in told)
    assert 0 < ledger(daemon.machine, "grown", 3)["peak_bytes"] <= 2 * GIBIBYTE


@pytest.mark.parametrize("processes", [1, 4])
def test_a_program_that_is_never_quiet_stays_within_its_limit(daemon: DaemonProcess, processes: int) -> None:
    """Longer than the measurement of its contexts takes, during which the account never stands still."""
    command = [*exec_(daemon, "--gpu", "4", "--vram", "6Gi"), str(LOAD), "--churn", "--seconds=5"]
    command.append(f"--processes={processes}")
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"SIM_GROUP": "churn"}, timeout=60)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(line.get("turned_away", 0) for line in told) > 0, "the limit was never reached"
    assert 0 < ledger(daemon.machine, "churn", 4)["peak_bytes"] <= 6 * GIBIBYTE


def test_without_exec_the_same_client_takes_what_it_wants(daemon: DaemonProcess) -> None:
    done = subprocess.run(
        [str(LOAD), "--device=3", "--idle", "--grow=1073741824", "--seconds=0"],
        capture_output=True,
        env=environment(daemon.machine) | {"SIM_GROUP": "free"},
        timeout=60,
    )
    assert done.returncode == 0
    assert ledger(daemon.machine, "free", 3)["peak_bytes"] > 70 * GIBIBYTE


def test_a_share_of_time_holds_over_the_death_of_the_daemon(daemon: DaemonProcess, tmp_path: Path) -> None:
    command = [*exec_(daemon, "--gpu", "1", "--compute", "25%", "--vram", "4Gi", "--name", "quarter"), str(LOAD)]
    command += ["--kernel-us=500", "--hold=1073741824", "--seconds=120"]
    machine = daemon.machine
    with running(daemon, command, "quarter", tmp_path / "out"):
        assert_share(lambda: share_over(machine, "quarter", 1, 3), 0.25)
        before = listed(daemon, "pods")
        daemon.kill()
        assert_share(lambda: share_over(machine, "quarter", 1, 3), 0.25)
        daemon.start().wait_ready()
        after = listed(daemon, "pods")
        kept = ("uid", "createdAt", "directory", "phase", "spec")
        assert [{key: pod[key] for key in kept} for pod in after] == [{key: pod[key] for key in kept} for pod in before]
        assert_share(lambda: share_over(machine, "quarter", 1, 3), 0.25)
        # The control: with the limit doubled, the same program takes twice as much.
        daemon.cli("set-limits", "quarter", "--compute", "50%", admin=True)
        assert_share(lambda: share_over(machine, "quarter", 1, 3), 0.5)
        assert ledger(machine, "quarter", 1)["peak_bytes"] <= 4 * GIBIBYTE
    wait_until(lambda: not listed(daemon, "pods"), "the end of the allocation with its owner")


def test_a_truncated_usage_file_does_not_end_the_daemon(daemon: DaemonProcess, tmp_path: Path) -> None:
    command = [*exec_(daemon, "--gpu", "0", "--vram", "2Gi", "--name", "victim"), sys.executable, "-u", "-c"]
    command += ["import time; print('{}'); time.sleep(120)"]
    with running(daemon, command, "victim", tmp_path / "out"):
        (pod,) = listed(daemon, "pods")
        os.truncate(Path(pod["directory"]) / "usage", 0)
        found = wait_until(
            lambda: [event for event in listed(daemon, "events") if event["reason"] == "UsageTampered"], "the finding"
        )
        assert found[0]["regarding"]["name"] == "victim"
        assert daemon.process is not None
        assert daemon.process.poll() is None
        assert len(listed(daemon, "gpus")) == 8


def test_exec_ends_with_the_status_of_the_command(daemon: DaemonProcess) -> None:
    assert subprocess.run([*exec_(daemon, "--gpu", "0"), "sh", "-c", "exit 7"], check=False).returncode == 7
    assert subprocess.run([*exec_(daemon, "--gpu", "0"), "sh", "-c", "kill -9 $$"], check=False).returncode == -9
