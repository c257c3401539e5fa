"""`hypervisor top` in a real terminal: tmux holds the screen and types the keys."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.node import calls

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux, the terminal of this test, is not installed"),
]
GIB = 2**30


class Terminal:
    """One window of a tmux server of its own."""

    def __init__(self, command: list[str], *, width: int = 80, height: int = 24, **environment: str) -> None:
        self._name = f"top-{uuid.uuid4().hex[:8]}"
        sets = [word for key, value in environment.items() for word in ("-e", f"{key}={value}")]
        self._tmux("new-session", "-d", "-x", str(width), "-y", str(height), *sets, *command)

    def _tmux(self, *arguments: str) -> str:
        # A locale with blocks, so that the screen is the one that people see.
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "TMUX": ""}
        done = subprocess.run(
            ["tmux", "-L", self._name, "-f", "/dev/null", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            check=True,
        )
        return done.stdout

    def screen(self, *, colours: bool = False) -> str:
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def keys(self, *names: str) -> None:
        self._tmux("send-keys", *names)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def shows(self, text: str) -> str:
        """The screen, once the text is on it."""

        def found() -> str:
            screen = self.screen()
            return screen if text in screen else ""

        return str(wait_until(found, f"{text!r} on the screen"))

    def ended(self) -> bool:
        done = subprocess.run(["tmux", "-L", self._name, "has-session"], capture_output=True, check=False)
        return done.returncode != 0

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._name, "kill-server"], capture_output=True, check=False)


@pytest.fixture
def shared_card(daemon: DaemonProcess) -> DaemonProcess:
    """A daemon with two Pods on one card."""
    calls.allocate(daemon, "train", vram_bytes=8 * GIB, percent="40", gpu="0")
    calls.allocate(daemon, "infer", vram_bytes=4 * GIB, percent="20", gpu="0")
    return daemon


@pytest.fixture
def open_top(shared_card: DaemonProcess) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(*flags: str, **sizes: object) -> Terminal:
        servers = ("--server", shared_card.read_address, "--admin-server", shared_card.admin_address)
        command = [sys.executable, "-m", "hypervisor", "top", *servers, *flags]
        opened.append(Terminal(command, **sizes))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for terminal in opened:
        terminal.close()


def test_a_limit_is_changed_from_the_keyboard_after_confirmation(
    open_top: Callable[..., Terminal], shared_card: DaemonProcess
) -> None:
    terminal = open_top()
    screen = terminal.shows("train ")
    assert "0.0%/40%" in screen or "-/40%" in screen
    terminal.keys("Tab", "End", "l")
    terminal.shows("new limits")
    terminal.type("50% 9Gi")
    terminal.keys("Enter")
    terminal.shows("give train 50% 9Gi from now on? (now 40% and 8Gi)")
    assert limit_of(shared_card, "train") == (400_000, 8 * GIB)
    terminal.keys("y")
    terminal.shows("train has 50% compute and 9Gi VRAM of GPU 0 now")
    assert limit_of(shared_card, "train") == (500_000, 9 * GIB)
    terminal.shows("/50%")


def test_a_limit_that_does_not_fit_is_refused_with_the_reason(
    open_top: Callable[..., Terminal], shared_card: DaemonProcess
) -> None:
    terminal = open_top(width=160)
    terminal.shows("train ")
    terminal.keys("Tab", "l")
    terminal.type("140%")
    terminal.keys("Enter")
    terminal.shows("more than the whole card")
    terminal.keys("BSpace", "BSpace", "BSpace", "BSpace")
    terminal.type("500Gi")
    terminal.keys("Enter")
    terminal.shows("give infer 500Gi")
    terminal.keys("y")
    terminal.shows("500Gi")
    assert limit_of(shared_card, "infer") == (200_000, 4 * GIB)


def test_the_page_of_a_pod_is_as_it_is_now(open_top: Callable[..., Terminal], shared_card: DaemonProcess) -> None:
    terminal = open_top()
    terminal.shows("train ")
    terminal.keys("Tab", "End", "Enter")
    terminal.shows("VRAM limit:       8Gi")
    calls.update_limits(shared_card, "train", vram_bytes=9 * GIB, percent="35")
    terminal.shows("VRAM limit:       9Gi")
    terminal.shows("35%")
    calls.release(shared_card, "train")
    assert "VRAM limit:       9Gi" in terminal.shows("it is no longer there")
    terminal.keys("Escape")
    terminal.shows("infer ")


def test_filter_detail_sort_help_and_leaving(open_top: Callable[..., Terminal]) -> None:
    terminal = open_top()
    terminal.shows("train")
    terminal.keys("/")
    terminal.type("inf")
    wait_until(lambda: "train" not in terminal.screen(), "the filter to hide train")
    terminal.keys("Enter", "Tab", "Enter")
    terminal.shows("Enforcement:")
    terminal.keys("Escape")
    terminal.shows("filter: inf")
    terminal.keys("Escape")
    terminal.shows("train")
    terminal.keys("s")
    terminal.shows("sorted by")
    terminal.keys("?")
    terminal.shows("ENTER      all that is known of it")
    terminal.keys("x", "q")
    wait_until(terminal.ended, "top to leave")


def test_every_size_and_a_resize(open_top: Callable[..., Terminal]) -> None:
    terminal = open_top(width=250, height=60)
    assert "OWNER" in terminal.shows("ENFORCED")
    terminal.resize(80, 24)
    wait_until(lambda: "OWNER" not in terminal.screen(), "the narrow view")
    assert "q quit" in terminal.shows("q quit").rstrip().split("\n")[-1]
    terminal.resize(30, 6)
    terminal.shows("too small")
    terminal.resize(120, 30)
    terminal.shows("ENFORCED")


@pytest.mark.parametrize(("flags", "coloured"), [((), True), (("--no-color",), False)])
def test_colours_and_none(open_top: Callable[..., Terminal], flags: tuple[str, ...], coloured: bool) -> None:
    terminal = open_top(*flags, TERM="screen-256color")
    terminal.shows("healthy")
    green = "\x1b[32m"
    assert (green in terminal.screen(colours=True)) is coloured


def test_a_daemon_that_dies_is_told_and_comes_back(
    open_top: Callable[..., Terminal], shared_card: DaemonProcess
) -> None:
    terminal = open_top(width=200)
    terminal.shows("train")
    shared_card.kill()
    assert "train" in terminal.shows("what is shown is old")
    shared_card.start().wait_ready()
    wait_until(lambda: "what is shown is old" not in terminal.screen(), "top to find the daemon again")
    terminal.shows("train")


def test_while_the_daemon_hangs_another_size_is_drawn_and_its_silence_told(
    open_top: Callable[..., Terminal], shared_card: DaemonProcess
) -> None:
    terminal = open_top("--interval", "60")
    terminal.shows("train")
    os.kill(shared_card.pid, signal.SIGSTOP)
    try:
        terminal.resize(200, 30)
        # Long before the interval or the silence would make another frame.
        wait_until(lambda: "OWNER" in terminal.screen(), "the wide view", 8)
        assert "train" in terminal.shows("is silent; is the daemon stuck?; what is shown is old")
    finally:
        os.kill(shared_card.pid, signal.SIGCONT)
    wait_until(lambda: "what is shown is old" not in terminal.screen(), "top to hear the daemon again")


def limit_of(daemon: DaemonProcess, name: str) -> tuple[int, int]:
    device = next(each for each in calls.list_allocations(daemon) if each.spec.allocation_id == name).devices[0]
    return device.limit_share_ppm, device.limit_vram_bytes


def printed(daemon: DaemonProcess, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hypervisor", "top", "--server", daemon.read_address, *flags]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, check=False, timeout=60
    )


def test_piped_output_is_plain_text(shared_card: DaemonProcess) -> None:
    done = printed(shared_card, COLUMNS="100")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "train" in done.stdout
    assert all(len(line) <= 100 for line in done.stdout.split("\n"))


def test_an_ascii_locale_gets_ascii(shared_card: DaemonProcess) -> None:
    done = printed(shared_card, "--once", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0
    assert done.stdout.isascii()


def test_no_daemon_is_one_line_and_status_three(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hypervisor", "top", "--server", f"unix:{tmp_path}/none.sock"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "there is no such socket" in done.stderr
