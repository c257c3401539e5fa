"""Files below a root: "/" on the machine itself, a directory elsewhere. Links never lead out of it.

What a directory can't hold (device nodes, sockets, other machines' listings) may be told by an index file; a support
bundle brings one. Everything that is read can be recorded, which is how a bundle knows what to take along.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hypervisor.doctor import live
from hypervisor.doctor.beneath import open_beneath

METADATA = "/hypervisor-doctor"
INDEX = f"{METADATA}/index.json"
KERNEL_LOG = f"{METADATA}/kernel.log"
MOST_TEXT_BYTES = 1 << 20
# Lists of a large cluster's objects have tens of MiB, and are of use only as a whole.
MOST_DOCUMENT_BYTES = 256 << 20
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESRCH, errno.ENODEV, errno.ENXIO}


class UnreadableError(Exception):
    """Something is there and can't be read; the text names it and the reason."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What lstat says of something that is no plain file; open_error is "" where it can be opened."""

    kind: str  # char, block, socket, fifo, directory, file
    mode: int = 0o600
    uid: int = 0
    gid: int = 0
    major: int = 0
    minor: int = 0
    size: int = 0
    modified_at: float = 0.0
    open_error: str = ""


class Index(msgspec.Struct, kw_only=True):
    """Beside the files: nodes and links by name, what directories held, and what could not be read and why."""

    nodes: dict[str, Node] = {}
    links: dict[str, str] = {}
    listings: dict[str, list[str]] = {}
    unreadable: dict[str, str] = {}
    heads: dict[str, bytes] = {}


@dataclass(slots=True)
class Recording:
    """What was read: texts by name, and the rest as an index."""

    texts: dict[str, str] = field(default_factory=dict)
    index: Index = field(default_factory=Index)


class Root:
    """The files of a machine, or of a container of it. Names are absolute; sync, and quick: nothing blocks."""

    def __init__(
        self, base: Path, *, recording: Recording | None = None, index: Index | None = None, prefix: str = ""
    ) -> None:
        """Raises UnreadableError when the directory holds an index that is none. index and prefix are container()'s."""
        self._base = base
        self._prefix = prefix
        self._recording = recording
        self._host = str(base.resolve()).rstrip("/")
        self.live = _is_running_machine(base)
        self._index = Index()
        self._index = index if index is not None else self._read_index()

    def _read_index(self) -> Index:
        data = None if self.live else self.document(INDEX)
        if data is None:
            return Index()
        try:
            return msgspec.json.decode(data, type=Index)
        except msgspec.DecodeError as error:
            raise UnreadableError(INDEX, f"not an index of a bundle: {error}") from error

    def container(self, pid: int) -> Root:
        """The files as a process of this machine sees them."""
        return Root(self._base, recording=self._recording, index=self._index, prefix=f"/proc/{pid}/root")

    def text(self, name: str) -> str | None:
        """Text of a plain file, its last MiB at most; None where there is none. Raises UnreadableError."""
        full = self._prefix + name
        try:
            found = self._text(name)
        except UnreadableError as error:
            if self._recording is not None:
                self._recording.index.unreadable[full] = str(error).partition(": ")[2]
            raise
        if self._recording is not None and found is not None:
            self._recording.texts[full] = found
        return found

    def document(self, name: str) -> bytes | None:
        """A plain file as a whole, which is not recorded; None where there is none. Raises UnreadableError, also for
        one that is too large: half of it would say something else."""
        found = self._stat(name)
        if found is not None and found.size > MOST_DOCUMENT_BYTES:
            raise UnreadableError(name, f"it has more than {MOST_DOCUMENT_BYTES >> 20} MiB")
        return self._data(name, MOST_DOCUMENT_BYTES)

    def head(self, name: str, count: int) -> bytes:
        """The first bytes of a plain file; empty where there is none. Raises UnreadableError.

        Of a running program (/proc/PID/exe) the kernel's own link is followed: it leads to the file that runs, which
        may have no name any more. A bundle keeps the bytes in its index.
        """
        full = self._prefix + name
        known = self._index.heads.get(full)
        if known is None:
            known = self._head(name, count)
        if self._recording is not None and known:
            self._recording.index.heads[full] = known
        return known

    def word(self, name: str) -> str:
        """Text without blanks around it; "" where there is none."""
        return (self.text(name) or "").strip()

    def names(self, directory: str) -> tuple[str, ...]:
        """What a directory holds, sorted; empty where there is none. Raises UnreadableError."""
        full = self._prefix + directory
        listed = self._index.listings.get(full)
        found = set(self._listing(directory) if listed is None else listed)
        below = full.rstrip("/") + "/"
        for known in (*self._index.nodes, *self._index.links) if listed is None else ():
            if known.startswith(below):
                found.add(known[len(below) :].partition("/")[0])
        if self._recording is not None:
            self._recording.index.listings[full] = sorted(found)
        return tuple(sorted(found))

    def node(self, name: str) -> Node | None:
        """What lies at a name, links followed; None where there is nothing. Raises UnreadableError."""
        full = self._prefix + name
        known = self._index.nodes.get(full)
        if known is None:
            known = self._stat(name)
        if self._recording is not None and known is not None:
            self._recording.index.nodes[full] = known
        return known

    def link(self, name: str) -> str | None:
        """Where a symbolic link points, as it is written; None where there is no link."""
        full = self._prefix + name
        found = self._index.links.get(full)
        if found is None:
            found = self._readlink(name)
        if self._recording is not None and found is not None:
            self._recording.index.links[full] = found
        return found

    def open_error(self, name: str) -> str:
        """Why this process can't open a device node, as the kernel names it (EPERM); "" where it can."""
        known = self.node(name)
        if known is None or not self.live:
            return known.open_error if known else ""
        error = live.try_open(f"{self._host}{self._prefix}{name}")
        if error and self._recording is not None:
            told = {**msgspec.structs.asdict(known), "open_error": error}
            self._recording.index.nodes[self._prefix + name] = Node(**told)
        return error

    def kernel_log(self) -> tuple[str, ...] | None:
        """Lines of the kernel's log; None where there is none. Raises UnreadableError without the right to read it."""
        text = self._live_kernel_log() if self.live else self._text(KERNEL_LOG)
        if text is not None and self._recording is not None:
            self._recording.texts[KERNEL_LOG] = text
        return None if text is None else tuple(text.splitlines())

    # ---- the files themselves ----

    def _live_kernel_log(self) -> str | None:
        try:
            return "\n".join(live.kernel_messages(f"{self._host}/dev/kmsg"))
        except OSError as error:
            _require_missing("/dev/kmsg", error)
            return None

    def _open(self, name: str, *, follow_last: bool = True) -> int:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        if self.live:
            # The kernel's own link of a living process leads to its root; elsewhere it is a directory like any other.
            start = os.open(f"{self._host}{self._prefix}" or "/", flags)
        else:
            start = os.open(self._base, flags)
            if self._prefix:
                start = open_beneath(start, self._prefix)
        return open_beneath(start, name, follow_last=follow_last)

    def _text(self, name: str) -> str | None:
        data = self._data(name, MOST_TEXT_BYTES)
        return None if data is None else data.decode("utf-8", "replace")

    def _data(self, name: str, most: int) -> bytes | None:
        """The last `most` bytes of a plain file."""
        told = self._index.unreadable.get(self._prefix + name)
        if told is not None:
            raise UnreadableError(name, told)
        try:
            place = self._open(name)
            try:
                if not stat.S_ISREG(os.fstat(place).st_mode):
                    return None
                with Path(f"/proc/self/fd/{place}").open("rb", buffering=0) as file:
                    size = os.fstat(file.fileno()).st_size
                    if size > most:
                        file.seek(size - most)
                    return _read_all(file.fileno(), most)
            finally:
                os.close(place)
        except OSError as error:
            _require_missing(name, error)
            return None

    def _head(self, name: str, count: int) -> bytes:
        try:
            running = self.live and not self._prefix and name.startswith("/proc/") and name.endswith("/exe")
            place = os.open(f"{self._host}{name}", os.O_RDONLY | os.O_CLOEXEC) if running else self._open(name)
            try:
                if not stat.S_ISREG(os.fstat(place).st_mode):
                    return b""
                with Path(f"/proc/self/fd/{place}").open("rb") as file:
                    return file.read(count)
            finally:
                os.close(place)
        except OSError as error:
            _require_missing(name, error)
            return b""

    def _listing(self, directory: str) -> list[str]:
        try:
            place = self._open(directory)
            try:
                return [entry.name for entry in Path(f"/proc/self/fd/{place}").iterdir()]
            finally:
                os.close(place)
        except OSError as error:
            _require_missing(directory, error)
            return []

    def _stat(self, name: str) -> Node | None:
        try:
            place = self._open(name)
        except OSError as error:
            _require_missing(name, error)
            return None
        try:
            found = os.fstat(place)
        finally:
            os.close(place)
        return Node(
            kind=_kind(found.st_mode),
            mode=stat.S_IMODE(found.st_mode),
            uid=found.st_uid,
            gid=found.st_gid,
            major=os.major(found.st_rdev),
            minor=os.minor(found.st_rdev),
            size=found.st_size,
            modified_at=found.st_mtime,
        )

    def _readlink(self, name: str) -> str | None:
        try:
            place = self._open(name, follow_last=False)
            try:
                if not stat.S_ISLNK(os.fstat(place).st_mode):
                    return None
            finally:
                os.close(place)
            folder, _, last = name.rstrip("/").rpartition("/")
            parent = self._open(folder)
            try:
                return os.readlink(last, dir_fd=parent)
            finally:
                os.close(parent)
        except OSError as error:
            _require_missing(name, error)
            return None


def encodable(text: str) -> str:
    """Names of files may be any bytes, which Python keeps as marks that UTF-8 does not have: with "?" for these."""
    return text.encode("utf-8", "replace").decode()


def _is_running_machine(base: Path) -> bool:
    """Is this the root of the machine that we run on, as it is or as it is mounted into our container?

    Then it has a /proc that the kernel makes, in which self leads to a process.
    """
    if base.resolve() == Path("/"):
        return True
    try:
        own = (base / "proc/self").readlink()
    except OSError:
        return False
    return str(own).isdecimal() and (base / "proc" / own / "stat").exists()


def _require_missing(name: str, error: OSError) -> None:
    """Raises UnreadableError for everything but that there is nothing of this name."""
    if error.errno not in _MISSING:
        raise UnreadableError(name, error.strerror or str(error)) from error


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFCHR: "char",
        stat.S_IFBLK: "block",
        stat.S_IFSOCK: "socket",
        stat.S_IFIFO: "fifo",
        stat.S_IFDIR: "directory",
    }
    return kinds.get(stat.S_IFMT(mode), "file")


def _read_all(descriptor: int, most: int) -> bytes:
    """Up to the bound; files of /proc tell no size."""
    parts, left = [], most
    while left > 0:
        part = os.read(descriptor, min(left, 1 << 16))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
