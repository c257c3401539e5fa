"""The command line in this process: the same code as the program's, without the start of an interpreter each time."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess

from hypervisor.cli.main import main
from tests.daemon_process import DaemonProcess


def doctor(*arguments: str, daemon: DaemonProcess | None = None) -> subprocess.CompletedProcess[str]:
    """`hypervisor doctor ARGUMENTS`, of a daemon where one is given."""
    server = () if daemon is None else ("--server", daemon.read_address)
    output, errors = io.StringIO(), io.StringIO()
    status: int | str | None = 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            main(["doctor", *arguments, *server])
        except SystemExit as ended:
            status = ended.code
    assert isinstance(status, int), status
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, object]]:
    """By id, from the report as JSON."""
    assert done.returncode in (0, 1), done.stderr
    return {each["checkId"]: each for each in json.loads(done.stdout)["checks"]}
