"""What the program says to those who call it wrongly: one line, with what is close, and where to read on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("runn",), "hypervisor: No such command 'runn'. Did you mean 'run'? See 'hypervisor --help'.\n"),
        (("xyz",), "hypervisor: No such command 'xyz'. See 'hypervisor --help'.\n"),
        (("--nothing",), "hypervisor: No such option '--nothing'. See 'hypervisor --help'.\n"),
    ],
)
def test_a_wrong_word(cli, arguments: tuple[str, ...], told: str) -> None:
    outcome = cli(*arguments)
    assert (outcome.status, outcome.out, outcome.err) == (2, "", told)


def test_what_may_be_chosen_stands_in_one_line(cli) -> None:
    outcome = cli("get")
    assert outcome.status == 2
    assert outcome.err.startswith("hypervisor get: Missing argument 'KIND'. Choose from: nodes, node, gpus, ")
    assert outcome.err.endswith("pool. See 'hypervisor get --help'.\n")
    assert outcome.err.count("\n") == 1


def test_output_that_can_not_be_written_or_is_closed_is_no_traceback() -> None:
    version = (sys.executable, "-m", "hypervisor", "version")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(version, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "hypervisor: can't write the output: No space left on device\n")
    closed = subprocess.run(["sh", "-c", '"$0" "$@" >&- <&-', *version], stderr=subprocess.PIPE, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_what_is_opened_after_a_closed_stream_is_not_written_to_as_that_stream() -> None:
    program = "import os; from hypervisor.cli.main import _open_streams as o; o(); print(os.open('/', os.O_RDONLY) > 2)"
    done = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" <&- 2>&-', sys.executable, program], stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.stdout == "True\n"
