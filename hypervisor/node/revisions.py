"""Revisions of the node's state: they only grow, also over restarts, without a write for each change.

The file holds a revision that has never been handed out and never will be by this start: blocks are reserved ahead,
so a restart goes on after the reserved one. When a reservation fails (a full disk), revisions go on in memory and the
reservation is tried again with each; a restart in between begins a new epoch, so that order holds all the same.
"""

from __future__ import annotations

from pathlib import Path

from hypervisor.model import Revision
from hypervisor.node.durable import write_atomically
from hypervisor.node.failure import StartError, storage_error

BLOCK = 4096


class Revisions:
    """Hands out revisions of one epoch. Not thread-safe: the trio main thread only."""

    def __init__(self, path: Path, *, epoch: int, block: int = BLOCK) -> None:
        """Go on after what the file has reserved. Raises StartError when it can't be read or stored."""
        self._path = path
        self._epoch = epoch
        self._block = block
        self._last = self._reserved = _read(path)
        self.failure: OSError | None = None
        try:
            self._reserve()
        except OSError as error:
            raise storage_error("store revisions in", path.parent, error) from error

    def next(self) -> Revision:
        """A revision above all before; never fails. failure says why the file lags, None when it doesn't."""
        self._last += 1
        if self._reserved - self._last < self._block // 2:
            try:
                self._reserve()
            except OSError as error:
                self.failure = error
        return Revision(self._epoch, self._last)

    def _reserve(self) -> None:
        wanted = self._last + self._block
        write_atomically(self._path, f"{wanted}\n".encode())
        self._reserved = wanted
        self.failure = None


def _read(path: Path) -> int:
    try:
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return 0
    except UnicodeDecodeError:
        text = "not text"
    except OSError as error:
        raise storage_error("read", path, error) from error
    if not text.isdigit():
        raise StartError(
            f"the revision file {path} is damaged; remove it (watchers then start anew, allocations are kept)"
        )
    return int(text)
