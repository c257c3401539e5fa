"""The limiter on the simulator's clock, and the client."""

from __future__ import annotations

import fcntl
import functools
from pathlib import Path

from buildsupport.native import ROOT, Library, build_library

FOLDER = ROOT / ".cache" / "pacing"

_LIMITER = Library(
    output="libcuda_limiter.so",
    # All but os_clock.c, whose place os_clock_virtual.c takes.
    sources=(
        "limiter/src/[!o]*.c",
        "limiter/src/os_linux.c",
        "limiter/tests/os_clock_virtual.c",
        "simulator/core/*.c",
    ),
    include=("limiter/include", "limiter/src", "limiter/tests", "simulator/include", "simulator/core"),
    depends=("limiter/include/*.h", "limiter/src/*.h", "limiter/src/*.def", "limiter/tests/*.h", "simulator/*/*.h"),
    soname="libcuda_limiter.so",
    version_script="limiter/limiter.map",
)


@functools.cache
def limiter() -> Path:
    """The library on the simulator's clock."""
    return _built(_LIMITER)


@functools.cache
def client() -> Path:
    """The program that launches."""
    native = ROOT / "hypervisor" / "native" / "simulator"
    return _built(
        Library(
            output="pacing_client",
            sources=("limiter/tests/pacing_client.c", "simulator/core/*.c"),
            include=("simulator/include", "simulator/core", "simulator/cuda"),
            depends=("simulator/*/*.h",),
            program=True,
            link=(f"-L{native}", "-l:libcuda.so.1"),
        )
    )


def _built(library: Library) -> Path:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:  # tests that run side by side need the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = build_library(library, FOLDER)
    assert made is not None, f"the sources of {library.output} are not in the tree"
    return made
