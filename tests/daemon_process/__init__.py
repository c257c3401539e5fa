"""The real daemon as a process, on a simulated machine, in directories of its own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

START_SECONDS = 30.0  # the machine that runs the tests is shared and small


def wait_until(condition: Callable[[], Any], what: str, seconds: float = START_SECONDS) -> Any:
    """The first true value of the condition; fails after the deadline and says what was waited for."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.02)


class DaemonProcess:
    """One daemon. Its directories stay over kill() and start(), so that a restart adopts what was there."""

    def __init__(self, directory: Path, *flags: str, environment: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.state_directory = directory / "state"
        self.base_directory = directory / "base"
        self.flags = flags
        self.environment = dict(environment or {})
        self.prefix: tuple[str, ...] = ()  # a command that execs its arguments
        self.process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @property
    def read_address(self) -> str:
        return f"unix:{self.directory / 'read.sock'}"

    @property
    def admin_address(self) -> str:
        return f"unix:{self.directory / 'admin.sock'}"

    @property
    def owner_address(self) -> str:
        return f"unix:{self.directory / 'owner.sock'}"

    @property
    def log_path(self) -> Path:
        """What the current start has written to stderr."""
        return self.directory / f"log.{self._starts}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> DaemonProcess:
        """Start it and return at once; wait_serving() and wait_ready() wait."""
        self._starts += 1
        command = [
            *self.prefix,
            *(sys.executable, "-m", "hypervisor", "run", "--http-port", "0"),
            *("--state-dir", str(self.state_directory), "--base-dir", str(self.base_directory)),
            *("--listen", self.read_address, "--admin-listen", self.admin_address),
            *("--owner-listen", self.owner_address, *self.flags),
        ]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=dict(os.environ) | self.environment,
            )
        return self

    def log(self) -> list[dict[str, Any]]:
        """The structured lines of the log; what is no JSON has the key "text"."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return [json.loads(line) if line.startswith("{") else {"text": line} for line in lines]

    def wait_serving(self) -> dict[str, Any]:
        """The addresses that the daemon serves, as it logs them."""

        def serving() -> dict[str, Any] | None:
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"the daemon ended with {self.process.returncode}:\n{self.log_path.read_text()}")
            return next((line for line in self.log() if line.get("event") == "serving"), None)

        found: dict[str, Any] = wait_until(serving, "the daemon to serve")
        return found

    def wait_ready(self) -> DaemonProcess:
        """Until /readyz says so."""
        self.wait_serving()
        wait_until(lambda: self.get("/readyz")[0] == 200, f"readiness; {self.get('/readyz')[1]!r}")
        return self

    @property
    def http_url(self) -> str:
        return str(self.wait_serving()["http"])

    @property
    def machine(self) -> Path:
        """The machine file."""
        return Path(self.wait_serving()["machine"])

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Status and body of a page."""
        connection = http.client.HTTPConnection(urlsplit(self.http_url).netloc, timeout=10)
        try:
            connection.request("GET", path, headers=dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def get_json(self, path: str) -> Any:
        """The body of a page that is JSON."""
        return json.loads(self.get(path)[1])

    def cli(self, *arguments: str, admin: bool = False, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `hypervisor ARGUMENTS --server …` against this daemon."""
        address = self.admin_address if admin else self.read_address
        done = subprocess.run(
            [sys.executable, "-m", "hypervisor", *arguments, "--server", address],
            capture_output=True,
            text=True,
            timeout=60,
            env=dict(os.environ) | self.environment,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{arguments} ended with {done.returncode}: {done.stderr}")
        return done

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the daemon alone."""
        os.kill(self.pid, number)

    def stop(self, seconds: float = 10.0) -> int:
        """SIGTERM, and the exit status; fails when it takes longer."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def kill(self) -> None:
        """kill -9, and gone when this returns."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        """End it in any way, at the end of a test."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
