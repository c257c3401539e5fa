"""Our declarations of the driver's ABI against a real cuda.h, where one is installed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from buildsupport.native import ROOT, compiler

HEADERS = sorted(Path("/usr/local").glob("cuda*/include/cuda.h"))
real_header = pytest.mark.skipif(
    not HEADERS, reason="no cuda.h below /usr/local; tests/clients/test_real_header.py fetches one"
)


def printed(tmp_path: Path, name: str, *lines: str, folder: Path) -> list[str]:
    source = tmp_path / f"{name}.c"
    source.write_text("\n".join([*lines, '#include "abi_probe.h"', ""]))
    program = tmp_path / name
    includes = (f"-I{folder}", f"-I{ROOT / 'limiter' / 'tests'}")
    subprocess.run([*compiler(), *includes, str(source), "-o", str(program)], check=True)
    return subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()


def check_structs_and_numbers(tmp_path: Path, real: Path) -> None:
    """Against a real cuda.h in the folder `real`."""
    ours = printed(tmp_path, "ours", '#include "cuda_abi.h"', folder=ROOT / "limiter" / "src")
    # With this name defined the header also declares the types of its past.
    past = "#define __CUDA_API_VERSION_INTERNAL"
    theirs = printed(tmp_path, "theirs", past, "#include <cuda.h>", folder=real)
    assert ours == theirs


@real_header
def test_structs_and_numbers_are_those_of_the_real_header(tmp_path: Path) -> None:
    check_structs_and_numbers(tmp_path, HEADERS[0].parent)


def parameters(text: str) -> int:
    inside = text.strip()
    return 0 if inside in ("", "void") else len(inside.split(","))


def declared_functions(tmp_path: Path, real: Path) -> dict[str, str]:
    """The parameters of each function that a real cuda.h declares, the earlier and per-thread ones too."""
    source = tmp_path / "declared.c"
    source.write_text("#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n")
    command = [*compiler(), "-E", "-P", f"-I{real}", str(source)]
    declared = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"CUresult\s+(cu\w+)\s*\(([^()]*)\)\s*;", declared))


def check_parameters(tmp_path: Path, real_folder: Path) -> None:
    wrapped = ""
    for path in sorted((ROOT / "limiter" / "src").glob("*.c")):
        command = [*compiler(), "-E", "-P", f"-I{ROOT / 'limiter/include'}", str(path)]
        wrapped += subprocess.run(command, capture_output=True, text=True, check=True).stdout
    real = declared_functions(tmp_path, real_folder)
    ours = dict(re.findall(r"int\s+hv_(cu\w+)\s*\(([^()]*)\)\s*;", wrapped))
    table = (ROOT / "limiter" / "src" / "hooks.def").read_text()
    names = re.findall(r"^HV_HOOK\(CUDA, (\w+)\)$", table, re.MULTILINE)
    public = [name for name in names if name in real]  # a few were never in any public header of this version
    assert len(public) > 60
    for name in public:
        assert parameters(ours[name]) == parameters(real[name]), name


@real_header
def test_wrappers_take_as_many_parameters_as_the_real_functions(tmp_path: Path) -> None:
    check_parameters(tmp_path, HEADERS[0].parent)
