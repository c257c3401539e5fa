"""buildsupport/prepare-python on machines that lack something, played by programs of the test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "buildsupport/prepare-python"


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_what_an_installation_did_not_bring_is_named(tmp_path: Path) -> None:
    """A Python beside the distribution's, whose headers no package of the distribution brings."""
    python = program(
        tmp_path / "python3.other",
        f'case "$*" in *get_paths*) echo {tmp_path}/include ;; *) exec {sys.executable} "$@" ;; esac',
    )
    calls = tmp_path / "calls"
    program(tmp_path / "apt-get", f'echo "$@" >>{calls}')
    program(tmp_path / "id", "echo 0")
    done = subprocess.run(
        [SCRIPT, python, tmp_path / "venv"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "python3-dev" in calls.read_text()
    (line,) = done.stderr.splitlines()
    assert f"{tmp_path}/include/Python.h" in line
    assert "PYTHON=" in line
    assert not (tmp_path / "venv").exists()
