"""One pip command builds everything, and what it builds needs nothing that the target lacks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from buildsupport.native import LIBRARIES, ROOT

# The highest glibc that the limiter may ask for: it is loaded into images that we do not know.
LIMITER_GLIBC = (2, 34)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from the files under version control alone, as in a fresh clone."""
    clone = tmp_path_factory.mktemp("clone")
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True)
    if archive.returncode != 0:
        pytest.skip("this is not a git checkout")
    packed = clone / "source.tar"
    packed.write_bytes(archive.stdout)
    with tarfile.open(packed) as tar:
        # Debian's Python 3.11.2 has the filters as no argument yet.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(clone / "source")
    out = clone / "wheels"
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(out), "."],
        cwd=clone / "source",
        capture_output=True,
        text=True,
        env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    assert built.returncode == 0, built.stderr
    (made,) = out.iterdir()
    return zipfile.ZipFile(made)


def test_wheel_serves_all_later_pythons(wheel: zipfile.ZipFile) -> None:
    assert re.search(r"gpu_hypervisor-[^-]+-cp311-abi3-linux_", str(wheel.filename))


def test_wheel_holds_the_libraries_and_the_generated_code(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for library in LIBRARIES:
        if library.present():
            assert f"hypervisor/native/{library.output}" in names
    for module in ("types", "node", "report", "cluster"):
        assert f"hypervisor/v1/{module}_pb2.py" in names
    assert any(re.match(r"hypervisor/limits/_abi\..*\.so", name) for name in names)


def test_limiter_needs_libc_only(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    if "hypervisor/native/libcuda_limiter.so" not in wheel.namelist():
        pytest.skip("the limiter is not in this tree")
    library = wheel.extract("hypervisor/native/libcuda_limiter.so", tmp_path)
    dynamic = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\]", dynamic))
    assert needed <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    command = ["readelf", "--dyn-syms", "-W", library]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"@GLIBC_(\d+\.\d+)", symbols)}
    assert max(versions) <= LIMITER_GLIBC
