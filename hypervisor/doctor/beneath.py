"""Opening a file below a directory without ever leaving it, whoever changes links there meanwhile."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque

MOST_LINKS = 40


def open_beneath(start: int, name: str, *, follow_last: bool = True) -> int:
    """A descriptor (O_PATH) that only names the file; takes over start, a descriptor of the directory. Raises OSError.

    Each step is taken without following links; what a link says is walked from the same directory on, as in a chroot.
    """
    stack = [start]
    try:
        parts, links = deque(name.split("/")), 0
        while parts:
            part = parts.popleft()
            if part in ("", "."):
                continue
            if part == "..":
                if len(stack) > 1:
                    os.close(stack.pop())
                continue
            stack.append(os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=stack[-1]))
            if not stat.S_ISLNK(os.fstat(stack[-1]).st_mode) or not (follow_last or parts):
                continue
            os.close(stack.pop())
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
            target = os.readlink(part, dir_fd=stack[-1])
            if target.startswith("/"):
                while len(stack) > 1:
                    os.close(stack.pop())
            parts.extendleft(reversed(target.split("/")))
        return stack.pop()
    finally:
        for descriptor in stack:
            os.close(descriptor)
