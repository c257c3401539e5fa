"""Who this node is, and how often its daemon has started: kept in node.json of the state directory."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hypervisor.model import NodeIdentity
from hypervisor.node.durable import write_atomically
from hypervisor.node.failure import StartError, storage_error

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_VERSION = 1


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    uid: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of the daemon. epoch is 1 for the first on this state directory."""

    identity: NodeIdentity
    epoch: int


def begin(state_directory: Path, *, name: str, boot_id_file: Path = BOOT_ID_FILE) -> Start:
    """Count this start, and make the node's UID at the first. Raises StartError when the record can't be used."""
    path = state_directory / "node.json"
    record = _read(path)
    epoch = record.epoch + 1 if record else 1
    uid = record.uid if record else str(uuid.uuid4())
    try:
        content = msgspec.json.encode(_Record(version=_VERSION, uid=uid, epoch=epoch))
        write_atomically(path, content + b"\n")
        boot_id = boot_id_file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise storage_error("store the node's identity in", state_directory, error) from error
    return Start(identity=NodeIdentity(name=name, uid=uid, boot_id=boot_id), epoch=epoch)


def _read(path: Path) -> _Record | None:
    remedy = "restore it from a backup, or remove it to give this node a new identity"
    try:
        record = msgspec.json.decode(path.read_bytes(), type=_Record)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error("read", path, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StartError(f"the node's identity {path} is damaged ({error}); {remedy}") from error
    if record.version != _VERSION:
        raise StartError(
            f"the node's identity {path} is of version {record.version}, and this daemon knows {_VERSION};"
            " run the daemon that wrote it, or remove the file to give this node a new identity"
        )
    return record
