"""Python programs of others in a virtual environment of their own, below .cache."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from tests.clients.debian import Unavailable

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "clients"
SECONDS = 300


def tool(name: str) -> Path:
    """The program of the package of this name, installed on first use.

    Raises:
        Unavailable: there is no way to it from here.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    environment = CACHE / name
    program = environment / "bin" / name
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True, timeout=SECONDS)
            pip = [environment / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", name]
            try:
                done = subprocess.run(pip, capture_output=True, text=True, timeout=SECONDS, check=False)
            except subprocess.TimeoutExpired:
                raise Unavailable(f"installing {name} took more than {SECONDS} s") from None
            if done.returncode != 0:
                raise Unavailable(f"{name} can't be installed: {done.stderr.strip().splitlines()[-1]}")
    return program
