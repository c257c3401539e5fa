"""Tells systemd how the daemon is: readiness, reload, stop and watchdog, by datagrams to $NOTIFY_SOCKET."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """Sends notifications; does nothing where nobody asked for them. A message that can't be sent is dropped."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the abstract namespace.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if path else None
        if self._socket is not None:
            self._socket.settimeout(0)  # a stuck receiver must not stop us
        self.watchdog_seconds = _watchdog_seconds(environment)
        self._fed_at = float("-inf")
        self._status = ""

    def ready(self, status: str) -> None:
        """The daemon serves."""
        self._status = status
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        """One line for `systemctl status`; sent when it has changed."""
        if status != self._status:
            self._status = status
            self._send(f"STATUS={status}")

    def reloading(self) -> None:
        """Settings are being read again; ready() ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The daemon ends."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Feeds the watchdog where there is one; may be called as often as one likes."""
        now = time.monotonic()
        if self.watchdog_seconds is not None and now - self._fed_at >= self.watchdog_seconds / 4:
            self._fed_at = now
            self._send("WATCHDOG=1")

    def close(self) -> None:
        """Let go of the socket; nothing may be sent afterwards."""
        if self._socket is not None:
            self._socket.close()

    def _send(self, message: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(message.encode(), self._address)
        except OSError:
            return  # nobody there, or its queue is full: the next message tells it again


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """The watchdog's time, if it watches this process; None otherwise."""
    microseconds, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not microseconds.isdigit() or int(microseconds) == 0 or pid not in {"", str(os.getpid())}:
        return None
    return int(microseconds) / 1e6
