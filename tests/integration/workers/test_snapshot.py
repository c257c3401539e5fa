"""Snapshot and resume through the real daemon: by name, over a restart, and by the policy for idle allocations."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hypervisor.simulation.machine import opened
from tests.daemon_process import DaemonProcess, wait_until

pytestmark = pytest.mark.slow  # starts the whole daemon
GIB = 2**30
LOAD = Path("hypervisor/native/clients/load").resolve()


def client(daemon: DaemonProcess, name: str) -> subprocess.Popen[bytes]:
    """A program under an allocation of that name, which holds 2 GiB and launches nothing."""
    words = ("allocate", name, "--gpu", "0", "--compute", "40%", "--vram", "8Gi", "-o", "json")
    variables = json.loads(daemon.cli(*words, admin=True).stdout)["environment"]
    environment = {**os.environ, **variables, "SIM_GROUP": name}
    made = subprocess.Popen([LOAD, "--hold", str(2 * GIB), "--idle", "--seconds", "600"], env=environment)
    wait_until(lambda: held(daemon, name) > 2 * GIB and processes(daemon, name), "the client to hold its memory")
    return made


def held(daemon: DaemonProcess, name: str) -> int:
    with opened(daemon.machine) as machine:
        groups = machine.show()["groups"]
    return next((int(group["gpus"]["0"]["bytes"]) for group in groups if group["name"] == name), 0)


def processes(daemon: DaemonProcess, name: str) -> list[Any]:
    items = json.loads(daemon.cli("get", "pods", name, "-o", "json").stdout)["items"]
    return [process for item in items for process in item["processes"] if "hostPid" in process]


def test_vram_goes_to_the_host_by_name_and_comes_back_over_a_restart(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon().start().wait_ready()
    program = client(daemon, "a")
    try:
        before = held(daemon, "a")
        told = daemon.cli("snapshot", "a", admin=True).stdout
        assert str(program.pid) in told
        assert held(daemon, "a") == 0
        assert daemon.cli("snapshot", "a", admin=True).stdout == told  # frozen already: the same answer
        daemon.kill()
        daemon.start().wait_ready()
        assert daemon.cli("resume", "a", admin=True).stdout == "a goes on\n"
        assert held(daemon, "a") == before
        events = {event["reason"] for event in json.loads(daemon.cli("get", "events", "-o", "json").stdout)["items"]}
        assert {"AllocationFrozen", "AllocationResumed"} <= events
        again = daemon.cli("resume", "a", admin=True, check=False)
        assert "'a' is not frozen" in again.stderr
        nobody = daemon.cli("snapshot", "nobody", admin=True, check=False)
        assert "there is no allocation 'nobody'" in nobody.stderr
    finally:
        program.kill()
        program.wait()


def test_what_is_idle_is_frozen_where_the_policy_says_so(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon("--freeze-idle-seconds", "2").start().wait_ready()
    program = client(daemon, "a")
    try:
        wait_until(lambda: held(daemon, "a") == 0, "the idle allocation to be frozen")
        daemon.cli("resume", "a", admin=True)
    finally:
        program.kill()
        program.wait()
