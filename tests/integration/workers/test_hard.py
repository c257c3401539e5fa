"""`--isolation hard` through the real daemon: a share that the driver's server enforces, from grant to ledger."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hypervisor.simulation.machine import opened
from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.workers.conftest import end_workers
from tests.mps_fakes import CONTROL

pytestmark = pytest.mark.slow  # starts the whole daemon and a control daemon of MPS
GIB = 2**30
LOAD = Path("hypervisor/native/clients/load").resolve()


TWO_AT_A_TIME = """
"$1" --idle --seconds 10 --hold 2147483648 > "$2" & first=$!
until grep -q held "$2"; do kill -0 "$first" || exit 1; sleep 0.05; done  # else the second may leave it nothing
"$1" --idle --seconds 8 --grow 134217728 & second=$!
wait "$first" && wait "$second"
"""


def enforcement(daemon: DaemonProcess, name: str) -> str:
    """How sure it is that an allocation's limits hold; "" without the allocation."""
    found = json.loads(daemon.cli("get", "pods", "-o", "json").stdout)["items"]
    return next((str(each["enforcement"]) for each in found if each["spec"]["allocationId"] == name), "")


@pytest.fixture
def hard(make_daemon: Callable[..., DaemonProcess]) -> Iterator[DaemonProcess]:
    daemon = make_daemon("--mps-program", str(CONTROL), "--mps-probe-seconds", "0.5", "--mps-answer-seconds", "20")
    daemon.start().wait_ready()
    yield daemon
    daemon.close()
    end_workers(daemon.state_directory)


def granted(daemon: DaemonProcess, *words: str) -> subprocess.CompletedProcess[str]:
    """Allocated; again while the card is being prepared, as whoever asks is told to."""
    found: list[subprocess.CompletedProcess[str]] = []

    def done() -> bool:
        found.append(daemon.cli("allocate", *words, admin=True, check=False))
        return found[-1].returncode == 0 or "hard isolation now" not in found[-1].stderr

    wait_until(done, "the card to be prepared", 90)
    return found[-1]


def test_a_hard_share_from_grant_to_ledger(hard: DaemonProcess, tmp_path: Path) -> None:
    share = ("--gpu", "0", "--compute", "25%", "--vram", "4Gi", "--isolation", "hard")
    answer = granted(hard, "a", *share, "-o", "json")
    assert answer.returncode == 0, answer.stderr
    variables = json.loads(answer.stdout)["environment"]
    assert variables["TF_CUDA_SM_PERCENT_LIMIT"] == "25"
    assert variables["TF_GPU_MEMORY_LIMIT"] == "4096"
    busy = [LOAD, "--seconds", "0.5", "--kernel-us", "1000", "--grid", "100000"]
    subprocess.run(busy, env={**os.environ, **variables, "SIM_GROUP": "a"}, check=True, timeout=60)
    with opened(hard.machine) as machine:
        used = next(group for group in machine.show()["groups"] if group["name"] == "a")["gpus"]["0"]
    assert used["sm_ns"] / used["busy_ns"] == pytest.approx(32 / 132, rel=0.01)
    wait_until(lambda: "verified" in hard.cli("describe", "pod", "a").stdout, "what was read back to be told")
    (told,) = json.loads(hard.cli("get", "pods", "-o", "json").stdout)["items"]
    assert told["devices"][0]["effectiveHardSmPercent"] == pytest.approx(100 * 32 / 132)

    # exec is the same road, for a process of its own; its share is an equal one.
    under = [sys.executable, "-m", "hypervisor", "exec", "--server", hard.owner_address, "--name", "b", *share, "--"]
    done = subprocess.run([*under, LOAD, "--idle", "--seconds", "0", "--grow", str(GIB // 16)],
                          env={**os.environ, "SIM_GROUP": "b"}, capture_output=True, text=True, timeout=90)  # fmt: skip
    assert '"refused": true' in done.stdout, done.stderr
    with opened(hard.machine) as machine:
        used = next(group for group in machine.show()["groups"] if group["name"] == "b")["gpus"]["0"]
    assert 0 < used["peak_bytes"] <= 4 * GIB

    # The server bounds each process; that two of them together have no more than the share is up to the limiter.
    both = [
        *under[: -len(share) - 2],
        "both",
        *share,
        "--",
        "/bin/sh",
        "-c",
        TWO_AT_A_TIME,
        "sh",
        str(LOAD),
        str(tmp_path / "first"),
    ]
    running = subprocess.Popen(both, env={**os.environ, "SIM_GROUP": "both"}, stdout=subprocess.DEVNULL)
    wait_until(lambda: enforcement(hard, "both") == "ENFORCEMENT_COOPERATIVE", "two processes to be told", 60)
    assert running.wait(timeout=90) == 0
    with opened(hard.machine) as machine:
        used = next(group for group in machine.show()["groups"] if group["name"] == "both")["gpus"]["0"]
    assert 3 * GIB < used["peak_bytes"] <= 4 * GIB

    refused = granted(hard, "c", "--gpu", "0", "--compute", "30%", "--vram", "4Gi", "--isolation", "hard")
    assert "is cut into hard shares of 25% and 4096 MiB" in refused.stderr
    soft = hard.cli("allocate", "d", "--gpu", "0", "--compute", "5%", admin=True, check=False)
    assert "two modes never share a card" in soft.stderr
    two = hard.cli("allocate", "e", "--gpu", "1", "--gpu", "2", "--isolation", "hard", admin=True, check=False)
    assert "reaches the MPS server of one card only" in two.stderr

    # The daemon goes and comes back: the control daemon, its server and its limits are as they were.
    (before,) = json.loads(hard.cli("get", "workers", "-o", "json").stdout)["items"]
    hard.kill()
    hard.start().wait_ready()
    wait_until(lambda: "verified" in hard.cli("describe", "pod", "a").stdout, "what was read back to be told again")
    (after,) = json.loads(hard.cli("get", "workers", "-o", "json").stdout)["items"]
    assert after["pid"] == before["pid"]
