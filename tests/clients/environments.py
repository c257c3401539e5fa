"""Private Python environments with programs of others, made in the cache the first time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from buildsupport.native import ROOT

CACHE = ROOT / ".cache" / "clients"
SECONDS = 1800


@dataclass(frozen=True)
class Wanted:
    """What is installed, the Python that it needs, and how much room."""

    name: str
    packages: tuple[str, ...]
    gibibytes: float
    python: tuple[int, int] | None = None  # None: the one that runs the tests


def _python(wanted: Wanted) -> str:
    if wanted.python is None or wanted.python == sys.version_info[:2]:
        return sys.executable
    name = "python{}.{}".format(*wanted.python)
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{wanted.name} needs {name}, which is not on this machine")
    if (
        subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode != 0
    ):  # a shim of a version manager
        pytest.skip(f"{wanted.name} needs {name}; {found} is only a name for it on this machine")
    return found


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
