"""Which process is meant: a pid with its start time, checked again after it was opened."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

PROC = Path("/proc")
_STATE, _SESSION, _START = 0, 3, 19  # places behind the name in /proc/PID/stat
_TICKS = os.sysconf("SC_CLK_TCK")
_ENDED = frozenset({"Z", "X", "x"})


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """pid in our PID namespace; start in clock ticks since boot, field 22 of /proc/PID/stat. Unique within a boot."""

    pid: int
    start: int


def alive(identity: ProcessIdentity) -> bool:
    """Whether this very process runs; one that has ended and waits to be reaped does not."""
    fields = _stat(identity.pid)
    return fields is not None and int(fields[_START]) == identity.start and fields[_STATE] not in _ENDED


def identify(pid: int) -> ProcessIdentity | None:
    """The process that has this pid now; None when there is none that runs."""
    fields = _stat(pid)
    return None if fields is None or fields[_STATE] in _ENDED else ProcessIdentity(pid, int(fields[_START]))


def age(identity: ProcessIdentity) -> float:
    """Seconds since a process of this boot began, whatever was done to the wall clock; 0 where that is not known."""
    if identity.start <= 0:
        return 0.0
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - identity.start / _TICKS, 0.0)


def open_process(identity: ProcessIdentity) -> int | None:
    """A pidfd of this very process, to be closed by the caller; None when it has gone."""
    if identity.pid <= 0:
        return None
    try:
        descriptor = os.pidfd_open(identity.pid)
    except (ProcessLookupError, PermissionError):
        return None
    # Only now: a pid that was reused before it was opened has another start time, and after that it can't be reused.
    if alive(identity):
        return descriptor
    os.close(descriptor)
    return None


async def ended(descriptor: int) -> None:
    """Until the process of a pidfd has ended. Cancelling only ends the wait."""
    await trio.lowlevel.wait_readable(descriptor)


def send(descriptor: int, number: signal.Signals) -> None:
    """A signal to the process of a pidfd; none when it has ended."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, number)


def members(session: int, since: int) -> tuple[ProcessIdentity, ...]:
    """The processes of a session whose leader began at `since`; a session of that number that is younger is not it."""
    found = []
    for pid, fields in _all():
        if int(fields[_SESSION]) == session and int(fields[_START]) >= since and fields[_STATE] not in _ENDED:
            found.append(ProcessIdentity(pid, int(fields[_START])))
    return tuple(found)


def end_session(session: int, since: int) -> int:
    """SIGKILL to what is left of a session; returns how many processes that were."""
    if session <= 0 or since <= 0:
        return 0
    count = 0
    for identity in members(session, since):
        descriptor = open_process(identity)
        if descriptor is not None:
            try:
                send(descriptor, signal.SIGKILL)
                count += 1
            finally:
                os.close(descriptor)
    return count


def boot_id() -> str:
    """The kernel's name for this boot."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> int:
    """The inode of our PID namespace."""
    return (PROC / "self/ns/pid").stat().st_ino


def _all() -> Iterator[tuple[int, list[str]]]:
    with os.scandir(PROC) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                fields = _stat(int(entry.name))
                if fields is not None:
                    yield int(entry.name), fields


def _stat(pid: int) -> list[str] | None:
    try:
        # A process gives itself any bytes for a name.
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()
