"""Shims found among the machine's processes: for when the files by which they speak are damaged or gone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import structlog
import trio

from hypervisor.workers.identity import PROC, ProcessIdentity, ended, identify, open_process, send

log = structlog.get_logger("workers")
_SHIM = "worker-shim"
_GONE = " (deleted)"  # what /proc says of a program that was replaced, as by an upgrade


def keepers(directory: Path) -> dict[Path, ProcessIdentity]:
    """By the worker's directory below this one, the shims of our user that run; a launcher starts them with the
    directory's name without links."""
    found, roots = {}, {directory, directory.resolve()}
    for entry in PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            program = (entry / "exe").readlink().name.removesuffix(_GONE)
            if program != _SHIM or entry.stat().st_uid != os.geteuid():
                continue
            words = os.fsdecode((entry / "cmdline").read_bytes()).split("\0")
        except OSError:
            continue  # it has ended, or is none of our business
        identity = identify(int(entry.name))
        if identity is not None and len(words) > 1 and Path(words[1]).parent in roots:
            found[directory / Path(words[1]).name] = identity
    return found


async def end_keeper(keeper: ProcessIdentity, grace_seconds: float) -> None:
    """Have a shim stop its worker, and kill it when it takes longer. Cancelling only ends the wait."""
    descriptor = open_process(keeper)
    if descriptor is None:
        return
    log.warning("a shim that nobody can follow is ended", shim=keeper.pid)
    try:
        send(descriptor, signal.SIGTERM)
        with trio.move_on_after(grace_seconds):
            await ended(descriptor)
            return
        send(descriptor, signal.SIGKILL)
        await ended(descriptor)
    finally:
        os.close(descriptor)
