"""Crowds at the daemon's doors, and programs that come one after the other: who behaves gets through."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from urllib.parse import urlsplit

import pytest

from tests.daemon_process import DaemonProcess, wait_until


@pytest.fixture
def crowd() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def exec_(daemon: DaemonProcess, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hypervisor", "exec", "--server", daemon.owner_address, *options, "--", "true"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_quiet_connections_to_the_owner_socket_keep_no_exec_out(shared_daemon: DaemonProcess, crowd: ExitStack) -> None:
    for _ in range(300):
        quiet = crowd.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connected = partial(quiet.connect_ex, shared_daemon.owner_address.removeprefix("unix:"))
        wait_until(lambda connected=connected: connected() == 0, "a place in the queue")
    done = exec_(shared_daemon, "--gpu", "0", "--compute", "10%")
    assert (done.returncode, done.stderr) == (0, "")


def test_slow_http_clients_keep_no_probe_out(shared_daemon: DaemonProcess, crowd: ExitStack) -> None:
    address = urlsplit(shared_daemon.http_url)
    for _ in range(500):
        slow = crowd.enter_context(socket.create_connection((address.hostname, address.port), timeout=10))
        slow.sendall(b"GET / HT")
    assert shared_daemon.get("/healthz")[0] == 200


def test_one_program_after_another_gets_the_same_share(shared_daemon: DaemonProcess) -> None:
    for _ in range(4):
        done = exec_(shared_daemon, "--gpu", "6", "--compute", "80%")
        assert (done.returncode, done.stderr) == (0, "")


def test_who_waits_for_a_stopped_daemon_is_told(daemon: DaemonProcess) -> None:
    command = [sys.executable, "-m", "hypervisor", "exec", "--server", daemon.owner_address, "--gpu", "0", "--", "true"]
    daemon.signal(signal.SIGSTOP)
    try:
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as waiting:
            assert waiting.stderr is not None
            line = waiting.stderr.readline()
            assert f"waiting for the daemon at {daemon.owner_address}" in line
            os.kill(daemon.pid, signal.SIGCONT)
            assert waiting.wait(30) == 0
    finally:
        daemon.signal(signal.SIGCONT)
