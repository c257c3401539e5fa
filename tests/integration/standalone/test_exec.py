"""exec --standalone: limits hold without a daemon, judged by the simulator's ledger, with negative controls."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.simulated_load import LOAD, Machine, assert_share, program

SECONDS = 4


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine", "h100-sxm-80gb")


def exec_(*options: str) -> list[str]:
    return program("exec", "--standalone", *options, "--")


def busy(*options: str) -> list[str]:
    return [*exec_(*options), str(LOAD), "--kernel-us=500", f"--seconds={SECONDS}"]


def share(machine: Machine, command: list[str], group: str, gpu: int = 0) -> float:
    """Of the GPU's time while the command ran."""
    before = machine.used(group, gpu).busy_seconds
    ran = machine.run(command, group=group)
    assert ran.status == 0, ran.stderr
    return (machine.used(group, gpu).busy_seconds - before) / ran.line("launches")["seconds"]


def test_compute_limit_is_a_share_of_gpu_time(machine: Machine) -> None:
    assert_share(lambda: share(machine, busy("--gpu", "0", "--compute", "25%"), "limited"), 0.25)


def test_without_the_library_the_same_run_takes_the_whole_gpu(machine: Machine) -> None:
    command = [str(LOAD), "--kernel-us=500", f"--seconds={SECONDS}"]
    assert_share(lambda: share(machine, command, "free"), 1.0, tolerance=0.1)


def test_with_the_limit_doubled_twice_as_much_is_used(machine: Machine) -> None:
    assert_share(lambda: share(machine, busy("--gpu", "0", "--compute", "50%"), "doubled"), 0.5)


def test_tflops_are_a_share_of_the_card(machine: Machine) -> None:
    # 494.5 of the 989 dense FP16 TFLOPS of an H100 SXM.
    assert_share(lambda: share(machine, busy("--gpu", "0", "--compute", "494.5"), "tflops"), 0.5)


def test_the_granted_gpu_is_the_one_that_is_used(machine: Machine) -> None:
    assert_share(lambda: share(machine, busy("--gpu", "5", "--compute", "30%"), "fifth", gpu=5), 0.3)
    assert machine.used("fifth", gpu=0).busy_seconds == 0


def test_memory_limit_is_what_the_program_sees_and_meets(machine: Machine) -> None:
    limit = 4 * 2**30
    command = [*exec_("--gpu", "0", "--vram", "4Gi"), str(LOAD), "--idle", "--grow=268435456", "--seconds=0"]
    ran = machine.run(command, group="grown")
    assert ran.status == 0, ran.stderr
    assert ran.line("total_bytes")["total_bytes"] == limit
    assert ran.line("refused")["refused"] is True
    assert ran.line("alive")["alive"] is True
    assert 0 < machine.used("grown").peak_bytes <= limit


def test_without_the_library_the_program_grows_beyond(machine: Machine) -> None:
    command = [str(LOAD), "--idle", "--grow=268435456", "--seconds=0"]
    machine.run(command, group="free")
    assert machine.used("free").peak_bytes > 70 * 2**30


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_status_of_the_command_is_passed_on(machine: Machine, script: str, status: int) -> None:
    assert machine.run([*exec_("--gpu", "0"), "sh", "-c", script], group="status").status == status


def test_a_signal_reaches_the_command(machine: Machine) -> None:
    command = [*exec_("--gpu", "0"), "sh", "-c", "trap 'exit 9' TERM; echo '{}'; while :; do sleep 0.05; done"]
    with subprocess.Popen(command, env=machine.environment("signal"), stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"{}\n"
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 9


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (("--gpu", "8"), 1, "8"),
        (("--gpu", "GPU-nonsense"), 1, "GPU-nonsense"),
        (("--compute", "0%"), 2, "not above 0"),
        (("--compute", "101%"), 2, "more than the whole card"),
        (("--vram", "8gi"), 2, "8Gi"),
        (("--vram", "81Gi"), 1, "81"),
        (("--compute", "2000"), 1, "2000"),
        (("--vram", "1Mi"), 1, "context"),
        (("--compute", "20%", "--compute-request", "30%"), 1, "request"),
        (("--name", "../x"), 1, "../x"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_left(
    machine: Machine, options: tuple[str, ...], status: int, words: str, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    ran = machine.run([*exec_(*options, "--base-dir", str(base)), "true"], group="bad")
    assert ran.status == status
    assert words in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert list(base.iterdir()) == []


def test_a_program_that_is_not_there_is_named(machine: Machine) -> None:
    ran = machine.run([*exec_("--gpu", "0"), "no-such-program"], group="missing")
    assert (ran.status, ran.stderr.count("\n")) == (127, 1)
    assert "no-such-program" in ran.stderr


def test_without_a_driver_the_reason_is_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [*exec_("--gpu", "0"), "true"],
        env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "libnvidia-ml" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("command", "why"), [("/etc/passwd", "it is not executable"), ("/etc", "it is a directory")])
def test_what_is_there_and_no_program_is_told_apart(command: str, why: str) -> None:
    done = subprocess.run(program("exec", "--", command), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 126
    (line,) = done.stderr.splitlines()
    assert f"can't run '{command}': {why}" in line


def test_without_a_daemon_exec_says_what_to_do(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'none.sock'}"
    done = subprocess.run(
        program("exec", "--server", address, "--", "true"), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert "--standalone" in done.stderr
    assert address in done.stderr


def test_files_are_gone_after_a_kill_of_the_command(machine: Machine, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    command = [*exec_("--gpu", "0", "--base-dir", str(base)), str(LOAD), "--idle", "--seconds=60"]
    with subprocess.Popen(command, env=machine.environment("killed"), stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline().split(b":")[1].split(b",")[0])
        deadline = time.monotonic() + 20
        subprocess.run(["kill", "-9", str(pid)], check=True)
        assert running.wait(deadline - time.monotonic()) == 137
    assert list(base.iterdir()) == []
