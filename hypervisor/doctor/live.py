"""What only the machine itself can tell: whether a device opens, and the ring buffer of the kernel."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

OPEN_SECONDS = 1.0
# Says in its exit status why a device can't be opened. A process of its own, for a driver that hangs keeps it for ever.
_TRY_OPEN = """
import os, sys
try:
    os.close(os.open(sys.argv[1], os.O_RDWR | os.O_NONBLOCK))
except OSError as error:
    os._exit(error.errno)
"""


def try_open(name: str) -> str:
    """Why a device can't be opened, as the kernel names it (EPERM); "" where it can. ETIMEDOUT: the driver hangs."""
    command = [sys.executable, "-ISc", _TRY_OPEN, name]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        status = child.wait(OPEN_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()  # takes effect when the driver lets go of it
        return "ETIMEDOUT"
    return errno.errorcode.get(status, str(status)) if status else ""


def kernel_messages(device: str = "/dev/kmsg") -> list[str]:
    """All that the kernel's ring buffer holds, a line a record, with seconds since boot as dmesg writes them.

    Raises OSError where it may not be read (it takes CAP_SYSLOG).
    """
    descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    lines = []
    try:
        while True:
            try:
                record = os.read(descriptor, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # overtaken by newer records; the next read goes on with the oldest there is
            head, _, message = record.decode("utf-8", "replace").partition(";")
            fields = head.split(",")
            if len(fields) >= 3 and fields[2].isdecimal():
                lines.append(f"[{int(fields[2]) / 1e6:12.6f}] {message.splitlines()[0] if message else ''}")
    finally:
        os.close(descriptor)
    return lines
