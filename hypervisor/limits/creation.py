"""Makes the two files of an allocation, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hypervisor.limits.findings import Finding, LimitFileError
from hypervisor.limits.layout import MAGIC_BYTES, PAGE_BYTES, FileKind, Identity, make_header

# Pages that every process touches at its first call. They are there from the beginning, so that a full file system
# can't turn a tenant's first allocation into a SIGBUS: in `shm` up to the end of the control records, in `usage` the
# shared accounts, the messages and the first process slots. The rest stays sparse; see check_room.
_READY_BYTES = {FileKind.SHM: 24576, FileKind.USAGE: 32768}
_FIRST_SLOTS = (163840, 8 * 1088)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may write the usage file beside the daemon: one user, the daemon's user and a group, or all who reach it.

    A Pod reaches it by a mount that a root process makes, so no other user of the host needs to: mounted_only keeps
    them out of the directory. With ours, both belong to the daemon's user, and to group_gid where there is one.
    """

    owner_uid: int | None = None
    mounted_only: bool = False
    ours: bool = False
    group_gid: int | None = None

    @property
    def directory_mode(self) -> int:
        if self.mounted_only:
            return 0o700
        return 0o750 if self.ours else 0o755

    @property
    def mode(self) -> int:
        if self.owner_uid is None:
            return 0o660 if self.ours else 0o666
        # Where the dead have left something the daemon writes too: as root into any file, as another user by its group.
        return 0o600 if os.geteuid() in (0, self.owner_uid) else 0o660


def make_files(directory: Path, identity: Identity, access: Access) -> None:
    """Make the directory and both files in it. Raises LimitFileError, and then nothing is left of them."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError as error:
        raise LimitFileError(Finding.EXISTS, f"{directory} exists already") from error
    except OSError as error:
        raise _failed(directory, error) from error
    try:
        if access.group_gid is not None:
            os.chown(directory, -1, access.group_gid)
        directory.chmod(access.directory_mode)  # whatever the umask
        _make_file(directory, FileKind.USAGE, identity, access)
        # Last: whoever finds `shm` finds the other one too. The daemon alone writes it.
        _make_file(directory, FileKind.SHM, identity, None)
    except OSError as error:
        discard_files(directory)
        raise _failed(directory, error) from error


def discard_files(directory: Path) -> None:
    """Remove what was just made, because of another error: that one is to be told, and not that this failed too.

    What stays behind was given to nobody and is removed as an orphan at the next start.
    """
    with contextlib.suppress(OSError):
        remove_files(directory)


def remove_files(directory: Path) -> None:
    """Remove the two files, unfinished ones, and the directory; nothing else. Raises OSError."""
    for kind in FileKind:
        for name in (kind.value, _unfinished(kind)):
            (directory / name).unlink(missing_ok=True)
    directory.rmdir()


def check_room(base: Path, directories: Iterable[str]) -> None:
    """Raises LimitFileError (NO_SPACE) unless all files, those there and two more, could grow to their full size.

    The files are sparse; a tenant's process that touches a new page of a full tmpfs would get SIGBUS.
    """
    sizes = tuple((kind.value, kind.file_bytes) for kind in FileKind)
    owed = sum(size for _, size in sizes)
    for directory in directories:
        for name, size in sizes:
            try:
                found = os.lstat(f"{directory}/{name}")
            except OSError:
                continue  # being removed, or damaged: it claims nothing more
            owed += max(0, size - found.st_blocks * 512)
    system = os.statvfs(base)
    free = system.f_bavail * system.f_frsize
    if free < owed or (system.f_files and system.f_favail < 3):
        raise LimitFileError(
            Finding.NO_SPACE,
            f"{base} has {free} bytes and {system.f_favail} inodes free, and the limit files may need {owed} bytes",
        )


def _make_file(directory: Path, kind: FileKind, identity: Identity, access: Access | None) -> None:
    header = make_header(kind, identity)
    unfinished = directory / _unfinished(kind)
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, kind.file_bytes)
        os.posix_fallocate(descriptor, 0, _READY_BYTES[kind])
        if kind is FileKind.USAGE:
            offset, length = _FIRST_SLOTS
            os.posix_fallocate(descriptor, offset, -(-length // PAGE_BYTES) * PAGE_BYTES)
        os.pwrite(descriptor, header[MAGIC_BYTES:], MAGIC_BYTES)
        os.pwrite(descriptor, header[:MAGIC_BYTES], 0)
        os.fchmod(descriptor, 0o644 if access is None else access.mode)
        if access is not None:
            _give_away(descriptor, access)
    finally:
        os.close(descriptor)
    # The directory was made by us just now, so nothing is replaced. A link would leave two names after a crash.
    unfinished.rename(directory / kind.value)


def _give_away(descriptor: int, access: Access) -> None:
    if access.owner_uid is not None and access.owner_uid != os.geteuid():
        os.fchown(descriptor, access.owner_uid, -1)
    if access.group_gid is not None:
        os.fchown(descriptor, -1, access.group_gid)


def _unfinished(kind: FileKind) -> str:
    return f".{kind.value}.unfinished"


def _failed(directory: Path, error: OSError) -> LimitFileError:
    finding = Finding.NO_SPACE if error.errno in _FULL else Finding.UNREADABLE
    return LimitFileError(finding, f"limit files can't be made at {directory}: {error.strerror}")


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
