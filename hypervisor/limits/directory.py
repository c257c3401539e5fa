"""The directory of all limit files: by-uid/<uid>/{shm,usage}, and <namespace>/<pod> symlinks for people."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hypervisor.limits.creation import Access, check_room, discard_files, make_files, remove_files
from hypervisor.limits.findings import Finding, LimitFileError
from hypervisor.limits.layout import FileKind, Identity
from hypervisor.limits.limitset import LimitSet
from hypervisor.limits.shm import ShmFile
from hypervisor.limits.usage import UsageFile

_BY_UID = "by-uid"
# One path component: no slash, no leading dot, nothing that a terminal or a shell would act on.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)


@dataclass(slots=True)
class LimitFiles:
    """The files of one allocation, open. usage is None when it can't be used, and finding says why."""

    directory: Path
    shm: ShmFile
    usage: UsageFile | None
    finding: LimitFileError | None = None

    def close(self) -> None:
        """Unmap and close both."""
        self.shm.close()
        if self.usage is not None:
            self.usage.close()


class LimitDirectory:
    """Makes, finds and removes limit files below one base directory, for one daemon at a time.

    Raises LimitFileError with a Finding, or ValueError for a name that would leave the base.
    """

    def __init__(self, base: Path, *, boot_id: str, node_epoch: int) -> None:
        self._base = base
        self._boot_id = boot_id
        self._node_epoch = node_epoch

    def prepare(self) -> None:
        """Make the base where it is missing. Raises LimitFileError when that is not permitted or not possible."""
        try:
            (self._base / _BY_UID).mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise LimitFileError(
                Finding.UNREADABLE, f"the directory of the limit files {self._base} can't be made: {error.strerror}"
            ) from error
        if not os.access(self._base / _BY_UID, os.W_OK | os.X_OK):
            raise LimitFileError(
                Finding.UNREADABLE, f"the directory of the limit files {self._base} can't be written: permission denied"
            )

    def path(self, uid: str) -> Path:
        """The directory of an allocation."""
        return self._base / _BY_UID / checked_name(uid)

    def uids(self) -> tuple[str, ...]:
        """All that have a directory, in order; names that no daemon makes are left out."""
        try:
            entries = sorted(
                entry.name for entry in os.scandir(self._base / _BY_UID) if entry.is_dir(follow_symlinks=False)
            )
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise LimitFileError(Finding.UNREADABLE, f"{self._base} can't be listed: {error.strerror}") from error
        return tuple(name for name in entries if _NAME.fullmatch(name))

    def create(
        self, uid: str, allocation_id: str, limits: LimitSet, *, access: Access, context_bytes: Sequence[int]
    ) -> LimitFiles:
        """Make both files with these limits in force, not yet armed. On any error nothing is left.

        context_bytes: of each device, what a new context there is taken to need.
        """
        directory = self.path(uid)
        place = self._base / _BY_UID
        check_room(self._base, [f"{place}/{other}" for other in self.uids()])
        identity = Identity(
            allocation_id=checked_name(allocation_id, most=63),
            boot_id=self._boot_id,
            node_epoch=self._node_epoch,
            created_at_ns=time.monotonic_ns(),
        )
        make_files(directory, identity, access)
        try:
            files = self.open(uid)
            if files.finding is not None:
                files.close()
                raise files.finding
            files.shm.publish(limits)
            for device, size in enumerate(context_bytes):
                files.shm.set_context(device, size)
        except LimitFileError:
            discard_files(directory)
            raise
        return files

    def open(self, uid: str) -> LimitFiles:
        """Open what is there, writing nothing. Raises LimitFileError when `shm` can't be used."""
        directory = self.path(uid)
        shm = ShmFile.open(directory / "shm", boot_id=self._boot_id)
        try:
            return LimitFiles(directory, shm, UsageFile.open(directory / "usage", boot_id=self._boot_id))
        except LimitFileError as finding:
            return LimitFiles(directory, shm, None, finding)

    def inodes(self, uid: str) -> tuple[tuple[int, int], ...]:
        """(device, inode) of what lies under the two names, whatever it is."""
        found = []
        for kind in FileKind:
            try:
                entry = (self.path(uid) / kind.value).lstat()
            except OSError:
                continue
            found.append((entry.st_dev, entry.st_ino))
        return tuple(found)

    def remove(self, uid: str) -> None:
        """Remove the files of an allocation; none is an error-free answer too. Processes keep what they have mapped."""
        try:
            remove_files(self.path(uid))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise LimitFileError(Finding.UNREADABLE, f"{self.path(uid)} can't be removed: {error.strerror}") from error

    def link(self, namespace: str, pod: str, uid: str) -> None:
        """Let <namespace>/<pod> point to an allocation, replacing what it pointed to in one step."""
        place = self._link_path(namespace, pod)
        target = f"../{_BY_UID}/{checked_name(uid)}"
        unfinished = place.with_name(".unfinished")  # a Pod's own name may be as long as a file's may
        try:
            if place.is_symlink() and place.readlink() == Path(target):
                return
            place.parent.mkdir(mode=0o755, exist_ok=True)
            unfinished.unlink(missing_ok=True)
            unfinished.symlink_to(target)
            unfinished.rename(place)
        except OSError as error:
            raise LimitFileError(Finding.UNREADABLE, f"{place} can't be made: {error.strerror}") from error

    def unlink(self, namespace: str, pod: str, uid: str) -> None:
        """Remove the symlink if it still points to this allocation, and the namespace's directory if it is empty."""
        place = self._link_path(namespace, pod)
        try:
            if place.readlink() != Path(f"../{_BY_UID}/{uid}"):
                return
            place.unlink()
            place.parent.rmdir()
        except OSError:
            return  # already gone, no symlink, or other Pods of the namespace are still there

    def _link_path(self, namespace: str, pod: str) -> Path:
        if checked_name(namespace) == _BY_UID:
            raise ValueError(f"a namespace can't be called {_BY_UID}")
        return self._base / namespace / checked_name(pod)


def checked_name(name: str, *, most: int = 253) -> str:
    """The name, if it is one path component that leaves no directory. Raises ValueError that quotes it."""
    if not _NAME.fullmatch(name) or len(name) > most:
        raise ValueError(
            f"{name!r} is not a usable name: letters, digits, '-', '_' and '.', at most {most}, "
            "beginning with a letter or digit"
        )
    return name
