"""Grants on disk: one file each, so that a restart knows what kubelet was told."""

from __future__ import annotations

from pathlib import Path

import msgspec
import structlog

from hypervisor.kube.grants import Grant
from hypervisor.model import Refusal, RefusalReason
from hypervisor.node.durable import write_atomically
from hypervisor.node.failure import storage_error

log = structlog.get_logger("kubernetes")
_SUFFIX = ".json"


class GrantStore:
    """All grants of the node. For one task; what a method changes is on disk when it returns."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._grants: dict[str, Grant] = {}

    @classmethod
    def open(cls, directory: Path) -> GrantStore:
        """Read what is there; a file that can't be read is set aside with a logged reason. Raises StartError."""
        store = cls(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
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
        return tuple(sorted(self._grants.values(), key=lambda grant: (grant.created_at, grant.uid)))

    def save(self, grant: Grant) -> None:
        """Keep a grant, new or changed. Raises Refusal (STORAGE_FAILED), and then it is as before."""
        path = self._directory / f"{grant.uid}{_SUFFIX}"
        try:
            write_atomically(path, msgspec.json.encode(grant))
        except OSError as error:
            raise Refusal(RefusalReason.STORAGE_FAILED, str(storage_error("write", path, error))) from error
        self._grants[grant.uid] = grant

    def remove(self, uid: str) -> None:
        """Forget a grant. Raises Refusal (STORAGE_FAILED), and then it is as before."""
        path = self._directory / f"{uid}{_SUFFIX}"
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise Refusal(RefusalReason.STORAGE_FAILED, str(storage_error("remove", path, error))) from error
        self._grants.pop(uid, None)
