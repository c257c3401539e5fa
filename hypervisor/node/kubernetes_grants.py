"""Grants on disk: one file each, so that a restart knows what kubelet was told.

A grant is written when kubelet is answered and brought through to the disk soon afterwards, by many at once: a kill of
the daemon loses nothing, and after a power cut, in which the container that was about to start has died too, what is
missing is learned from kubelet's checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import trio

from hypervisor.durable import Unsynced, write_whole
from hypervisor.kube.grants import Grant
from hypervisor.model import Refusal, RefusalReason
from hypervisor.node.failure import storage_error

log = structlog.get_logger("kubernetes")
_SUFFIX = ".json"


class GrantStore:
    """All grants of the node. For one task."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._grants: dict[str, Grant] = {}
        self._all: tuple[Grant, ...] | None = None
        self._unsynced = Unsynced(directory)

    @classmethod
    def open(cls, directory: Path) -> GrantStore:
        """Read what is there; a file that can't be read is set aside with a logged reason. Raises StartError."""
        store = cls(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for unfinished in directory.glob(f".*{_SUFFIX}.unfinished"):
                unfinished.unlink()  # of a kill
            for path in sorted(directory.glob(f"*{_SUFFIX}")):
                try:
                    grant = msgspec.json.decode(path.read_bytes(), type=Grant)
                except msgspec.DecodeError as error:
                    path.rename(path.with_suffix(".set-aside"))
                    log.warning("a grant could not be read and was set aside", path=str(path), reason=str(error))
                    continue
                store._grants[grant.uid] = grant
        except OSError as error:
            raise storage_error("use", directory, error) from error
        return store

    @property
    def all(self) -> tuple[Grant, ...]:
        """All grants, the oldest first."""
        if self._all is None:
            self._all = tuple(sorted(self._grants.values(), key=lambda grant: (grant.created_at, grant.uid)))
        return self._all

    def save(self, grant: Grant) -> None:
        """Keep a grant, new or changed; a kill of the daemon does not lose it any more. Raises Refusal
        (STORAGE_FAILED), and then it is as before."""
        path = self._directory / f"{grant.uid}{_SUFFIX}"
        try:
            write_whole(path, msgspec.json.encode(grant))
        except OSError as error:
            raise Refusal(RefusalReason.STORAGE_FAILED, str(storage_error("write", path, error))) from error
        self._grants[grant.uid], self._all = grant, None
        self._unsynced.add(path)

    def remove(self, uid: str) -> None:
        """Forget a grant. Raises Refusal (STORAGE_FAILED), and then it is as before."""
        path = self._directory / f"{uid}{_SUFFIX}"
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise Refusal(RefusalReason.STORAGE_FAILED, str(storage_error("remove", path, error))) from error
        self._grants.pop(uid, None)
        self._all = None
        self._unsynced.discard(path)
        self._unsynced.add(self._directory)

    def unsynced(self) -> Callable[[], None] | None:
        """What brings to the disk what was saved and removed, for a thread; see Unsynced.take()."""
        return self._unsynced.take()


async def bring_through(*works: Callable[[], None] | None) -> None:
    """Bring to the disk what was written, in a thread; what fails is logged and tried again with the next call.
    Cancelled, it may have done so."""
    for work in works:
        if work is None:
            continue
        try:
            await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        except OSError as error:
            log.warning("grants could not be brought to the disk", reason=error.strerror or str(error))
