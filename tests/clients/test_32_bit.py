"""A 32-bit program under the preload line of a container: there is no 32-bit CUDA to limit, and it is silent."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from hypervisor.allocations.environment import LIMITER
from hypervisor.kube.answers import HostFiles, library_places
from hypervisor.kube.names import CONTAINER_LIMITER
from tests.clients.conftest import needed
from tests.clients.debian import unpacked_from

PROGRAM = """
.globl _start
_start: mov $4, %eax
    mov $1, %ebx
    mov $text, %ecx
    mov $3, %edx
    int $0x80
    mov $1, %eax
    xor %ebx, %ebx
    int $0x80
.data
text: .ascii "hi\\n"
"""
LIMITER_32 = LIMITER.with_name("libcuda_limiter_32.so")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 machines run 32-bit programs of x86")
def test_a_32_bit_program_is_silent_and_a_64_bit_one_has_the_limiter(tmp_path: Path) -> None:
    loader = needed(unpacked_from, "bookworm", "libc6-i386") / "lib32" / "ld-linux.so.2"
    if not loader.exists():
        loader = loader.parents[1] / "usr" / "lib32" / "ld-linux.so.2"
    source, program = tmp_path / "program.s", tmp_path / "program"
    source.write_text(PROGRAM)
    command = ["gcc", "-m32", "-nostdlib", "-no-pie", "-Wl,-z,noexecstack", f"-Wl,--dynamic-linker={loader}"]
    # With a library to load it is a dynamic program, which the loader starts.
    subprocess.run([*command, str(source), "-Wl,--no-as-needed", str(LIMITER_32), "-o", str(program)], check=True)
    shutil.copy(LIMITER_32, tmp_path / "libcuda_limiter.so")
    for path, library in library_places(HostFiles(limiter=str(LIMITER), preload="", limiter_32=str(LIMITER_32))):
        place = tmp_path / "root" / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)
    line = f"{tmp_path}/root{CONTAINER_LIMITER}"

    def run(command: list[str], preload: str) -> tuple[str, str]:
        variables = {"PATH": os.environ["PATH"], "LD_PRELOAD": preload, "LD_LIBRARY_PATH": str(tmp_path)}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout, done.stderr

    assert run([str(loader), str(program)], line) == ("hi\n", "")
    assert "cannot be preloaded" in run([str(loader), str(program)], str(LIMITER))[1]  # the control
    maps, errors = run(["cat", "/proc/self/maps"], line)
    assert errors == ""
    assert f"{tmp_path}/root/tensor-fusion-limiter/lib" in maps
