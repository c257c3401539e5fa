"""Where the library runs: C libraries from glibc 2.17 on. Of arm64: test_arm64.py."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.integration.limiter.conftest import LIMITER

OLDEST_GLIBC = (2, 17)


def required_versions(library: Path) -> set[tuple[int, ...]]:
    listed = subprocess.run(["readelf", "-V", "-W", str(library)], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Name: GLIBC_([\d.]+)", listed)
    assert found
    return {tuple(map(int, version.split("."))) for version in found}


def test_no_symbol_is_newer_than_the_oldest_glibc_we_run_on() -> None:
    """nvshare 26: an old glibc."""
    assert max(required_versions(LIMITER)) <= OLDEST_GLIBC


def test_a_library_of_a_newer_glibc_would_be_noticed(tmp_path: Path) -> None:
    """The control: a program of this machine asks for more."""
    source = tmp_path / "newer.c"
    source.write_text("#include <dlfcn.h>\nint main(void) { return dlopen(0, RTLD_NOW) == 0; }\n")
    program = tmp_path / "newer"
    subprocess.run(["gcc", str(source), "-o", str(program)], check=True)
    assert max(required_versions(program)) > OLDEST_GLIBC
