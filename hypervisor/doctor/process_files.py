"""Processes as /proc shows them. What takes a lock of the process itself is not read of one that hangs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hypervisor.doctor.root import Root, UnreadableError


@dataclass(frozen=True, slots=True)
class Process:
    """One process. state as the kernel's letter; D waits in the kernel and can't be interrupted."""

    pid: int
    command: str
    state: str
    threads: int
    start_time_ticks: int

    @property
    def hangs(self) -> bool:
        return self.state == "D"


def processes(root: Root) -> Iterator[Process]:
    """All processes, by pid."""
    for pid in sorted(int(name) for name in root.names("/proc") if name.isdecimal()):
        found = process(root, pid)
        if found is not None:
            yield found


def process(root: Root, pid: int) -> Process | None:
    """One process; None when it is gone or its line can't be understood."""
    try:
        text = root.text(f"/proc/{pid}/stat")
    except UnreadableError:
        return None
    if not text:
        return None
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) < 20 or not (fields[17].isdecimal() and fields[19].isdecimal()):
        return None
    return Process(pid, head.partition("(")[2], fields[0], int(fields[17]), int(fields[19]))


def arguments(root: Root, found: Process) -> tuple[str, ...]:
    """The command line; empty for kernel threads, and for a process that hangs or is another user's."""
    return _parts(root, found, "cmdline")


def environment(root: Root, found: Process) -> Mapping[str, str]:
    """The environment that a process was started with. Raises UnreadableError for another user's process."""
    if found.hangs:
        return {}
    text = root.text(f"/proc/{found.pid}/environ") or ""
    pairs = (entry.partition("=") for entry in text.split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs}


def mapped_files(root: Root, found: Process) -> frozenset[str]:
    """Paths of the files that a process has mapped. Raises UnreadableError for another user's process."""
    if found.hangs:
        return frozenset()
    text = root.text(f"/proc/{found.pid}/maps") or ""
    fields = (line.split(maxsplit=5) for line in text.splitlines())
    return frozenset(line[5] for line in fields if len(line) == 6 and line[5].startswith("/"))


def limit(root: Root, pid: int, name: str) -> int | None:
    """The soft limit of this name in /proc/PID/limits; None for unlimited or when it is not told."""
    for line in (root.text(f"/proc/{pid}/limits") or "").splitlines():
        if line.startswith(name):
            value = line[len(name) :].split()
            return int(value[0]) if value and value[0].isdecimal() else None
    return None


def waits_in(root: Root, pid: int) -> str:
    """The kernel function that a process waits in; "" when it runs or that is not told."""
    try:
        found = root.word(f"/proc/{pid}/wchan")
    except UnreadableError:
        return ""
    return "" if found == "0" else found


def has_open(root: Root, pid: int, beginning: str) -> bool:
    """Whether a process has a file open whose path begins so; this takes no lock of the process."""
    folder = f"/proc/{pid}/fd"
    try:
        return any((root.link(f"{folder}/{name}") or "").startswith(beginning) for name in root.names(folder))
    except UnreadableError:
        return False


def _parts(root: Root, found: Process, name: str) -> tuple[str, ...]:
    if found.hangs:
        return ()
    try:
        text = root.text(f"/proc/{found.pid}/{name}") or ""
    except UnreadableError:
        return ()
    return tuple(part for part in text.split("\0") if part)
