"""Files of an earlier version, kept as text: made from a daemon's directories once, and laid out again by tests.

    python -m tests.integration.upgrade.recorded VERSION STATE_DIRECTORY BASE_DIRECTORY AGGREGATOR_DATABASE

records what a daemon that was killed and an aggregator that was stopped have left behind. In texts the base directory
and the boot stand as marks; in limit files, which are kept as the bytes that are not zero, the boot is replaced in
place, for all boots' names have one length.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_BASE, _BOOT = "@BASE@", "@BOOT@"
_BLOCK = 64


def lay_out_node(version: str, state: Path, base: Path) -> None:
    """The state and the limit files of a node of that version, as if it had run here in this boot."""
    source = FOLDER / version
    boot = _boot()
    state.mkdir(mode=0o700)
    (state / "allocations").mkdir(mode=0o700)
    for name in ("node.json", "revision"):
        shutil.copy(source / name, state / name)
    for path in (source / "allocations").iterdir():
        text = path.read_text(encoding="utf-8").replace(_BASE, str(base)).replace(_BOOT, boot)
        (state / "allocations" / path.name).write_text(text, encoding="utf-8")
    _database(source / "journal.sql", state / "events.db")
    base.mkdir(mode=0o755)
    (base / "by-uid").mkdir(mode=0o755)
    files = json.loads((source / "limit_files.json").read_text(encoding="utf-8"))
    for name, file in files["files"].items():
        path = base / "by-uid" / name
        path.parent.mkdir(exist_ok=True, mode=0o755)
        path.write_bytes(_bytes(file).replace(files["boot_id"].encode(), boot.encode()))
        path.chmod(file["mode"])


def lay_out_aggregator(version: str, path: Path) -> None:
    """The aggregator's file of that version."""
    _database(FOLDER / version / "aggregator.sql", path)


def record(version: str, state: Path, base: Path, aggregator: Path) -> None:
    """Keep what lies there as the files of a version."""
    target = FOLDER / version
    (target / "allocations").mkdir(parents=True)
    for name in ("node.json", "revision"):
        shutil.copy(state / name, target / name)
    for path in (state / "allocations").glob("*.json"):
        text = path.read_text(encoding="utf-8").replace(str(base), _BASE).replace(_boot(), _BOOT)
        (target / "allocations" / path.name).write_text(text + "\n", encoding="utf-8")
    _dump(state / "events.db", target / "journal.sql", base)
    _dump(aggregator, target / "aggregator.sql", base)
    by_uid = base / "by-uid"
    files = {
        path.relative_to(by_uid).as_posix(): {"mode": path.stat().st_mode & 0o777} | _blocks(path.read_bytes())
        for path in sorted(by_uid.glob("*/*"))
    }
    kept = {"boot_id": _boot(), "files": files}
    (target / "limit_files.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _boot() -> str:
    return BOOT_ID_FILE.read_text(encoding="ascii").strip()


def _blocks(data: bytes) -> dict[str, object]:
    starts = range(0, len(data), _BLOCK)
    filled = {start: data[start : start + _BLOCK] for start in starts if any(data[start : start + _BLOCK])}
    return {"bytes": len(data), "blocks": {str(start): block.hex() for start, block in filled.items()}}


def _bytes(file: dict[str, object]) -> bytes:
    data = bytearray(file["bytes"])
    for start, block in file["blocks"].items():
        data[int(start) : int(start) + _BLOCK] = bytes.fromhex(block)
    return bytes(data)


def _dump(source: Path, target: Path, base: Path) -> None:
    with sqlite3.connect(source) as database:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        lines = [f"PRAGMA user_version={version};", *database.iterdump()]
    database.close()
    target.write_text("\n".join(lines).replace(str(base), _BASE) + "\n", encoding="utf-8")


def _database(source: Path, target: Path) -> None:
    with sqlite3.connect(target) as database:
        database.executescript(source.read_text(encoding="utf-8"))
    database.close()
    target.chmod(0o600)


if __name__ == "__main__":
    record(sys.argv[1], *map(Path, sys.argv[2:]))
