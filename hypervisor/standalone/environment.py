"""The environment of a command under limits."""

from __future__ import annotations

from collections.abc import Mapping

# Lists in which the user's own entries stay, behind ours.
PATH_LISTS = ("LD_PRELOAD", "LD_LIBRARY_PATH")


def merged(own: Mapping[str, str], limits: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: its own, and what the limiter needs."""
    result = {**own, **limits}
    for name in PATH_LISTS:
        mine, theirs = own.get(name), limits.get(name)
        if mine and theirs and theirs not in mine.split(":"):
            result[name] = f"{theirs}:{mine}"
        elif mine:
            result[name] = mine
    return result
