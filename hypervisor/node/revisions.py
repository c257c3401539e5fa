"""Revisions of the node's state: they only grow, also over restarts, without a write for each change.

The file holds a revision that has never been handed out and never will be by this start: blocks are reserved ahead,
so a restart goes on after the reserved one. When a reservation fails (a full disk), revisions go on in memory and the
reservation is tried again with each; a restart in between begins a new epoch, so that order holds all the same. For
the same reason a damaged file is no loss: it is set aside, and counting begins anew.
"""

from __future__ import annotations

from pathlib import Path

from hypervisor.durable import write_atomically
from hypervisor.model import Revision
from hypervisor.node.failure import storage_error

BLOCK = 4096
_MOST_DIGITS = 18  # of what a revision's 64 bits hold


class Revisions:
    """Hands out revisions of one epoch. Not thread-safe: the trio main thread only."""

    def __init__(self, path: Path, *, epoch: int, block: int = BLOCK) -> None:
        """Go on after what the file has reserved; failure says why nothing could be. mended says what was damaged, ""
        when nothing was. Raises StartError when the file is there and can't be read."""
        self._path = path
        self._epoch = epoch
        self._block = block
        self._last, self.mended = _read(path)
        self._reserved = self._last
        self.failure: OSError | None = None
        self._try_to_reserve()

    def next(self) -> Revision:
        """A revision above all before; never fails. failure says why the file lags, None when it doesn't."""
        self._last += 1
        if self._reserved - self._last < self._block // 2:
            self._try_to_reserve()
        return Revision(self._epoch, self._last)

    def _try_to_reserve(self) -> None:
        try:
            self._reserve()
        except OSError as error:
            self.failure = error

    def _reserve(self) -> None:
        wanted = self._last + self._block
        write_atomically(self._path, f"{wanted}\n".encode())
        self._reserved = wanted
        self.failure = None


def _read(path: Path) -> tuple[int, str]:
    """The reserved revision, and what is to be told of a damaged file."""
    try:
        text = path.read_bytes().strip()
    except FileNotFoundError:
        return 0, ""
    except OSError as error:
        raise storage_error("read", path, error) from error
    if text.isdigit() and len(text) <= _MOST_DIGITS:
        return int(text), ""
    aside = path.with_name(path.name + ".damaged")
    try:
        path.rename(aside)
    except OSError as error:
        raise storage_error("set aside the damaged", path, error) from error
    return 0, f"the revision file {path} was damaged and is now {aside.name}; watchers start anew, allocations go on"
