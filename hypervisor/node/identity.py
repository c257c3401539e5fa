"""Who this node is, and how often its daemon has started: kept in node.json of the state directory."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hypervisor.durable import write_atomically, write_in_place
from hypervisor.model import NodeIdentity
from hypervisor.node.failure import FULL, StartError, storage_error
from hypervisor.node.remembered import remembered

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_VERSION = 1
_EPOCHS_SKIPPED = 1000


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    uid: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of the daemon. epoch is 1 for the first on this state directory.

    mended says what was damaged and has been set aside; "" when nothing was.
    """

    identity: NodeIdentity
    epoch: int
    mended: str = ""


def begin(state_directory: Path, *, name: str, boot_id_file: Path = BOOT_ID_FILE) -> Start:
    """Count this start, and make the node's UID at the first. Raises StartError when the record can't be used.

    A full disk doesn't keep a node that has an identity from starting: the count is then written over the old one in
    place. A damaged record is set aside, and the rest of the state directory is asked for what it held.
    """
    path = state_directory / "node.json"
    record, damage = _read(path)
    if damage:
        record = _remembered(state_directory)
    epoch = record.epoch + 1 if record else 1
    uid = record.uid if record else str(uuid.uuid4())
    content = msgspec.json.encode(_Record(version=_VERSION, uid=uid, epoch=epoch)) + b"\n"
    try:
        mended = _set_aside(path, damage, known=record is not None) if damage else ""
        _store(path, content)
        boot_id = boot_id_file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise storage_error("store the node's identity in", state_directory, error) from error
    return Start(identity=NodeIdentity(name=name, uid=uid, boot_id=boot_id), epoch=epoch, mended=mended)


def _store(path: Path, content: bytes) -> None:
    """Anew where there is room, else over the old record, or over the damaged one that was set aside."""
    try:
        write_atomically(path, content)
    except OSError as error:
        if error.errno not in FULL:
            raise
        if not path.exists() and _aside(path).exists():
            _aside(path).rename(path)
        try:
            write_in_place(path, content)
        except FileNotFoundError:
            raise error from None


def _aside(path: Path) -> Path:
    return path.with_name(path.name + ".damaged")


def _set_aside(path: Path, damage: str, *, known: bool) -> str:
    """Move the damaged record away; returns what is to be told. Raises OSError."""
    path.rename(_aside(path))
    uid = "its UID was found in the journal" if known else "nothing else knew its UID, so it has a new one"
    return f"the node's identity {path} was damaged ({damage}) and is now {_aside(path).name}; {uid}"


def _remembered(state_directory: Path) -> _Record | None:
    found = remembered(state_directory)
    if found is None:
        return None
    # Not every start has left a trace, on a full disk for instance: epochs may be skipped and never given twice.
    return _Record(version=_VERSION, uid=found.uid, epoch=found.epoch + _EPOCHS_SKIPPED)


def _read(path: Path) -> tuple[_Record | None, str]:
    """The record, None where there is none, and why it can't be used."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=_Record)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        raise storage_error("read", path, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return None, str(error)
    if record.version != _VERSION:
        # Not damaged: a daemon that knows the version can read it, so it is not for us to replace.
        raise StartError(
            f"the node's identity {path} is of version {record.version}, and this daemon knows {_VERSION};"
            " run the daemon that wrote it, or remove the file to give this node a new identity"
        )
    return record, ""
