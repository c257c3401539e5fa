"""Locks on the daemon's directories, taken before anything is bound: one daemon to a directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypervisor.node.failure import StartError, storage_error


@contextmanager
def locked(directory: Path, purpose: str, *, mode: int = 0o700, name: str = "lock") -> Iterator[None]:
    """Hold the directory until the block is left; the kernel lets go when we die in any way.

    The directory is made where it is missing. Raises StartError that names the holder when there is one.
    """
    descriptor = _open(directory, purpose, mode, name)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(_held(descriptor, directory, purpose)) from None
        _sign(descriptor)
        yield
    finally:
        os.close(descriptor)


def _open(directory: Path, purpose: str, mode: int, name: str) -> int:
    try:
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
        return os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise storage_error(f"use the {purpose}", directory, error) from error


def _sign(descriptor: int) -> None:
    """Write who holds it, over what was there, which needs no new block of a full disk."""
    content = f"{os.getpid()}\n".encode()
    try:
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
    except OSError:
        # The lock is held all the same; a pid of an earlier holder would be a lie.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)


def _held(descriptor: int, directory: Path, purpose: str) -> str:
    holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    who = f"process {holder}" if holder.isdigit() else "another process"
    flag = "--state-dir" if purpose == "state directory" else "--base-dir"
    return f"the {purpose} {directory} is in use by the daemon that runs as {who}; stop it, or name another with {flag}"
