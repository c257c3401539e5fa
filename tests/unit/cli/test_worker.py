"""`hypervisor worker start`: what is an option of ours, and what is the worker's."""

from __future__ import annotations

import click
import pytest

from hypervisor.cli.worker import worker

START = worker.commands["start"]


@pytest.mark.parametrize(
    ("words", "allocation", "command"),
    [
        ("one --allocation a -- cmd -x", "a", "cmd -x"),  # as the documentation has it
        ("--allocation a one -- cmd -x", "a", "cmd -x"),
        ("--allocation a one cmd --allocation b", "a", "cmd --allocation b"),
        ("one --allocation a cmd --allocation b -- -y", "a", "cmd --allocation b -- -y"),
        ("--restart never one --allocation a -- cmd", "a", "cmd"),
        ("one -- --allocation b", "", "--allocation b"),
        ("-- one --allocation b", "", "--allocation b"),
        ("one cmd -- x", "", "cmd -- x"),
    ],
)
def test_options_stand_before_the_name_and_behind_it(words: str, allocation: str, command: str) -> None:
    found = START.make_context("start", words.split()).params
    assert (found["name"], found["allocation"], found["command"]) == ("one", allocation, tuple(command.split()))


@pytest.mark.parametrize("words", ["", "one", "one --", "one --allocation a", "one --no-such a cmd", "--no-such one x"])
def test_a_wrong_use_is_told(words: str) -> None:
    with pytest.raises(click.UsageError):
        START.make_context("start", words.split())
