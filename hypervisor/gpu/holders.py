"""Who holds a card's device node open: what keeps it from being reset. Reads /proc; nothing here signals anybody."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def holders_of(minor: int, *, root: Path = Path("/")) -> tuple[int, ...]:
    """Host pids that have /dev/nvidia<minor> open, in rising order, without this process.

    Processes whose descriptors this one may not see are left out; root sees all. Takes some ten microseconds a
    process: call it in a thread.
    """
    return tuple(sorted(pid for pid in _pids(root) if pid != os.getpid() and _holds(root, pid, f"/dev/nvidia{minor}")))


def _pids(root: Path) -> Iterator[int]:
    try:
        names = [entry.name for entry in (root / "proc").iterdir()]
    except OSError:
        return
    yield from (int(name) for name in names if name.isascii() and name.isdigit())


def _holds(root: Path, pid: int, node: str) -> bool:
    descriptors = root / "proc" / str(pid) / "fd"
    try:
        links = list(descriptors.iterdir())
    except OSError:
        return False  # it has ended, or is not ours to look at
    for link in links:
        try:
            # A container may have its own name for the directory; the last part is the driver's.
            if str(link.readlink()).endswith(node):
                return True
        except OSError:
            continue
    return False
