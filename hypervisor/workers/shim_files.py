"""The files that the daemon and a worker's shim speak by; shim/shim.h says what each is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hypervisor.durable import write_atomically
from hypervisor.model import WorkerSpec
from hypervisor.workers.identity import ProcessIdentity

_COARSE_SECONDS = 0.02  # files are stamped by the kernel's last tick, which is up to 10 ms ago


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimStatus:
    """What a shim has written. Times in seconds since 1970, 0 when that has not happened.

    exit_code is None when the worker did not end by itself; failed_step and failure say what kept it from running.
    """

    state: str
    run: int
    shim: ProcessIdentity
    child: ProcessIdentity
    pid_namespace: int
    started_at: float
    ended_at: float
    exit_code: int | None
    signal_number: int
    stopping: bool
    killed_late: bool
    failure: int
    failed_step: str
    cgroup_failure: int
    dropped_bytes: int

    @property
    def ran_seconds(self) -> float:
        """How long the run lasted; 0 for one that never began."""
        return max(self.ended_at - self.started_at, 0.0) if self.state == "exited" else 0.0

    @property
    def clean(self) -> bool:
        """Whether the worker ended by itself, with 0."""
        return self.state == "exited" and self.exit_code == 0


def write_start(
    directory: Path, spec: WorkerSpec, *, run: int, log_bytes: int, log_files: int, cgroup: Path | None
) -> None:
    """Write the start file of a run. Raises OSError, and ValueError for text that can't be in it."""
    fields = [
        f"run={run}",
        f"grace_ms={round(spec.grace_seconds * 1000)}",
        f"log_bytes={log_bytes}",
        f"log_files={log_files}",
        *([f"cgroup={cgroup}"] if cgroup is not None else []),
        *(f"arg={word}" for word in spec.command),
        *(f"env={name}={value}" for name, value in spec.environment),
        "end",
    ]
    if any("\0" in field for field in fields):
        raise ValueError("a command and its environment can't hold the character of number 0")
    content = b"".join(os.fsencode(field) + b"\0" for field in fields)
    write_atomically(directory / "start", content)
    (directory / "grace").unlink(missing_ok=True)


def write_grace(directory: Path, seconds: float) -> None:
    """How long the stop that is about to be asked for may take. Raises OSError."""
    write_atomically(directory / "grace", f"{round(seconds * 1000)}\n".encode())


def read_status(directory: Path) -> ShimStatus | None:
    """The last status; None when there is none that is whole."""
    try:
        text = (directory / "status").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    fields = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    if "end" not in fields:
        return None
    try:
        return _status(fields)
    except (KeyError, ValueError):
        return None


def locked(directory: Path) -> bool:
    """Whether a shim keeps the worker of this directory."""
    try:
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def reason(status: ShimStatus) -> str:
    """Why a run ended, in words."""
    if status.state == "failed":
        what = {"exec": "can't be executed", "directory": "can't enter its directory"}.get(
            status.failed_step, f"could not be started ({status.failed_step})"
        )
        return f"{what}: {os.strerror(status.failure)}"
    if status.exit_code is not None:
        text = f"exited with {status.exit_code}"
    else:
        text = f"killed by {signal_name(status.signal_number)}"
    if status.killed_late:
        return f"{text}, after the grace of the stop had passed"
    return f"{text}, stopped" if status.stopping else text


def signal_name(number: int) -> str:
    """SIGKILL rather than 9, where it has a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_lines(directory: Path, *, since: float, lines: int = 20, most_bytes: int = 8192) -> tuple[str, ...]:
    """The end of the output of the run that began at `since` (wall time), without control characters."""
    text = b""
    for name in ("log", "log.1"):
        with contextlib.suppress(OSError), (directory / name).open("rb") as file:
            # What was last written before this run is of another one.
            if text or os.fstat(file.fileno()).st_mtime < since - _COARSE_SECONDS:
                break
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - most_bytes, 0))
            text = file.read(most_bytes)
    found = text.decode(errors="replace").splitlines()[-lines:]
    return tuple("".join(each if each.isprintable() else " " for each in line)[:500] for line in found)


def _status(fields: Mapping[str, str]) -> ShimStatus:
    exit_code = int(fields["exit"])
    return ShimStatus(
        state=fields["state"],
        run=int(fields["run"]),
        shim=ProcessIdentity(int(fields["shim"]), int(fields["shim_start"])),
        child=ProcessIdentity(int(fields["child"]), int(fields["child_start"])),
        pid_namespace=int(fields["pid_namespace"]),
        started_at=int(fields["started_ms"]) / 1000,
        ended_at=int(fields["ended_ms"]) / 1000,
        exit_code=exit_code if exit_code >= 0 else None,
        signal_number=int(fields["signal"]),
        stopping=fields["stopping"] == "1",
        killed_late=fields["killed_late"] == "1",
        failure=int(fields["failure"]),
        failed_step=fields["step"],
        cgroup_failure=int(fields["cgroup_failure"]),
        dropped_bytes=int(fields["dropped"]),
    )
