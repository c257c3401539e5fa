"""The store: one JSON file per allocation, written whole or not at all.

A record is on disk when save() returns, but for those of Pods: of these a kill loses nothing, a power cut may lose the
last moment, and what is missing then is learned from kubelet's checkpoint and the Pod. They are brought through by many
at once, for a disk that is busy makes an fsync last for a tenth of a second, and kubelet waits for answers meanwhile.

A file that can't be read is moved to set-aside/ and told about; it never keeps the others from being read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from hypervisor.durable import Unsynced, sync_directory, write_atomically, write_whole
from hypervisor.model import Allocation, OwnerKind

VERSION = 1
_SUFFIX = ".json"
_SET_ASIDE = "set-aside"


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of an allocation. boot_id is the boot in which its limit files were made."""

    version: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)]
    boot_id: str
    allocation: Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRecord:
    """A file that could not be read: why, and where it is now."""

    uid: str
    reason: str
    path: Path


class StoreError(Exception):
    """The store can't be written or read; the text says where and why."""


class RecordStore:
    """The files below one directory, which only this daemon writes. Methods raise StoreError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._unsynced = Unsynced(directory)

    def prepare(self) -> None:
        """Make the directory, and remove what a crash left half written."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for unfinished in self._directory.glob(f".*{_SUFFIX}.unfinished"):
                unfinished.unlink()
        except OSError as error:
            raise StoreError(f"the store {self._directory} can't be prepared: {error.strerror}") from error

    def save(self, allocation: Allocation, *, boot_id: str) -> None:
        """Write an allocation, replacing what was there in one step; on disk when this returns, but for a Pod's."""
        target = self._path(allocation.uid)
        record = Record(version=VERSION, boot_id=boot_id, allocation=allocation)
        try:
            if allocation.spec.owner.kind is OwnerKind.POD:
                write_whole(target, msgspec.json.encode(record))
                self._unsynced.add(target)
            else:
                write_atomically(target, msgspec.json.encode(record))
        except OSError as error:
            raise StoreError(f"{target} can't be written: {error.strerror}") from error

    def unsynced(self) -> Callable[[], None] | None:
        """What brings through what save() left to be, for any thread; see Unsynced.take()."""
        return self._unsynced.take()

    def remove(self, uid: str, *, of_pod: bool = False) -> None:
        """Forget an allocation; it is no error when it is not there. A Pod's that a power cut brings back is let go of
        anew, for the Pod is not."""
        try:
            self._path(uid).unlink(missing_ok=True)
            self._unsynced.discard(self._path(uid))
            if of_pod:
                self._unsynced.add(self._directory)
            else:
                sync_directory(self._directory)
        except OSError as error:
            raise StoreError(f"{self._path(uid)} can't be removed: {error.strerror}") from error

    def load(self) -> tuple[tuple[Record, ...], tuple[DamagedRecord, ...]]:
        """All records, and the files that were none, which are set aside."""
        good: list[Record] = []
        damaged: list[DamagedRecord] = []
        try:
            paths = sorted(self._directory.glob(f"*{_SUFFIX}"))
        except OSError as error:
            raise StoreError(f"the store {self._directory} can't be listed: {error.strerror}") from error
        for path in paths:
            try:
                good.append(_decoded(path))
            except (OSError, ValueError) as error:
                damaged.append(self._set_aside(path, error))
        return tuple(good), tuple(damaged)

    def _set_aside(self, path: Path, error: Exception) -> DamagedRecord:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        place = self._directory / _SET_ASIDE / path.name
        try:
            place.parent.mkdir(mode=0o700, exist_ok=True)
            path.rename(place)
        except OSError:
            place = path  # stays where it is, and is told about again at the next start
        return DamagedRecord(uid=path.name.removesuffix(_SUFFIX), reason=reason, path=place)

    def _path(self, uid: str) -> Path:
        return self._directory / f"{uid}{_SUFFIX}"


def _decoded(path: Path) -> Record:
    """Raises ValueError, of which msgspec's errors are a kind, with what is wrong."""
    data = path.read_bytes()
    if not data:
        raise ValueError("the file is empty")
    version = msgspec.json.decode(data, type=_VersionOnly).version
    if version != VERSION:
        raise ValueError(f"it has version {version}, and this daemon reads version {VERSION}")
    record = msgspec.json.decode(data, type=Record)
    if record.allocation.uid != path.name.removesuffix(_SUFFIX):
        raise ValueError(f"it holds the allocation {record.allocation.uid}, not the one it is named after")
    return record


class _VersionOnly(msgspec.Struct):
    version: int
