"""The program tests/gpu/cuda_probes*.c: how it is built, and what its lines mean."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from buildsupport.native import ROOT, WARNINGS, compiler

SECONDS = 120


@dataclass(frozen=True)
class Answer:
    function: str
    probe: int
    expected: int
    code: int

    @property
    def name(self) -> str:
        return f"{self.function} {self.probe}"


def build(folder: Path) -> Path:
    program = folder / "cuda_probes"
    include = f"-I{ROOT / 'simulator' / 'cuda'}"
    sources = [str(source) for source in sorted((ROOT / "tests" / "gpu").glob("cuda_probes*.c"))]
    subprocess.run([*compiler(), "-std=c11", *WARNINGS, include, *sources, "-o", str(program), "-ldl"], check=True)
    return program


def run(program: Path, variables: Mapping[str, str] | None) -> list[Answer] | str:
    """The answers of whichever driver is found; or the reason why there are none."""
    done = subprocess.run([str(program)], env=variables, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode == 2:
        return done.stderr.strip()
    assert done.returncode == 0, f"status {done.returncode} after {done.stdout.splitlines()[-1:]}\n{done.stderr}"
    answers = []
    for line in done.stdout.splitlines():
        function, probe, expected, code = line.split()
        answers.append(Answer(function, int(probe), int(expected), int(code)))
    return answers
