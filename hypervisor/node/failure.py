"""Why the daemon can't start or go on: one line that says what, why and what to do."""

from __future__ import annotations

import errno
from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StartError(Exception):
    """The daemon can't start; the text is the only line that its user gets."""


def storage_error(what: str, path: Path, error: OSError) -> StartError:
    """An OSError on one of the daemon's directories, in words and with a remedy."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            remedy = f"free some space on the file system of {path}"
        case errno.EACCES | errno.EPERM:
            remedy = "run as root, or name directories that you may write with --state-dir and --base-dir"
        case errno.EROFS:
            remedy = "the file system is read-only; mount it writable or name another directory"
        case _:
            remedy = "name another directory with --state-dir or --base-dir"
    return StartError(f"can't {what} {path}: {error.strerror}; {remedy}")
