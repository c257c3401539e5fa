"""The C sources for arm64: compiled with the same warnings, and run in an emulator where there is one.

`make test-arm64`. Debian's gcc-aarch64-linux-gnu compiles, its qemu-user runs; without them the tests are skipped. What
an emulator on x86-64 cannot show is the weaker memory order of a real arm64 machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from buildsupport.native import BASE_FLAGS, LIBRARIES, OBJECTS, RELEASE_FLAGS, ROOT, WARNINGS, build_library
from buildsupport.objects import objects
from tests.integration.limiter.conftest import GIB, LIMITER, TESTS, Pod
from tests.integration.limiter.test_portability import OLDEST_GLIBC, required_versions
from tests.native.test_native import TESTS as NATIVE_TESTS
from tests.native.test_native import NativeTest

COMPILER = "aarch64-linux-gnu-gcc"
SYSTEM = Path("/usr/aarch64-linux-gnu")  # of the compiler's package: an arm64 C library
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")
UUID = "GPU-00000000-0000-0000-0000-000000000001"  # of limiter/tests/fake_driver.c
SECONDS = 300  # emulated
# They walk through interleavings of numbered steps on one thread: nothing in them is the processor's.
MACHINES = ("test_contexts_machine", "test_flip_machine", "test_ledger_machine", "test_slots_machine")
# The emulator makes up its process's /proc/self/stat, so that who looks at it from outside sees another start and takes
# it for dead; and it says that it wipes pages in the child of a fork (MADV_WIPEONFORK), and does not.
NOT_EMULATED = ("test_crashes", "test_pointer_map")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compiler() -> list[str]:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is not installed (Debian: gcc-aarch64-linux-gnu)")
    return [COMPILER]


@pytest.fixture(scope="module")
def emulator(compiler: list[str]) -> list[str]:
    found = next((path for name in EMULATORS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"{EMULATORS[0]} is not installed (Debian: qemu-user)")
    return [found, "-L", str(SYSTEM)]


@pytest.fixture(scope="module")
def native(compiler: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that the build makes, for arm64; what is for 32-bit x86 programs is not made there."""
    folder = tmp_path_factory.mktemp("arm64-native")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", *compiler)
        made = [build_library(library, folder) for library in LIBRARIES if "-m32" not in library.flags]
    assert None not in made
    return folder


def test_everything_is_compiled_for_arm64(native: Path) -> None:
    for library in LIBRARIES:
        if "-m32" not in library.flags:
            told = subprocess.run(
                ["readelf", "-h", str(native / library.output)], capture_output=True, text=True, check=True
            )
            assert "AArch64" in told.stdout, library.output


@pytest.mark.parametrize("folder", ["limiter/daemon", "simulator/core"])
def test_what_the_daemon_is_linked_with_is_compiled_for_arm64(compiler: list[str], folder: str) -> None:
    include = [ROOT / part for part in ("limiter/include", "limiter/daemon", "simulator/include", "simulator/core")]
    sources = sorted((ROOT / folder).glob("*.c"))
    assert objects(compiler, [*BASE_FLAGS, *RELEASE_FLAGS], include, sources, OBJECTS)


def test_the_arm64_build_asks_for_no_newer_glibc(native: Path) -> None:
    assert max(required_versions(native / LIMITER.name)) <= OLDEST_GLIBC


def test_the_arm64_library_exports_the_same_functions(native: Path) -> None:
    def exports(path: Path) -> list[str]:
        command = ["nm", "--dynamic", "--defined-only", "--format=just-symbols", str(path)]
        return sorted(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    assert exports(native / LIMITER.name) == exports(LIMITER)


# ---- in the emulator ----


@pytest.fixture(scope="module")
def programs(compiler: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arm64-programs")

    def build(output: str, source: Path, *flags: str) -> None:
        includes = [f"-I{ROOT / part}" for part in ("limiter/include", "limiter/src", "limiter/tests")]
        command = [*compiler, *BASE_FLAGS, *RELEASE_FLAGS, *includes, str(source), "-o", str(folder / output), *flags]
        subprocess.run(command, check=True)

    def text(name: str, *lines: str) -> Path:
        source = folder / name
        source.write_text("\n".join([*lines, ""]))
        return source

    build("libcuda.so.1", TESTS / "fake_driver.c", "-shared", "-Wl,-soname,libcuda.so.1", "-fvisibility=default")
    build("roads", TESTS / "roads.c", "-ldl")
    interposer = text(
        "interposer.c",
        "#define _GNU_SOURCE",
        "#include <dlfcn.h>",
        "#include <stdlib.h>",
        "char *getenv(const char *name) {",
        '  char *(*next)(const char *) = (char *(*)(const char *))dlsym(RTLD_NEXT, "getenv");',
        "  if (next == getenv || next == 0) abort();",
        "  return next(name); }",
    )
    build("interposer.so", interposer, "-shared", "-fvisibility=default")
    asks = text(
        "asks.c", "#include <stdio.h>", "#include <stdlib.h>", 'int main(void) { return puts(getenv("PLACE")) < 0; }'
    )
    build("asks", asks)
    return folder


def run(command: list[str], folder: Path, *preload: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program with libraries before it; the emulator itself gets none of them."""
    emulator, program = command[:3], command[3:]
    inside = [f"LD_LIBRARY_PATH={folder}"]
    if preload:
        inside.append(f"LD_PRELOAD={':'.join(map(str, preload))}")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "SIM_", "LD_"))}
    return subprocess.run(
        [*emulator, *(word for one in inside for word in ("-E", one)), *program],
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=folder,
    )


@pytest.mark.parametrize("road", ["dlsym", "default", "next", "deepbind"])
def test_arm64_programs_are_limited(pod: Pod, native: Path, programs: Path, emulator: list[str], road: str) -> None:
    """The entry code of dlsym, and the layout of the files, which this machine's own tool makes."""
    pod.files.run("make", UUID, GIB, 1_000_000)
    command = [*emulator, str(programs / "roads"), road]
    limited = run(command, programs, native / LIMITER.name, TF_SHM_PATH=str(pod.files.directory))
    assert (limited.stdout, limited.stderr) == ("2\n", "")
    free = run(command, programs, TF_SHM_PATH=str(pod.files.directory))
    assert (free.stdout, free.stderr) == ("0\n", "")


def test_the_next_definition_after_the_caller_is_still_found(native: Path, programs: Path, emulator: list[str]) -> None:
    """dlsym is a jump there too: an interposer under the limiter gets the C library's function and not its own."""
    command = [*emulator, str(programs / "asks")]
    done = run(command, programs, native / LIMITER.name, programs / "interposer.so", PLACE="here")
    assert (done.returncode, done.stdout, done.stderr) == (0, "here\n", "")


@pytest.mark.parametrize(
    "test",
    [
        test
        for test in NATIVE_TESTS
        if "limiter" in test.path.parts and test.path.stem not in (*MACHINES, *NOT_EMULATED)
    ],
    ids=lambda test: test.path.stem,
)
def test_native(test: NativeTest, compiler: list[str], emulator: list[str], tmp_path: Path) -> None:
    """The C tests of the limiter's parts, in real processes and threads of the emulator."""
    program = tmp_path / test.path.stem
    sources = [test.path, *(found for pattern in test.sources for found in sorted(ROOT.glob(pattern)))]
    flags = ["-std=c11", "-g1", "-O2", "-pthread", *WARNINGS, *test.flags]
    made = objects(compiler, flags, [ROOT / folder for folder in test.include], sources, OBJECTS)
    subprocess.run([*compiler, *flags, *map(str, made), "-o", str(program), "-ldl", "-lm"], check=True)
    done = run([*emulator, str(program), *test.arguments], tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
