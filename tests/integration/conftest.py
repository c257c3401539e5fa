"""Daemons for integration tests: the real program on a simulated machine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess


@contextmanager
def daemons() -> Iterator[Callable[..., DaemonProcess]]:
    """Makes daemons, each in a directory of its own; all are gone after the block."""
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

    try:
        yield make
    finally:
        for daemon in made:
            daemon.close()
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def make_daemon() -> Iterator[Callable[..., DaemonProcess]]:
    """Makes daemons that are not yet started.

    make_daemon("--flag", ..., simulate="h100-sxm-80gb", environment={...}, directory=Path(...))
    """
    with daemons() as make:
        yield make


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A daemon on eight simulated H100, ready."""
    return make_daemon().start().wait_ready()


@pytest.fixture(scope="module")
def shared_daemon() -> Iterator[DaemonProcess]:
    """As daemon, and one for all tests of a module that only ask it, or give back what they took."""
    with daemons() as make:
        yield make().start().wait_ready()
