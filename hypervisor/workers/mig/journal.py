"""What we made of cards, and what we were about to do, on the disk before it is done.

A record is written before each step, so that after a crash at any point it is known which half-made instance is ours:
one that is there at the place of a record is ours, all others are not. One file per card, written whole or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import msgspec

from hypervisor.durable import write_atomically

VERSION = 1
_SUFFIX = ".json"


class Stage(Enum):
    """How far an instance is: about to be made, there, about to be ended."""

    MAKING = "making"
    THERE = "there"
    ENDING = "ending"


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An instance of ours on a card. allocation_id: for whom it was made; "": it belongs to the wished geometry.

    gpu_instance and uuid are known from the stage "there" on; boot_id is the boot in which it was made.
    """

    stage: Stage
    profile_id: int
    profile: str
    start: int
    size: int
    boot_id: str
    allocation_id: str = ""
    gpu_instance: int | None = None
    uuid: str = ""


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    parent_uuid: str
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file that could not be read: why, and where it is now."""

    path: Path
    reason: str


class JournalError(Exception):
    """The journal can't be written; the text says where and why."""


@dataclass(slots=True)
class Journal:
    """The records by card. Its only writer."""

    directory: Path
    _records: dict[str, tuple[Record, ...]] = field(default_factory=dict)

    @classmethod
    def open(cls, directory: Path) -> tuple[Journal, tuple[DamagedFile, ...]]:
        """Read what there is; files that can't be read are set aside. Raises OSError."""
        journal, damaged = cls(directory), []
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(directory.glob(f"*{_SUFFIX}")):
            try:
                read = _decoded(path.read_bytes())
                if path.stem != read.parent_uuid:
                    raise ValueError(f"it is of the card {read.parent_uuid[:96]!r}")  # noqa: TRY301 - as damage is
            except (ValueError, OSError, RecursionError) as error:
                damaged.append(DamagedFile(path.rename(path.with_suffix(".set-aside")), str(error)))
            else:
                journal._records[read.parent_uuid] = read.records
        return journal, tuple(damaged)

    def records(self, parent_uuid: str) -> tuple[Record, ...]:
        """Our instances on a card."""
        return self._records.get(parent_uuid, ())

    @property
    def cards(self) -> tuple[str, ...]:
        """Cards on which we have made something."""
        return tuple(self._records)

    def put(self, parent_uuid: str, record: Record) -> None:
        """Write a record, in place of one at the same place. On the disk when this returns. Raises JournalError."""
        records = self.records(parent_uuid)
        if all(each.start != record.start for each in records):
            self._write(parent_uuid, (*records, record))
        else:
            # The order stays that in which they were first made: made again in it, they get their numbers again.
            self._write(parent_uuid, tuple(record if each.start == record.start else each for each in records))

    def drop(self, parent_uuid: str, start: int) -> None:
        """Forget the record of a place. Raises JournalError."""
        self._write(parent_uuid, tuple(each for each in self.records(parent_uuid) if each.start != start))

    def _write(self, parent_uuid: str, records: tuple[Record, ...]) -> None:
        path = self.directory / f"{parent_uuid}{_SUFFIX}"
        content = _File(version=VERSION, parent_uuid=parent_uuid, records=records)
        try:
            write_atomically(path, msgspec.json.encode(content))
        except OSError as error:
            raise JournalError(f"{path} can't be written: {error.strerror}") from error
        self._records[parent_uuid] = records


def _decoded(content: bytes) -> _File:
    """Raises ValueError, of which msgspec's errors are a kind."""
    read = msgspec.json.decode(content, type=_File)
    if read.version != VERSION:
        raise ValueError(f"it has version {read.version}, and this daemon reads version {VERSION}")
    return read
