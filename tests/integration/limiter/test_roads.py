"""Every road to the driver leads through the limiter, and none gives another function than the driver's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from buildsupport.native import ROOT
from tests.integration.limiter.conftest import LIMITER, TESTS, Pod

SIMULATOR = ROOT / "hypervisor" / "native" / "simulator"
REFUSED = "2\n"
GRANTED = "0\n"


@pytest.fixture(scope="session")
def roads(build: Callable[..., Path]) -> Path:
    return build("roads", "roads.c", flags=("-ldl",))


@pytest.fixture(scope="session")
def linked(build: Callable[..., Path]) -> Path:
    return build("roads-linked", "roads.c", flags=("-DLINKED", str(SIMULATOR / "libcuda.so.1")))


@pytest.mark.parametrize("road", ["dlsym", "default", "next", "deepbind", "lookup", "lookup-old"])
def test_a_program_that_opens_the_driver_is_limited(pod: Pod, roads: Path, road: str) -> None:
    """nvshare 11: a program that looks everything up with cuGetProcAddress_v2 is limited too."""
    assert pod.run([str(roads), road]).stdout == REFUSED
    assert pod.run([str(roads), road], limited=False).stdout == GRANTED


def test_a_program_that_is_linked_to_the_driver_is_limited(pod: Pod, linked: Path) -> None:
    assert pod.run([str(linked)]).stdout == REFUSED
    assert pod.run([str(linked)], limited=False).stdout == GRANTED


def test_a_second_driver_in_a_namespace_of_its_own_works_and_is_not_reached(pod: Pod, roads: Path) -> None:
    """Documented: the daemon reports such a process, which uses a GPU and has no slot."""
    assert pod.run([str(roads), "dlmopen"]).stdout == GRANTED
    assert pod.files.show()["live"] == 0


def test_a_library_that_binds_to_its_own_needs_first_works_and_is_not_reached(
    pod: Pod, build: Callable[..., Path]
) -> None:
    """Opened with RTLD_DEEPBIND it gets the driver's functions, and the C library's dlsym, before ours.

    Documented: the daemon reports a process that uses a GPU so and has no slot, and counts memory beyond the account.
    """
    flags = ("-shared", "-fPIC", str(SIMULATOR / "libcuda.so.1"))
    plugin = build("deepbind.so", "deepbind.c", flags=flags)
    source = f"tell(ctypes.CDLL({str(plugin)!r}, mode=os.RTLD_NOW | MODE).allocate())"
    assert pod.ask(source.replace("MODE", "os.RTLD_DEEPBIND")) == 0
    assert pod.files.show()["live"] == 0
    assert pod.ask(source.replace("MODE", "os.RTLD_LOCAL")) == 2


@pytest.mark.parametrize(
    "found",
    [
        'libc.dlvsym(None, b"dlsym", b"GLIBC_2.2.5")',
        'libc.dlvsym(None, b"dlsym", b"GLIBC_2.34")',
        'libc.dlvsym(-1, b"dlsym", b"GLIBC_2.2.5")',
        'libc.dlsym(c_library._handle, b"dlsym")',
    ],
)
def test_who_asks_the_c_library_for_its_own_lookup_is_limited(pod: Pod, found: str) -> None:
    """As a library does that comes between a program and dlsym."""
    source = f"""
        libc, c_library = ctypes.CDLL(None), ctypes.CDLL("libc.so.6")
        pointer = ctypes.c_void_p
        libc.dlsym.restype = libc.dlvsym.restype = pointer
        libc.dlsym.argtypes, libc.dlvsym.argtypes = [pointer, ctypes.c_char_p], [pointer, *[ctypes.c_char_p] * 2]
        start()
        lookup = {found}
        if lookup:
            allocate = ctypes.CFUNCTYPE(pointer, pointer, ctypes.c_char_p)(lookup)(cuda._handle, b"cuMemAlloc_v2")
            place = ctypes.c_uint64()
            tell(ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.c_size_t)(allocate)(ctypes.addressof(place), 2 * GIB))
        else:
            tell("not there")  # this C library has no such version
    """
    assert pod.ask(source) in (2, "not there")
    assert pod.ask(source, limited=False) in (0, "not there")


def test_a_versioned_lookup_answers_as_without_the_limiter(pod: Pod, roads: Path) -> None:
    assert pod.run([str(roads), "dlvsym"]).stdout == pod.run([str(roads), "dlvsym"], limited=False).stdout


@pytest.mark.parametrize("status", ["status", ""])
def test_every_lookup_of_the_cuda_runtime_is_answered_as_by_the_driver(
    pod: Pod, build: Callable[..., Path], status: str
) -> None:
    """HAMi-core 57: functions of another ABI. Olares 2687: names that are new with CUDA 13."""
    probe = build("lookup_probe", "lookup_probe.c", flags=("-ldl", "-rdynamic"))
    queries = (TESTS / "cudart_13_0_queries.txt").read_text()
    limited = pod.run([str(probe), status], stdin=queries).stdout
    free = pod.run([str(probe), status], stdin=queries, limited=False).stdout
    assert len(free.splitlines()) == 440
    assert limited == free


def test_functions_that_no_loaded_driver_has_are_not_there(pod: Pod) -> None:
    source = "import ctypes, json; print(hasattr(ctypes.CDLL(None), 'cuInit'))"
    limited = pod.run(["python3", "-c", source], LD_LIBRARY_PATH="")
    assert limited.stdout == "False\n"
    assert limited.stderr == ""


def test_the_next_definition_after_the_caller_is_still_found(
    pod: Pod, tmp_path: Path, build: Callable[..., Path]
) -> None:
    """RTLD_NEXT goes by the caller: an interposer of malloc under the limiter must get the C library's."""
    source = tmp_path / "interposer.c"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdlib.h>\n"
        'char *getenv(const char *name) { char *(*next)(const char *) = dlsym(RTLD_NEXT, "getenv");\n'
        "  if (next == getenv || next == 0) abort(); return next(name); }\n"
    )
    interposer = tmp_path / "interposer.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", str(source), "-o", str(interposer)], check=True)
    done = pod.run(["/bin/sh", "-c", "echo $HOME"], LD_PRELOAD=f"{LIMITER} {interposer}", HOME="/here")
    assert (done.returncode, done.stdout, done.stderr) == (0, "/here\n", "")
