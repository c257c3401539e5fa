"""Threads of one process share the library's state without a race, as far as the thread sanitizer sees."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from buildsupport.native import BASE_FLAGS, ROOT
from tests.integration.limiter.conftest import GIB, TESTS, Pod

UUID = "GPU-00000000-0000-0000-0000-00000000000f"  # of the driver that does nothing
# The copy of the limits is fenced, which it does not model: nothing of the test changes limits meanwhile.
SANITIZER = ("-g", "-O1", "-fsanitize=thread", "-Wno-error=tsan", "-Wno-tsan")


def compiled(folder: Path, name: str, *flags: str) -> Path:
    """The program with the library's own sources; without the jumps of dlsym, which the sanitizer needs itself."""
    sources = [path for path in sorted((ROOT / "limiter/src").glob("*.c")) if path.name != "lookup_entry.c"]
    includes = [f"-I{ROOT / part}" for part in ("limiter/include", "limiter/src")]
    program = folder / name
    command = ["gcc", *BASE_FLAGS, *SANITIZER, *flags, *includes, str(TESTS / "threads.c"), *map(str, sources)]
    subprocess.run([*command, "-o", str(program), "-ldl"], check=True)
    return program


@pytest.mark.slow
def test_the_thread_sanitizer_finds_nothing(pod: Pod, tmp_path: Path) -> None:
    pod.files.run("make", UUID, 8 * GIB, 900_000, 0, 10**15)
    noop = ROOT / "hypervisor" / "native" / "noop"
    done = pod.run([str(compiled(tmp_path, "threads"))], LD_PRELOAD="", LD_LIBRARY_PATH=str(noop))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0\n"
