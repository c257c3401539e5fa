"""/etc/ld.so.preload of a container: ours first, then what the image had.

The line has $LIB in it, which the loader replaces by lib64, lib/x86_64-linux-gnu and the like, and by other names for
32-bit programs: these would say on stderr that a 64-bit library can't be preloaded, and so get a folder of their own,
which holds an empty library of their class.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

LIBRARY_LINE = "/run/tensor-fusion/$LIB/libcuda_limiter.so"
PRELOAD = "etc/ld.so.preload"
_MOST_BYTES = 64 * 1024


def copied_whole(library: Path, directory: Path) -> Path:
    """A copy of a library in a directory, put there in one step: what runs keeps the one it has. Raises OSError."""
    target = directory / library.name
    unfinished = directory / f".{library.name}.unfinished"
    shutil.copyfile(library, unfinished)
    unfinished.chmod(0o755)
    unfinished.rename(target)
    return target


class PreloadError(Exception):
    """The file can't be merged: what, why, and what to do, in one line."""


def merged(existing: str, library: str) -> str:
    """The new content: the limiter's line first, once, and every other entry as it was.

    The loader takes blanks, colons and newlines between entries and '#' for the rest of a line.
    """
    kept = []
    for line in existing.splitlines():
        entries, mark, comment = line.partition("#")
        names = [name for name in entries.replace(":", " ").split() if name != library]
        if names or mark:
            kept.append(" ".join(names) + (f"{' ' if names else ''}#{comment}" if mark else ""))
    return "\n".join([library, *kept]) + "\n"


def merge_into(root: Path, library: str = LIBRARY_LINE) -> bool:
    """Merge below the root of a container; True when the file changed.

    No symlink of the image is followed out of the root. Raises PreloadError.
    """
    if any(blank in library for blank in " \t\n:#"):
        raise PreloadError(f"{library!r} can't stand in /etc/ld.so.preload: give a path without blanks, ':' and '#'")
    try:
        directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise PreloadError(f"{root} can't be opened: {error.strerror}; name the container's root") from error
    try:
        etc = _open_etc(directory)
        try:
            before = _read(etc)
            after = merged(before or "", library)
            if before == after:
                return False
            _replace(etc, after)
        finally:
            os.close(etc)
    except OSError as error:
        raise PreloadError(
            f"{root}/{PRELOAD} can't be merged: {error.strerror}; mount a file there that holds {library}"
        ) from error
    finally:
        os.close(directory)
    return True


def _open_etc(root: int) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir("etc", 0o755, dir_fd=root)
    return os.open("etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)


def _read(etc: int) -> str | None:
    try:
        descriptor = os.open("ld.so.preload", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=etc)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MOST_BYTES).decode(errors="surrogateescape")


def _replace(etc: int, content: str) -> None:
    """In one step, so that a program that starts meanwhile sees the old or the new file."""
    unfinished = ".ld.so.preload.unfinished"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unfinished, dir_fd=etc)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=etc)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(content.encode(errors="surrogateescape"))
    os.rename(unfinished, "ld.so.preload", src_dir_fd=etc, dst_dir_fd=etc)


def root_from_state(text: str) -> Path:
    """The container's root, from the state that an OCI runtime gives a hook. Raises PreloadError."""
    try:
        bundle = Path(json.loads(text)["bundle"])
        root = str(json.loads((bundle / "config.json").read_text())["root"]["path"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise PreloadError(
            f"stdin holds no OCI state with a bundle ({type(error).__name__}): run it as a createContainer hook, or "
            "give --root"
        ) from error
    return bundle / root
