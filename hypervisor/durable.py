"""The one way in which a file that must survive is written: whole or not at all, also after a power cut."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace path by content. Raises OSError and leaves the old content when it can't be stored."""
    _replace(path, content, mode, synced=True)
    sync_directory(path.parent)


def check_replaceable(path: Path) -> None:
    """Raises OSError where somebody has named what is there and is no ordinary file: root would put a file in the place
    of a device such as /dev/null, and a pipe's reader would wait for ever."""
    try:
        found = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found):
        raise OSError(errno.EEXIST, "it is there, and is no ordinary file", str(path))


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """As write_atomically(), and not yet safe from a power cut: sync_all() makes it so."""
    _replace(path, content, mode, synced=False)


def sync_all(directory: Path, paths: Iterable[Path]) -> None:
    """Bring files of one directory, and the names in it, through to the disk; those that are gone are left out. Raises
    OSError."""
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    sync_directory(directory)


class Unsynced:
    """Names in one directory that were written whole, or removed, and are still to be brought through to the disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._paths: set[Path] = set()

    def add(self, path: Path) -> None:
        """A file that was written, or the directory where one was removed."""
        self._paths.add(path)

    def discard(self, path: Path) -> None:
        """It is gone, or safe by other means."""
        self._paths.discard(path)

    def take(self) -> Callable[[], None] | None:
        """What brings them through, for any thread, as it may take long; None when there is nothing. It raises OSError,
        and then they are noted again."""
        paths, self._paths = self._paths, set()
        if not paths:
            return None

        def work() -> None:
            try:
                sync_all(self._directory, tuple(paths))
            except OSError:
                self._paths.update(paths)
                raise

        return work


def _replace(path: Path, content: bytes, mode: int, *, synced: bool) -> None:
    # The lock on the directory makes us the only writer; what a crash leaves behind is written over.
    temporary = path.with_name(f".{path.name}.unfinished")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            if synced:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_in_place(path: Path, content: bytes) -> None:
    """Write over what path holds, which takes no new block of a full file system; padded to the old size with spaces.

    For content of less than a sector: then a kill leaves the old or the new, and so does a power cut on every disk
    that writes sectors whole. Raises OSError, FileNotFoundError when there is nothing to write over.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, content.ljust(os.fstat(descriptor).st_size), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Bring a directory's entries to the disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
