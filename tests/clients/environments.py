"""Private Python environments with programs of others, made in the cache the first time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from buildsupport.native import ROOT
from tests.clients.debian import Unavailable

CACHE = ROOT / ".cache" / "clients"
SECONDS = 1800


@dataclass(frozen=True)
class Wanted:
    """What is installed, the Python that it needs, and how much room."""

    name: str
    packages: tuple[str, ...]
    gibibytes: float
    python: tuple[int, int] | None = None  # None: the one that runs the tests


def _candidates(version: tuple[int, int]) -> Iterator[Path]:
    """Where an interpreter may be: on PATH, and where pyenv installs them, newest first."""
    name = "python{}.{}".format(*version)
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder and (Path(folder) / name).is_file():
            yield Path(folder) / name
    for root in (os.environ.get("PYENV_ROOT"), Path.home() / ".pyenv"):
        if root:
            found = (Path(root) / "versions").glob("{}.{}.*/bin/{}".format(*version, name))
            yield from sorted(found, key=lambda path: _patch(path.parent.parent.name), reverse=True)


def _patch(version: str) -> int:
    last = version.rpartition(".")[2]
    return int(last) if last.isdigit() else -1  # 3.10-dev and the like come last


def _works(python: Path, version: tuple[int, int]) -> bool:
    """Not so for a version manager's name for an interpreter that is not chosen."""
    asked = [str(python), "-c", "import sys, venv; print(*sys.version_info[:2])"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.split() == [str(part) for part in version]


def find_python(version: tuple[int, int]) -> Path:
    """An interpreter of this version that runs.

    Raises:
        Unavailable: there is none.
    """
    tried = []
    for candidate in _candidates(version):
        if _works(candidate, version):
            return candidate
        tried.append(str(candidate))
    name = "python{}.{}".format(*version)
    if tried:
        raise Unavailable(f"{name} is needed, and does not run: {', '.join(tried)}")
    raise Unavailable(f"{name} is needed, and is neither on PATH nor among pyenv's versions")


def _python(wanted: Wanted) -> str:
    if wanted.python is None or wanted.python == sys.version_info[:2]:
        return sys.executable
    try:
        return str(find_python(wanted.python))
    except Unavailable as error:
        pytest.skip(f"{wanted.name}: {error.reason}")


def interpreter(wanted: Wanted) -> Path:
    """The environment's Python; the calling test is skipped, with the reason, where it cannot be made."""
    folder = CACHE / wanted.name
    python = folder / "bin" / "python"
    mark = folder / "complete"
    if mark.exists() and mark.read_text() == "\n".join(wanted.packages):
        return python
    creator = _python(wanted)
    CACHE.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(CACHE).free / 2**30
    if free < wanted.gibibytes * 1.5:
        pytest.skip(f"{wanted.name} needs {wanted.gibibytes} GiB of disk; {free:.1f} GiB are free")
    try:
        subprocess.run([creator, "-m", "venv", str(folder)], check=True, capture_output=True, timeout=SECONDS)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--no-compile", *wanted.packages],
            check=True,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{wanted.name} could not be installed within {SECONDS} s")
    except subprocess.CalledProcessError as error:
        lines = [line for line in str(error.stderr).splitlines() if line.startswith("ERROR")] or ["no reason given"]
        pytest.skip(f"{wanted.name} could not be installed: {lines[-1]}")
    mark.write_text("\n".join(wanted.packages))
    return python
