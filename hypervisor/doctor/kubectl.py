"""Kubernetes objects by the kubectl that is installed here, for a bundle. Nothing is changed."""

from __future__ import annotations

import shutil
import subprocess

import msgspec

from hypervisor.doctor.kubernetes import KINDS, Object, Objects

SECONDS = 10


def collect() -> tuple[Objects, tuple[str, ...]]:
    """All kinds that could be asked for, and one line for each that could not. Takes SECONDS a kind at most."""
    program = shutil.which("kubectl")
    if program is None:
        return Objects(), ("kubectl is not installed here",)
    found: dict[str, list[Object]] = {}
    missing = []
    for name, words in KINDS.items():
        command = [program, "get", *words.split(), "-o", "json", f"--request-timeout={SECONDS}s"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=SECONDS + 5, check=False)
            if done.returncode == 0:
                found[name] = msgspec.json.decode(done.stdout)["items"]
                continue
            why = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        except subprocess.TimeoutExpired:
            why = ["no answer in time"]
        except (msgspec.DecodeError, KeyError, TypeError):
            why = ["the answer is no list"]
        missing.append(f"{name}: {why[0] if why else 'kubectl failed'}")
    return Objects(found), tuple(missing)
