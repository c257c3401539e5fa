"""How keys and certificates are written: whole or not at all, and keys for nobody but their owner."""

from __future__ import annotations

import os
from pathlib import Path

_PRIVATE, _PUBLIC = 0o600, 0o644


def make_private(directory: Path) -> None:
    """A directory for nobody but us; one that is there keeps its mode. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def write(path: Path, content: bytes, *, private: bool) -> None:
    """Replace path by content, readable by its owner only when it is private. Raises OSError."""
    mode = _PRIVATE if private else _PUBLIC
    temporary = path.with_name(f".{path.name}.unfinished")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        # Whatever the umask is.
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
