"""Where the library runs: C libraries from glibc 2.17 on, x86-64 and arm64."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from buildsupport.native import BASE_FLAGS, RELEASE_FLAGS, ROOT
from tests.integration.limiter.conftest import GIB, LIMITER, SECONDS, TESTS, Pod

OLDEST_GLIBC = (2, 17)
ARM_COMPILER, ARM_ROOT = "aarch64-linux-gnu-gcc", Path("/usr/aarch64-linux-gnu")
UUID = "GPU-00000000-0000-0000-0000-000000000001"  # of limiter/tests/fake_driver.c


def required_versions(library: Path) -> set[tuple[int, ...]]:
    listed = subprocess.run(["readelf", "-V", "-W", str(library)], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Name: GLIBC_([\d.]+)", listed)
    assert found
    return {tuple(map(int, version.split("."))) for version in found}


def test_no_symbol_is_newer_than_the_oldest_glibc_we_run_on() -> None:
    """nvshare 26: an old glibc."""
    assert max(required_versions(LIMITER)) <= OLDEST_GLIBC


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, a driver and a program for arm64."""
    if shutil.which(ARM_COMPILER) is None:
        pytest.skip(f"{ARM_COMPILER} is not installed")
    folder = tmp_path_factory.mktemp("arm64")
    includes = [f"-I{ROOT / part}" for part in ("limiter/include", "limiter/src", "limiter/tests")]

    def build(output: str, sources: list[Path], *flags: str) -> None:
        command = [ARM_COMPILER, *BASE_FLAGS, *RELEASE_FLAGS, *includes, *map(str, sources)]
        subprocess.run([*command, "-o", str(folder / output), *flags], check=True)

    script = f"-Wl,--version-script={ROOT / 'limiter/limiter.map'}"
    build(LIMITER.name, sorted((ROOT / "limiter/src").glob("*.c")), "-shared", script, "-Wl,-z,defs")
    build("libcuda.so.1", [TESTS / "fake_driver.c"], "-shared", "-Wl,-soname,libcuda.so.1", "-fvisibility=default")
    build("roads", [TESTS / "roads.c"], "-ldl")
    return folder


def test_the_arm64_build_asks_for_no_newer_glibc(arm: Path) -> None:
    assert max(required_versions(arm / LIMITER.name)) <= OLDEST_GLIBC


@pytest.mark.parametrize("road", ["dlsym", "default", "next"])
def test_arm64_programs_are_limited(pod: Pod, arm: Path, road: str) -> None:
    """In an emulator: the entry code of dlsym, the memory order of the ledger's words, and the layout of the files."""
    emulator = shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("qemu-aarch64 is not installed")
    pod.files.run("make", UUID, GIB, 1_000_000)

    def run(*preload: str) -> str:
        command = [emulator, "-L", str(ARM_ROOT), "-E", f"LD_LIBRARY_PATH={arm}", *preload, str(arm / "roads"), road]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "SIM_", "LD_"))}
        variables = clean | {"TF_SHM_PATH": str(pod.files.directory)}
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=arm
        )
        assert done.stderr == ""
        return done.stdout

    assert run("-E", f"LD_PRELOAD={arm / LIMITER.name}") == "2\n"
    assert run() == "0\n"


def test_a_library_of_a_newer_glibc_would_be_noticed(tmp_path: Path) -> None:
    """The control: a program of this machine asks for more."""
    source = tmp_path / "newer.c"
    source.write_text("#include <dlfcn.h>\nint main(void) { return dlopen(0, RTLD_NOW) == 0; }\n")
    program = tmp_path / "newer"
    subprocess.run(["gcc", str(source), "-o", str(program)], check=True)
    assert max(required_versions(program)) > OLDEST_GLIBC
