"""Compiles and runs the C tests of limiter/tests and simulator/tests, with and without sanitizers.

A C test is a file test_*.c with one comment that says how it is built:

    /* test: sources=limiter/src/ledger.c,limiter/src/os.c include=limiter/include,limiter/src
       variants=plain,address,thread flags=-DHV_CRASH_POINTS arguments= seconds=60 */

Sources and includes are relative to the source root, and sources may be globs; all but sources may be left out.
It passes when it ends with status 0.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from buildsupport.native import OBJECTS, ROOT, WARNINGS, compiler
from buildsupport.objects import objects

VARIANTS = {
    "plain": ("-O2",),
    "address": ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
    "thread": ("-O1", "-fsanitize=thread", "-fno-omit-frame-pointer"),
}
HEADER = re.compile(r"/\*\s*test:(.*?)\*/", re.DOTALL)


@dataclass(frozen=True)
class NativeTest:
    path: Path
    sources: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    variants: tuple[str, ...] = ("plain", "address")
    flags: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    seconds: float = 60


def read(path: Path) -> NativeTest:
    match = HEADER.search(path.read_text())
    if match is None:
        raise ValueError(f"{path} has no 'test:' comment that says how it is built")
    fields: dict[str, object] = {}
    for word in match.group(1).split():
        key, _, value = word.partition("=")
        fields[key] = float(value) if key == "seconds" else tuple(part for part in value.split(",") if part)
    return NativeTest(path, **fields)  # type: ignore[arg-type]


TESTS = [
    read(path) for folder in ("limiter/tests", "simulator/tests") for path in sorted((ROOT / folder).glob("test_*.c"))
]
CASES = [
    pytest.param(test, variant, id=f"{test.path.parent.parent.name}-{test.path.stem}-{variant}")
    for test in TESTS
    for variant in test.variants
]


@pytest.mark.parametrize(("test", "variant"), CASES)
def test_native(test: NativeTest, variant: str, tmp_path: Path) -> None:
    program = tmp_path / test.path.stem
    sources = [test.path, *(found for pattern in test.sources for found in sorted(ROOT.glob(pattern)))]
    flags = ["-std=c11", "-g1", "-pthread", *WARNINGS, *VARIANTS[variant], *test.flags]
    made = objects(compiler(), flags, [ROOT / folder for folder in test.include], sources, OBJECTS)
    command = [*compiler(), *flags, *map(str, made), "-o", str(program), "-ldl", "-lm"]
    linked = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert linked.returncode == 0, linked.stderr
    environment = os.environ | {
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1",
        "TMPDIR": str(tmp_path),
    }
    ran = subprocess.run(
        [str(program), *test.arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=test.seconds,
    )
    assert ran.returncode == 0, f"status {ran.returncode}\n{ran.stdout[-4000:]}\n{ran.stderr[-8000:]}"
