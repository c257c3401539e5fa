"""What is kept of a worker over restarts of the daemon: one file in its directory, whole or not at all."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from hypervisor.durable import write_atomically
from hypervisor.model import WorkerSpec
from hypervisor.workers.shim_files import read_plain

VERSION = 1
_NAME = "worker.json"
_MOST_BYTES = 4 * 2**20  # several times what a spec may have
_FORGOTTEN = ".forgotten-"
WORKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]  # what nobody can have counted is damage


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """wanted: it should run. run: number of the last start; accounted: of the last whose end was
    taken note of. failures: ends in a row, for the back-off.

    stop_reason: why it is not wanted. boot_id: the boot of the last start.
    """

    version: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)] = VERSION
    spec: WorkerSpec
    wanted: bool = True
    run: _Count = 0
    accounted: _Count = 0
    restarts: _Count = 0
    failures: _Count = 0
    boot_id: str = ""
    started_at: float = 0.0
    last_exit_reason: str = ""
    last_output_lines: tuple[str, ...] = ()
    stop_reason: str = ""
    given_up: bool = False


def save(directory: Path, record: WorkerRecord) -> None:
    """Replace the record. Raises OSError."""
    write_atomically(directory / _NAME, msgspec.json.encode(record))


def load_all(directory: Path) -> tuple[dict[Path, WorkerRecord], dict[Path, str]]:
    """By directory, the records that are there, and why others can't be read; what a kill has left half removed, or
    barely begun, is cleared away. Raises OSError."""
    found: dict[Path, WorkerRecord] = {}
    damaged: dict[Path, str] = {}
    for path in sorted(directory.iterdir()):
        if path.name.startswith(_FORGOTTEN):
            shutil.rmtree(path, ignore_errors=True)
            continue
        # What has another name is no worker's, and the name of a link is not where a shim would be.
        if not WORKER_NAME.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        with suppress(OSError):
            path.rmdir()  # made for a worker whose record never came about
            continue
        try:
            record = msgspec.json.decode(read_plain(path / _NAME, _MOST_BYTES), type=WorkerRecord)
            if record.spec.worker_id != path.name:
                damaged[path] = f"it is of the worker {record.spec.worker_id[:96]!r}"
            else:
                found[path] = record
        except OSError as error:
            damaged[path] = f"{_NAME}: {error.strerror}"
        except (ValueError, RecursionError) as error:
            damaged[path] = f"{_NAME}: {error}"
    return found, damaged


def forget(directory: Path) -> None:
    """Remove a worker's directory with its logs, at once for whoever looks. Raises OSError."""
    gone = directory.with_name(f"{_FORGOTTEN}{directory.name}")
    shutil.rmtree(gone, ignore_errors=True)  # of a worker of that name before
    directory.rename(gone)
    shutil.rmtree(gone)
