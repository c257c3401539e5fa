"""Another limiter beside ours: PEER_LIMITER names its library, and its own variables say its limits.

It is preloaded in runs of its own, which alternate with those of ours and those without any; it gets the caller's
environment, so that whoever compares sets what that limiter reads, for instance its limit of memory.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "PEER_LIMITER"


class NoSuchLimiterError(Exception):
    """The variable names no file; the text says so."""


def peer_limiter() -> Path | None:
    """The other limiter's library; None where none is named. Raises NoSuchLimiterError."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    path = Path(named).absolute()
    if not path.is_file():
        raise NoSuchLimiterError(f"{VARIABLE} names no file: {named}; give the path of a library that can be preloaded")
    return path
