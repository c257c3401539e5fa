"""Our cuGetProcAddress against the real ones, answer by answer: they answer it without a GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from buildsupport.native import ROOT
from hypervisor.simulation.environment import environment
from tests.clients.debian import Unavailable, library

BRANCHES = {535: ("535.261.03", 12020), 550: ("550.163.01", 12040)}
QUERIES = ROOT / "simulator" / "cudart" / "queries"
TABLE = re.compile(r"^SIM_(?:API|API_THREAD)\((\w+), (\d+), (\w+)\)|^SIM_EXPORT\((\w+)\)", re.MULTILINE)
ROWS = [
    (match[1], int(match[2] or 0), match[3] or match[4])
    for match in TABLE.finditer((ROOT / "simulator/cuda/driver_api.def").read_text())
]
DEBUGGER = re.compile(r"cudbg\w+")  # the debugger's interface is not the driver's

pytestmark = pytest.mark.clients


def recorded() -> list[tuple[str, int, int]]:
    """What real runtimes and libraries were seen to ask."""
    asked = set()
    for path in sorted(QUERIES.glob("*.def")):
        for name, version, flags in re.findall(r'^QUERY\("(\w*)", (\d+), (\d+)\)', path.read_text(), re.MULTILINE):
            asked.add((name, int(version), int(flags)))
    return sorted(asked)


def everything() -> list[tuple[str, int, int]]:
    """Every name that we know, and some that nobody knows, at every version where an answer changes, with all flags."""
    names = {name for name, _, _ in ROWS if name}
    since = {version for _, version, _ in ROWS if version}
    versions = sorted(since | {version - 1 for version in since} | {0, -1, -(2**31), 2**31 - 1})
    known = [(name, version, flags) for name in sorted(names) for version in versions for flags in (0, 1, 2, 3)]
    others = sorted({symbol for _, _, symbol in ROWS} - names | {"", "cuNoSuchThing"})
    unknown = [(name, version, flags) for name in others for version in (0, 12000, -1) for flags in (0, 2)]
    refused = [(name, 12000, flags) for name in ("cuInit", "cuNoSuchThing") for flags in (4, 7, 8, 2**63)]
    return known + unknown + refused


def answers(path: Path, variables: dict[str, str], queries: list[tuple[str, int, int]]) -> list[Any]:
    symbols = sorted({symbol for _, _, symbol in ROWS})
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("answers.py")), str(path)],
        input=json.dumps({"symbols": symbols, "queries": queries}),
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stderr == ""
    found: list[Any] = json.loads(done.stdout)
    return found


def real_driver(branch: int) -> Path:
    try:
        return library(branch, "libcuda1", "libcuda.so.1")
    except Unavailable as missing:
        pytest.skip(f"the real driver {branch} could not be had: {missing.reason}")


@pytest.fixture(params=BRANCHES)
def branch(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def simulated(branch: int, simulate: Any) -> dict[str, str]:
    """The environment of a program on a machine with a driver of this branch."""
    version, cuda = BRANCHES[branch]
    machine = simulate(
        f'version: 1\ndriver: {{version: "{version}", cuda: {cuda}}}\ngpus: [{{count: 1, profile: a100-sxm-80gb}}]\n'
    )
    return environment(machine.path)


def ours(variables: dict[str, str]) -> Path:
    folder = variables["LD_LIBRARY_PATH"].split(":", 1)[0]
    return Path(folder) / "libcuda.so.1"


@pytest.mark.parametrize("which", ["recorded", pytest.param("everything", marks=pytest.mark.slow)])
def test_each_answer_is_the_real_one(branch: int, simulated: dict[str, str], which: str) -> None:
    real_path = real_driver(branch)
    queries = recorded() if which == "recorded" else everything()
    assert len(queries) > (450 if which == "recorded" else 100_000)
    real = answers(real_path, {}, queries)
    mine = answers(ours(simulated), simulated, queries)
    different = []
    for query, (real_new, real_bare, real_old), (my_new, my_bare, my_old) in zip(queries, real, mine, strict=True):
        same_symbol = (
            real_new[2] == my_new[2] if not isinstance(my_new[2], list) else set(my_new[2]) <= set(real_new[2] or [])
        )
        if not same_symbol or real_new[:2] != my_new[:2] or real_bare != my_bare or real_old != my_old:
            different.append((query, (real_new, real_bare, real_old), (my_new, my_bare, my_old)))
    assert different == []


def exports(path: Path) -> set[str]:
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=posix", str(path)], capture_output=True, text=True, check=True
    )
    return {line.split()[0].partition("@")[0] for line in listed.stdout.splitlines()}


def test_each_export_is_there(branch: int, simulated: dict[str, str]) -> None:
    real = {name for name in exports(real_driver(branch)) if not DEBUGGER.fullmatch(name)}
    assert exports(ours(simulated)) == real


def test_a_private_table_is_refused_as_an_unknown_one(branch: int, simulated: dict[str, str]) -> None:
    source = (
        "import ctypes, sys; cuda = ctypes.CDLL(sys.argv[1]); table = ctypes.c_void_p();"
        "print(cuda.cuGetExportTable(ctypes.byref(table), (ctypes.c_ubyte * 16)(1)), table.value)"
    )

    def told(path: Path, variables: dict[str, str]) -> str:
        command = [sys.executable, "-c", source, str(path)]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout

    assert told(ours(simulated), simulated) == told(real_driver(branch), {})
