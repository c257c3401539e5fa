"""Daemons for integration tests: the real program on a simulated machine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess


@pytest.fixture
def make_daemon() -> Iterator[Callable[..., DaemonProcess]]:
    """Makes daemons that are not yet started; each has a directory of its own, and is gone after the test.

    make_daemon("--flag", ..., simulate="h100-sxm-80gb", environment={...}, directory=Path(...))
    """
    made: list[DaemonProcess] = []
    directories: list[Path] = []

    def make(
        *flags: str,
        simulate: str = "h100-sxm-80gb",
        environment: dict[str, str] | None = None,
        directory: Path | None = None,
    ) -> DaemonProcess:
        if directory is None:
            # Not below tmp_path: the address of a unix socket has at most 107 bytes.
            directory = Path(tempfile.mkdtemp(prefix="hypervisor-"))
            directories.append(directory)
        simulated = ("--simulate", simulate) if simulate else ()
        daemon = DaemonProcess(directory, *simulated, *flags, environment=environment)
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        daemon.close()
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A daemon on eight simulated H100, ready."""
    return make_daemon().start().wait_ready()
