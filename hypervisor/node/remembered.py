"""What the rest of the state directory knows of the node, for when its own record is damaged."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hypervisor.model import ObjectKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """The node's UID, and the greatest epoch that is known to have been."""

    uid: str
    epoch: int


class _Revision(msgspec.Struct):
    epoch: int


class _Allocation(msgspec.Struct):
    revision: _Revision


class _AllocationRecord(msgspec.Struct):
    allocation: _Allocation


def remembered(state_directory: Path) -> Remembered | None:
    """From the journal's events about the node, and the revisions of the allocations; None when no UID is known."""
    try:
        uid, epoch = _from_journal(state_directory / "events.db")
    except (sqlite3.Error, OSError):
        return None
    if not uid:
        return None
    epochs = (_epoch_of(path) for path in (state_directory / "allocations").glob("*.json"))
    return Remembered(uid=uid, epoch=max(epoch, *epochs, 0))


def _from_journal(path: Path) -> tuple[str, int]:
    # Opened for writing, for a journal that a kill has left takes a recovery first; what is missing is not made.
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=1.0)) as database:
        found = database.execute(
            "SELECT object_uid FROM events WHERE kind = ? AND object_uid != ''"
            " ORDER BY epoch DESC, sequence DESC LIMIT 1",
            (ObjectKind.NODE.value,),
        ).fetchone()
        (epoch,) = database.execute("SELECT coalesce(max(epoch), 0) FROM events").fetchone()
    return (str(found[0]) if found else ""), int(epoch)


def _epoch_of(path: Path) -> int:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_AllocationRecord).allocation.revision.epoch
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return 0
