"""The files that the daemon and a worker's shim speak by; shim/shim.h says what each is."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hypervisor.durable import write_atomically
from hypervisor.model import WorkerSpec
from hypervisor.workers.identity import ProcessIdentity

_MOST_STATUS_BYTES = 4096  # a shim writes a quarter of it
_MOST_START_BYTES = 2**20
_COARSE_SECONDS = 0.02  # files are stamped by the kernel's last tick, which is up to 10 ms ago


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimStatus:
    """What a shim has written. Times in seconds since 1970, 0 when that has not happened.

    exit_code is None when the worker did not end by itself; failed_step and failure say what kept it from running.
    logs_begun: how often the log of this run was rotated; lasted: its seconds by a clock that nobody sets. Both are
    None from a shim of an earlier version, and not known while it runs.
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
    logs_begun: int | None = None
    lasted: float | None = None

    @property
    def ran_seconds(self) -> float:
        """How long the run lasted; 0 for one that never began."""
        if self.state != "exited":
            return 0.0
        return max(self.ended_at - self.started_at, 0.0) if self.lasted is None else self.lasted

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


def read_start(directory: Path) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]] | None:
    """The command and the environment of the last start; None when they can't be read."""
    try:
        fields = os.fsdecode(read_plain(directory / "start", _MOST_START_BYTES)).split("\0")
    except OSError:
        return None
    if fields[-2:] != ["end", ""]:
        return None
    values: dict[str, list[str]] = {"arg": [], "env": []}
    for field in fields[:-2]:
        key, _, value = field.partition("=")
        values.setdefault(key, []).append(value)
    pairs = (value.partition("=") for value in values["env"])
    return tuple(values["arg"]), tuple((name, value) for name, _, value in pairs)


def read_status(directory: Path) -> ShimStatus | None:
    """The last status; None when there is none that is whole."""
    try:
        text = read_plain(directory / "status", _MOST_STATUS_BYTES).decode(errors="replace")
    except OSError:
        return None
    fields = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    if "end" not in fields:
        return None
    try:
        return _status(fields)
    except (KeyError, ValueError):
        return None


def read_grace(directory: Path, fallback: float) -> float:
    """The seconds of a stop that gives its own grace. Raises OSError and ValueError for what is no grace."""
    try:
        return _number(read_plain(directory / "grace", 32).decode(errors="replace")) / 1000
    except FileNotFoundError:
        return fallback


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


def last_lines(
    directory: Path, *, since: float, begun: int | None = None, lines: int = 20, most_bytes: int = 8192
) -> tuple[str, ...]:
    """The end of the output of the last run, without control characters. since: when it began, by the wall clock;
    begun: how often its log was rotated, None where that is not known."""
    text = b""
    for name in ("log", "log.1"):
        with contextlib.suppress(OSError), open(_opened(directory / name), "rb") as file:
            if text:
                break
            # Each run begins a log. Whether the one before it is of this run too only its age tells, while the run has
            # not ended; and then not, when the clock was set meanwhile.
            if name == "log.1" and (
                begun == 0 or (begun is None and os.fstat(file.fileno()).st_mtime < since - _COARSE_SECONDS)
            ):
                break
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - most_bytes, 0))
            text = file.read(most_bytes)
    found = text.decode(errors="replace").splitlines()[-lines:]
    return tuple("".join(each if each.isprintable() else " " for each in line)[:500] for line in found)


def _opened(path: Path) -> int:
    """A descriptor of a plain file: a worker of the daemon's user may have put anything in its place, and neither a
    pipe nor a link may hold us up. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return descriptor


def read_plain(path: Path, most: int) -> bytes:
    """At most so many bytes of a plain file, without waiting for whatever else may be in its place. Raises OSError."""
    with open(_opened(path), "rb") as file:
        return file.read(most)


def _number(text: str, most: int = 2**63 - 1) -> int:
    """A number that a shim can have written. Raises ValueError."""
    number = int(text) if len(text) < 32 else most + 1
    if not -1 <= number <= most:
        raise ValueError(f"{text[:32]!r} is out of range")
    return number


def _process(fields: Mapping[str, str], name: str) -> ProcessIdentity:
    return ProcessIdentity(_number(fields[name], 2**31 - 1), _number(fields[f"{name}_start"]))


def _status(fields: Mapping[str, str]) -> ShimStatus:
    exit_code = _number(fields["exit"], 2**31 - 1)
    return ShimStatus(
        state=fields["state"],
        run=_number(fields["run"]),
        shim=_process(fields, "shim"),
        child=_process(fields, "child"),
        pid_namespace=_number(fields["pid_namespace"]),
        started_at=_number(fields["started_ms"]) / 1000,
        ended_at=_number(fields["ended_ms"]) / 1000,
        exit_code=exit_code if exit_code >= 0 else None,
        signal_number=_number(fields["signal"], 2**31 - 1),
        stopping=fields["stopping"] == "1",
        killed_late=fields["killed_late"] == "1",
        failure=_number(fields["failure"], 2**31 - 1),
        failed_step=fields["step"],
        cgroup_failure=_number(fields["cgroup_failure"], 2**31 - 1),
        dropped_bytes=_number(fields["dropped"]),
        logs_begun=_number(fields["begun"]) if "begun" in fields and fields["state"] != "running" else None,
        lasted=_number(fields["ran_ms"]) / 1000 if "ran_ms" in fields else None,
    )
