"""Workers of the real daemon: the command line, a restart that ends the daemon's whole cgroup, the end of a share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hypervisor.workers.placing import AUTO, cgroup_for
from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.workers.conftest import end_workers, environment_of, is_alive

pytestmark = pytest.mark.slow  # each starts the whole daemon

STEADY = "import time; print('up', flush=True); time.sleep(600)"


def workers(daemon: DaemonProcess) -> dict[str, Any]:
    items = json.loads(daemon.cli("get", "workers", "-o", "json").stdout)["items"]
    return {item["workerId"]: item for item in items}


def start(daemon: DaemonProcess, name: str, *flags: str, program: str = STEADY) -> dict[str, Any]:
    # Behind the command nothing of ours can stand, so the address comes before it.
    words = ("worker", "start", *flags, "--server", daemon.admin_address, "-o", "json", name)
    command = [sys.executable, "-m", "hypervisor", *words, "--", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def kept(make_daemon: Callable[..., DaemonProcess]) -> Iterator[DaemonProcess]:
    """A daemon whose workers are ended after the test, whatever became of it."""
    daemon = make_daemon(simulate="h100-sxm-80gb")
    yield daemon
    end_workers(daemon.state_directory)


@contextmanager
def cgroup_of_its_own() -> Iterator[Path | None]:
    """A cgroup-v2 directory for a daemon; None where none can be made."""
    beside = cgroup_for(AUTO, Path("/"))
    if beside is None:
        yield None
        return
    path = beside.parent.parent / f"hypervisor-test-{os.getpid()}"
    path.mkdir()
    try:
        yield path
    finally:
        wait_until(lambda: not (path / "cgroup.procs").read_text(), "the cgroup to be empty")
        path.rmdir()


def test_workers_survive_the_end_of_the_daemons_whole_cgroup(kept: DaemonProcess) -> None:
    with cgroup_of_its_own() as cgroup:
        if cgroup is not None:
            join = f'echo $$ > {cgroup}/cgroup.procs && exec "$@"'
            kept.prefix = ("setsid", "sh", "-c", join, "sh")
        else:
            kept.prefix = ("setsid",)  # no cgroups here: the whole process group and session is ended instead
        kept.start().wait_ready()
        kept.cli("allocate", "trainer", "--gpu", "0", "--compute", "40%", "--vram", "8Gi", admin=True)
        first = start(kept, "one", "--allocation", "trainer", "--env", "MINE=yes")
        assert first["phase"] == "WORKER_PHASE_RUNNING"
        assert first["effectiveSmPercent"] == 40
        assert int(first["memoryLimitBytes"]) == 8 * 2**30
        environment = environment_of(first["pid"])
        assert environment["MINE"] == "yes"
        assert environment["CUDA_VISIBLE_DEVICES"] == first["gpuUuids"][0]
        assert environment["TF_ISOLATION_MODE"] == "soft"
        if cgroup is not None:
            (cgroup / "cgroup.kill").write_text("1")
        else:
            os.killpg(kept.pid, signal.SIGKILL)
        assert kept.process is not None
        kept.process.wait(10)
        assert is_alive(first["pid"])

        kept.start().wait_ready()
        again = workers(kept)["one"]
        assert (again["pid"], again["phase"]) == (first["pid"], "WORKER_PHASE_RUNNING")
        assert again.get("restarts", 0) == 0
        page = kept.cli("describe", "worker", "one").stdout
        assert "Running" in page
        assert "WorkerStarted" in page
        metrics = kept.get("/metrics")[1]
        assert 'gpuhv_worker_ready{allocation="trainer",worker="one"} 1.0' in metrics

        # The share ends, and with it what ran under it.
        kept.cli("release", "trainer", admin=True)
        wait_until(lambda: "one" not in workers(kept), "the orphan to be ended and forgotten")
        assert not is_alive(first["pid"])
        kept.stop()


def test_who_may_not_and_what_is_not_there(daemon: DaemonProcess) -> None:
    refused = daemon.cli("worker", "stop", "nobody", admin=True, check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "hypervisor: there is no worker 'nobody'; 'hypervisor get workers' lists them\n"
    refused = daemon.cli("worker", "stop", "nobody", check=False)
    assert "StopWorker changes the node, and this socket answers queries only" in refused.stderr
    words = (sys.executable, "-m", "hypervisor", "worker", "start", "--server", daemon.admin_address)
    taken = subprocess.run([*words, "mps-1", "true"], capture_output=True, text=True, timeout=60)
    assert "'mps-1' is the name of a card's MPS control daemon" in taken.stderr
    odd = subprocess.run([*words, "one", "true", b"\xff"], capture_output=True, text=True, timeout=60)
    assert odd.returncode == 1
    assert odd.stderr.startswith("hypervisor: a worker's name, command and environment must be UTF-8")
