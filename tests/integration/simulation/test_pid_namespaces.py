"""Programs in containers: NVML lists pids of the host, as the real one does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hypervisor.simulation.environment import environment
from tests.daemon_process import wait_until
from tests.simulated_load import LOAD

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
LIST = """
n.nvmlInit()
card = n.nvmlDeviceGetHandleByIndex(0)
tell([each.pid for each in n.nvmlDeviceGetComputeRunningProcesses(card)])
"""


def test_a_program_of_another_pid_namespace_is_listed_by_its_pid_on_the_host(simulate) -> None:
    simulation = simulate("h100-sxm-80gb")
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False, timeout=60).returncode != 0:
        pytest.skip("a PID namespace can't be made here")
    # The shell says when the program has its context, and knows it by its pid inside.
    script = f'"{LOAD}" --idle --hold=1048576 --seconds=3600 & echo "$!"; wait'
    command = [*UNSHARE, "sh", "-c", script]
    with subprocess.Popen(command, env=environment(simulation.path), stdout=subprocess.PIPE, text=True) as inside:
        try:
            assert inside.stdout is not None
            inner = int(inside.stdout.readline())
            (pid,) = wait_until(lambda: simulation.ask(LIST), "the program to have its context")
            assert pid != inner
            names = Path(f"/proc/{pid}/status").read_text().splitlines()
            assert next(line for line in names if line.startswith("NSpid:")).split()[1:] == [str(pid), str(inner)]
            assert simulation.ask(f"n.nvmlInit(); tell(n.nvmlSystemGetProcessName({pid}))").endswith("load")
        finally:
            inside.kill()
