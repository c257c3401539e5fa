"""Who lives: finds the processes that slots, owners and files name, through /proc of the host.

A process in a slot is named by (PID-namespace inode, pid in that namespace, start time). Of the daemon's own namespace
that is looked up directly; of another one the host's processes are searched. What can't be seen is unknown, and
unknown is not dead: only the dead lose their slot.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

# PROC_PID_INIT_INO of the kernel: the inode of the first PID namespace, from which all processes can be seen.
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
_REMEMBERED_MAPPINGS = 4096


class Life(Enum):
    """What can be said of a process."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    # It may be alive: a process of its pid has a time namespace of its own, so its start time can't be compared.
    OTHER_CLOCK = "other clock"


@dataclass(frozen=True, slots=True)
class ProcessName:
    """A process as a slot names it; start_time_ticks 0 when it is not known."""

    pid_namespace: int
    pid: int
    start_time_ticks: int


@dataclass(frozen=True, slots=True)
class Stat:
    """The parts of /proc/PID/stat that matter here."""

    parent: int
    start_time_ticks: int
    ended: bool


class ProcessTable:
    """A view of /proc that is refreshed by forget(): within one round, one search serves all questions.

    forget() must be called after the slots that are asked about were read, so that a process that attached meanwhile
    is not missed.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._by_start: dict[int, list[int]] | None = None
        self._complete = False
        self._known: dict[ProcessName, int] = {}
        self._namespaces_below: set[int] = set()
        self._own_time = _inode(proc / "self/ns/time")
        self._seen_mapped: set[tuple[int, int, tuple[int, int]]] = set()
        self.own_namespace = _inode(proc / "self/ns/pid") or 0
        own = self.stat(os.getpid())
        self.own_start_time = own.start_time_ticks if own is not None else 0
        # /proc may belong to another namespace than ours; then its numbers are not the ones that slots hold.
        self._own_proc = _link(proc / "self") == str(os.getpid())
        self._sees_all = self.own_namespace == INITIAL_PID_NAMESPACE and (proc / "1/stat").exists()

    @property
    def proc(self) -> Path:
        """The /proc that is looked at."""
        return self._proc

    @property
    def own_owner_word(self) -> int:
        """This daemon's identity, as slots hold it."""
        return self.own_namespace << 32 | os.getpid()

    @property
    def sees_everything(self) -> bool:
        """Can this daemon look at every process of the host?"""
        return self._sees_all and os.geteuid() == 0

    def forget(self) -> None:
        """Search anew at the next question."""
        self._by_start = None

    def find(self, name: ProcessName) -> tuple[Life, int | None]:
        """Is this process alive, and what is its pid on the host? None where it could not be found."""
        if not self._own_proc or not name.pid_namespace or not self.own_namespace:
            return Life.UNKNOWN, None
        if name.pid_namespace == self.own_namespace:
            life = self._judge(name.pid, name.start_time_ticks)
            return life, name.pid if life is Life.ALIVE else None
        known = self._known.get(name)
        if known is not None and self._judge(known, name.start_time_ticks) is Life.ALIVE:
            return Life.ALIVE, known
        self._known.pop(name, None)
        return self._search(name)

    def alive(self, pid: int, start_time_ticks: int) -> bool:
        """Does the process of this host pid and start time live? True also where that can't be said."""
        return self._judge(pid, start_time_ticks) is not Life.DEAD

    def stat(self, pid: int) -> Stat | None:
        """What /proc says of a host pid; None when it is gone or can't be read."""
        try:
            return _parse_stat((self._proc / str(pid) / "stat").read_bytes())
        except (OSError, ValueError):
            return None

    def descends_from(self, pid: int, ancestors: Iterable[int]) -> int | None:
        """The nearest of these ancestors that a host process descends from, or is; None when it is none."""
        wanted, seen = set(ancestors), 0
        while pid > 1 and seen < 64:
            if pid in wanted:
                return pid
            found = self.stat(pid)
            if found is None:
                return None
            pid, seen = found.parent, seen + 1
        return None

    def cgroup_names(self, pid: int, pod_uids: Iterable[str]) -> str | None:
        """Which of these Pods' cgroups a host process is in; None when it is in none, or when that can't be read."""
        try:
            # The systemd driver of cgroups writes underscores for the dashes.
            path = (self._proc / str(pid) / "cgroup").read_text(errors="replace").replace("_", "-")
        except OSError:
            return None
        return next((uid for uid in pod_uids if f"pod{uid}" in path), None)

    def environment_names(self, pid: int, entries: Iterable[bytes]) -> bytes | None:
        """Which of these NAME=value entries a host process was started with; None also when that can't be read."""
        try:
            environment = (self._proc / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return None
        return next((entry for entry in entries if entry in environment), None)

    def has_library(self, pid: int, name: str) -> bool | None:
        """Is a file of this name in the memory of a host process? None when that can't be read."""
        try:
            return f"/{name}\n".encode() in (self._proc / str(pid) / "maps").read_bytes()
        except OSError:
            return None

    def with_environment(self, entries: Iterable[bytes]) -> set[bytes]:
        """Which of these NAME=value entries some living process was started with. What can't be read has none."""
        wanted, found = set(entries), set[bytes]()
        for pid in self._pids() if wanted else ():
            try:
                environment = (self._proc / str(pid) / "environ").read_bytes()
            except OSError:
                continue
            if environment:
                found |= wanted.intersection(environment.split(b"\0"))
        return found

    def mapping(self, inodes: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """Which of these files, by (device, inode), some other process has mapped."""
        wanted, found = set(inodes), set[tuple[int, int]]()
        for pid in self._pids() if wanted else ():
            if pid != os.getpid():
                found |= wanted.intersection(self._mapped_by(pid) or ())
        return found

    def has_mapped(self, pid: int, start_time_ticks: int, inode: tuple[int, int]) -> bool:
        """Has this host process the file mapped, so that it may speak of itself there? True also where that can't be
        said. Once it has, it keeps it: that is looked up once."""
        key = (pid, start_time_ticks, inode)
        if key not in self._seen_mapped:
            mapped = self._mapped_by(pid)
            if mapped is not None and inode not in mapped:
                return False
            if len(self._seen_mapped) >= _REMEMBERED_MAPPINGS:
                self._seen_mapped.clear()  # of processes long gone, mostly; the rest is looked up again
            self._seen_mapped.add(key)
        return True

    def _mapped_by(self, pid: int) -> set[tuple[int, int]] | None:
        """The files that a host process has mapped, by (device, inode); None when that can't be read."""
        try:
            lines = (self._proc / str(pid) / "maps").read_bytes().splitlines()
        except OSError:
            return None
        found = set()
        for line in lines:
            _, _, _, device, inode, *_ = line.split(maxsplit=5)
            if inode != b"0":
                major, _, minor = device.partition(b":")
                found.add((os.makedev(int(major, 16), int(minor, 16)), int(inode)))
        return found

    def _pids(self) -> list[int]:
        try:
            with os.scandir(self._proc) as entries:
                return [int(entry.name) for entry in entries if entry.name.isdigit()]
        except OSError:
            return []

    def _judge(self, pid: int, start_time_ticks: int) -> Life:
        try:
            found = _parse_stat((self._proc / str(pid) / "stat").read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            # Hidden from us is not gone.
            return Life.DEAD if self._proc_shows_others() else Life.UNKNOWN
        except (OSError, ValueError):
            return Life.UNKNOWN
        if found.ended:
            return Life.DEAD
        if start_time_ticks and found.start_time_ticks != start_time_ticks:
            return Life.OTHER_CLOCK if self._has_other_clock(pid) else Life.DEAD
        return Life.ALIVE

    def _has_other_clock(self, pid: int) -> bool:
        """Is this host process in another time namespace? Where the kernel has none, nobody is."""
        found = _inode(self._proc / str(pid) / "ns/time")
        return found is not None and self._own_time is not None and found != self._own_time

    def _proc_shows_others(self) -> bool:
        """False where /proc hides the processes of other users (hidepid): the first process is always there."""
        return (self._proc / "1").exists()

    def _search(self, name: ProcessName) -> tuple[Life, int | None]:
        by_start = self._all()
        if name.start_time_ticks:
            candidates: Iterable[int] = by_start.get(name.start_time_ticks, ())
        else:
            candidates = [pid for pids in by_start.values() for pid in pids]
        complete = self._complete
        for pid in candidates:
            inner = self._inner_pid(pid)
            if inner is not None and inner != name.pid:
                continue
            namespace = _inode(self._proc / str(pid) / "ns/pid")
            if namespace is None or inner is None:
                # Gone meanwhile, or not ours to look at: then it could be the one.
                complete = complete and self._judge(pid, 0) is Life.DEAD
            elif namespace == name.pid_namespace:
                self._namespaces_below.add(namespace)
                if self._judge(pid, name.start_time_ticks) is not Life.ALIVE:
                    continue
                self._known[name] = pid
                return Life.ALIVE, pid
        if any(self._is_under_other_clock(pid, name) for pids in by_start.values() for pid in pids):
            return Life.OTHER_CLOCK, None
        # Processes of a namespace that is not below ours are never shown to us.
        below = self._sees_all or name.pid_namespace in self._namespaces_below
        return (Life.DEAD if complete and below else Life.UNKNOWN), None

    def _is_under_other_clock(self, pid: int, name: ProcessName) -> bool:
        return (
            self._has_other_clock(pid)
            and self._inner_pid(pid) == name.pid
            and _inode(self._proc / str(pid) / "ns/pid") == name.pid_namespace
        )

    def _all(self) -> dict[int, list[int]]:
        """Host pids by start time, as of the first question since forget()."""
        if self._by_start is None:
            found: dict[int, list[int]] = {}
            self._complete = self._proc_shows_others()
            for pid in self._pids():
                try:
                    stat = _parse_stat((self._proc / str(pid) / "stat").read_bytes())
                except (FileNotFoundError, ProcessLookupError):
                    continue
                except (OSError, ValueError):
                    self._complete = False
                    continue
                found.setdefault(stat.start_time_ticks, []).append(pid)
            self._by_start = found
        return self._by_start

    def _inner_pid(self, pid: int) -> int | None:
        """The pid that a host process has in its own namespace; None when it can't be read."""
        try:
            text = (self._proc / str(pid) / "status").read_bytes()
        except OSError:
            return None
        _, found, rest = text.partition(b"\nNSpid:")
        return int(rest.split(b"\n", 1)[0].split()[-1]) if found else None


def _parse_stat(data: bytes) -> Stat:
    """Raises ValueError when it is not a stat line. The command may hold anything, so what counts is its last ')'."""
    fields = data.rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ValueError("a stat line is too short")
    # Field 3 is the first here. A first thread that has ended while others run is a zombie with more than one thread.
    ended = fields[0] in (b"Z", b"X", b"x") and int(fields[17]) <= 1
    return Stat(parent=int(fields[1]), start_time_ticks=int(fields[19]), ended=ended)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None
