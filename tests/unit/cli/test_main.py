"""What the program says to those who call it wrongly: one line, with what is close, and where to read on."""

from __future__ import annotations

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
