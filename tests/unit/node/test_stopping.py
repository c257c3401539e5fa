"""A stop has a deadline, however it came about, and a failure is one line and a status."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import trio

from hypervisor import config
from hypervisor.cli import run as cli
from hypervisor.cli.failure import CommandError
from hypervisor.http import AddressInUse
from hypervisor.model import Refusal, RefusalReason
from hypervisor.node import daemon
from hypervisor.node.failure import StartError
from hypervisor.node.stopping import Deadline

HANGING = """
import sys, trio
from hypervisor.node.stopping import Deadline

async def hang():
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()

async def fail():
    raise RuntimeError("broken")

async def main():
    deadline = Deadline(0.2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang)
        nursery.start_soon(deadline.guard(fail))

trio.run(main)
"""


def test_a_stop_that_hangs_after_a_failure_is_cut_short() -> None:
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "RuntimeError: broken" in done.stderr
    assert "took longer than 0.2 s" in done.stderr
    assert time.monotonic() - began < 15


def test_a_stop_in_time_is_left_alone() -> None:
    deadline = Deadline(60)
    deadline.start("SIGTERM", status=0)
    deadline.start("later", status=1)
    deadline.cancel()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Deadline(60).guard(trio.lowlevel.checkpoint))

    trio.run(main)


def failing_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> CommandError:
    async def fail(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise error

    monkeypatch.setattr(daemon, "run", fail)
    monkeypatch.setattr("hypervisor.node.logs.set_up", lambda *_: None)
    with pytest.raises(CommandError) as failed:
        cli._run(config.Settings(), config.Settings)
    return failed.value


@pytest.mark.parametrize(
    "error",
    [
        StartError("can't start; do this"),
        AddressInUse("can't start; do this"),
        config.SettingsError("can't start; do this"),
        Refusal(RefusalReason.STORAGE_FAILED, "can't start", remedy="do this"),
        ExceptionGroup("", [ExceptionGroup("", [StartError("can't start; do this")])]),
    ],
)
def test_what_users_meet_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    failed = failing_with(monkeypatch, error)
    assert str(failed) == "can't start; do this"
    assert failed.status == 1


def test_a_defect_is_logged_with_its_traceback_and_ends_with_1(monkeypatch, capsys) -> None:
    failed = failing_with(monkeypatch, ExceptionGroup("tasks", [ZeroDivisionError("by nothing")]))
    assert failed.status == 1
    assert "ZeroDivisionError: by nothing" in str(failed)
    assert "workloads stay limited" in str(failed)


def test_the_settings_of_a_start_come_from_flags_environment_and_file(monkeypatch, tmp_path) -> None:
    from click.testing import CliRunner

    file = tmp_path / "settings.toml"
    file.write_text('node_name = "file"\nvram_ratio = 1.5\n')
    taken = []
    monkeypatch.setattr(cli, "_run", lambda settings, read: taken.append((settings, read())))
    monkeypatch.setenv("HYPERVISOR_NODE_NAME", "environment")
    flags = ["--config", str(file), "--listen", "unix:/a", "--listen", "unix:/b", "--http-port", "0", "--insecure"]
    result = CliRunner().invoke(cli.run, flags)
    assert result.exit_code == 0, result.output
    ((settings, again),) = taken
    assert settings == again
    assert settings.node_name == "environment"
    assert settings.vram_ratio == 1.5
    assert settings.listen == ("unix:/a", "unix:/b")
    assert settings.http_port == 0
    assert settings.insecure is True
