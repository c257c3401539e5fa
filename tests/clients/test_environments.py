"""The search for an interpreter of another version, among stand-ins that say which version they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.debian import Unavailable
from tests.clients.environments import find_python

WANTED = (3, 10)


def stand_in(folder: Path, said: str, status: int = 0) -> Path:
    folder.mkdir(parents=True)
    program = folder / "python3.10"
    program.write_text(f"#!/bin/sh\necho '{said}'\nexit {status}\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path


def test_one_on_path_comes_first(nowhere: Path) -> None:
    stand_in(nowhere / "pyenv/versions/3.10.13/bin", "3 10")
    found = stand_in(nowhere / "bin", "3 10")
    assert find_python(WANTED) == found


def test_a_name_that_does_not_run_is_passed_over_for_the_newest_of_pyenv(nowhere: Path) -> None:
    stand_in(nowhere / "bin", "pyenv: python3.10: command not found", status=127)
    stand_in(nowhere / "pyenv/versions/3.10.2/bin", "3 10")
    found = stand_in(nowhere / "pyenv/versions/3.10.13/bin", "3 10")
    assert find_python(WANTED) == found


def test_pyenv_in_the_home_is_found_too(nowhere: Path) -> None:
    found = stand_in(nowhere / "home/.pyenv/versions/3.10.13/bin", "3 10")
    assert find_python(WANTED) == found


def test_the_reason_names_what_was_tried(nowhere: Path) -> None:
    with pytest.raises(Unavailable, match="neither on PATH nor among"):
        find_python(WANTED)
    wrong = stand_in(nowhere / "bin", "3 9")
    with pytest.raises(Unavailable) as refused:
        find_python(WANTED)
    assert str(wrong) in refused.value.reason
