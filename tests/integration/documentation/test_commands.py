"""What the pages tell to type, typed: on a simulated machine, in directories of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documentation.blocks import Command, commands

ROOT = Path(__file__).parents[3]
SECONDS = 30.0  # a shared machine; what is waited for comes within two or three
COMMAND_SECONDS = 60.0
PAGES = ("../README.md", "install-workstation.md", "troubleshooting.md")


class Terminal:
    """Where the commands of a page are run. /tmp is a folder of the test, and so is all that a daemon keeps."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._background: list[subprocess.Popen[bytes]] = []
        kept = {f"HYPERVISOR_{name}": str(directory / name.lower()) for name in ("STATE_DIR", "BASE_DIR")}
        sockets = {
            f"HYPERVISOR_{name}": f"unix:{directory / name.lower()}"
            for name in ("LISTEN", "ADMIN_LISTEN", "OWNER_LISTEN")
        }
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = dict(os.environ) | kept | sockets | {"HYPERVISOR_HTTP_PORT": "0", "PATH": path}

    def run(self, command: Command) -> None:
        """Run it; what it is to show may take a moment to become true, so it is asked again until then."""
        text = command.text.replace("/tmp/", f"{self._directory}/")
        if command.status is None:
            self._background.append(self._start(text))
            return
        deadline = time.monotonic() + SECONDS
        while True:
            status, output = self._finish(text)
            missing = [line for line in command.expected if not _shows(output, line)]
            if status == command.status and not missing:
                return
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"line {command.line}: {command.text}\nended with {status}, not {command.status}; "
                    f"lacks {missing}:\n{output}"
                )
            time.sleep(0.2)

    def close(self) -> None:
        """End what runs in the background, each with all that it started."""
        for process in reversed(self._background):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(15)

    def _start(self, text: str) -> subprocess.Popen[bytes]:
        with (self._directory / "background.log").open("ab") as log:
            return subprocess.Popen(
                ["bash", "-c", text],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _finish(self, text: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
            text=True,
        )
        return done.returncode, done.stdout


def _shows(output: str, line: str) -> bool:
    """Whether the line is in what was written, spaces apart; … stands for anything without a space."""
    parts = (re.escape(part) for part in _plain(line).split("…"))
    return re.search(r"\S*".join(parts), _plain(output)) is not None


def _plain(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    # Not below tmp_path: the address of a unix socket has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="hypervisor-"))
    made = Terminal(directory)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_do_what_it_says(page: str, terminal: Terminal) -> None:
    listed = commands(page)
    assert listed
    for command in listed:
        terminal.run(command)


@pytest.mark.slow
def test_a_page_that_says_something_else_is_found_out(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SECONDS", 3.0)
    with pytest.raises(AssertionError, match="lacks"):
        terminal.run(Command("hypervisor version", 1, expected=["another version"]))
    terminal.run(Command("echo a[123] b", 1, expected=["a[…] b"]))
    with pytest.raises(AssertionError, match="lacks"):
        terminal.run(Command("echo a[123] c b", 1, expected=["a[…] b"]))
    with pytest.raises(AssertionError, match="ended with 3, not 0"):
        terminal.run(Command("hypervisor get gpus", 2))
