"""The limiter before NVIDIA's own libcuda: each of its exports is classified, and no lookup is answered differently.

These libraries answer lookups without a GPU. They are downloaded by the test and never committed.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from buildsupport.native import ROOT
from tests.clients.conftest import needed
from tests.clients.debian import library

BRANCHES = (535, 550, pytest.param(555, marks=pytest.mark.slow))
LIMITER = ROOT / "hypervisor" / "native" / "libcuda_limiter.so"
QUERIES = ROOT / "simulator" / "cudart" / "queries"
HOOKS = set(re.findall(r"^HV_HOOK\(CUDA, (\w+)\)", (ROOT / "limiter/src/hooks.def").read_text(), re.MULTILINE))
REASONS = {
    "query", "address", "copy", "stream", "graph", "imported", "overhead", "graphics", "debugger"
}  # fmt: skip
SECONDS = 120

pytestmark = pytest.mark.clients


def table() -> dict[str, tuple[str, str]]:
    lines = (ROOT / "limiter" / "driver_exports.csv").read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert len({row["symbol"] for row in rows}) == len(rows)
    return {row["symbol"]: (row["treatment"], row["reason"]) for row in rows}


def exports(path: Path) -> set[str]:
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=posix", str(path)], capture_output=True, text=True, check=True
    ).stdout
    return {line.split()[0].partition("@")[0] for line in listed.splitlines() if line.split()[1] == "T"}


def test_the_table_says_the_same_as_the_hooks() -> None:
    rows = table()
    assert {symbol for symbol, (treatment, _) in rows.items() if treatment == "hook"} == HOOKS
    passed = {reason for treatment, reason in rows.values() if treatment == "pass"}
    assert passed == REASONS
    assert {treatment for treatment, _ in rows.values()} <= {"hook", "pass", "refuse"}


@pytest.mark.parametrize("branch", BRANCHES)
def test_each_export_of_the_driver_is_classified(branch: int) -> None:
    real = needed(library, branch, "libcuda1", "libcuda.so.1")
    found = exports(real)
    assert len(found) > 550
    assert found - table().keys() == set()
    # What the driver has under a hook's name it hands out as that hook, in every version and per-thread twin.
    families = {re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", hook) for hook in HOOKS}
    twins = {name for name in found if re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", name) in families}
    assert twins - HOOKS == set()


def recorded() -> list[tuple[str, int, int]]:
    asked = set()
    for path in sorted(QUERIES.glob("*.csv")):
        with path.open() as file:
            asked |= {(row["name"], int(row["version"]), int(row["flags"])) for row in csv.DictReader(file)}
    return sorted(asked)


def answers(real: Path, queries: list[tuple[str, int, int]], variables: dict[str, str]) -> Any:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("answers.py")), str(real)],
        input=json.dumps({"symbols": sorted(exports(real)), "queries": queries}),
        env={"PATH": "/usr/bin:/bin"} | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.parametrize("branch", [pytest.param(branch, marks=pytest.mark.slow) for branch in (535, 555)] + [550])
def test_no_lookup_is_answered_differently(branch: int, tmp_path: Path) -> None:
    """Recorded queries of real runtimes, and each export's name at the versions where answers change."""
    real = needed(library, branch, "libcuda1", "libcuda.so.1")
    names = sorted({re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", name) for name in exports(real)})
    versions = (2000, 3020, 7000, 10000, 11000, 11040, 11060, 12000, 12030, 13000)
    queries = recorded() + [(name, version, flags) for name in names for version in versions for flags in (0, 2)]
    free = answers(real, queries, {})
    limited = answers(real, queries, {"LD_PRELOAD": str(LIMITER), "TF_SHM_PATH": str(tmp_path)})
    different = [entry for entry in zip(queries, free, limited, strict=True) if entry[1] != entry[2]]
    assert different == []
    # The control: under the limiter these names are indeed its own functions.
    assert any(isinstance(answer[0][2], list) and answer[0][2] == ["cuMemAlloc_v2"] for answer in limited)


@pytest.mark.parametrize("branch", BRANCHES)
def test_each_hook_is_what_a_lookup_hands_out(branch: int, tmp_path: Path) -> None:
    real = needed(library, branch, "libcuda1", "libcuda.so.1")
    source = """
import ctypes, sys
from pathlib import Path
driver = ctypes.CDLL(sys.argv[1])
base, end = None, None
for line in Path("/proc/self/maps").read_text().splitlines():
    if line.endswith("/libcuda_limiter.so"):
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        base, end = base or low, high
for name in sys.stdin.read().split():
    if hasattr(driver, name):
        address = ctypes.cast(getattr(driver, name), ctypes.c_void_p).value
        print(name, base <= address < end)
"""
    done = subprocess.run(
        [sys.executable, "-c", source, str(real)],
        input="\n".join(sorted(exports(real))),
        env={"PATH": "/usr/bin:/bin", "LD_PRELOAD": str(LIMITER), "TF_SHM_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    ours = {line.split()[0] for line in done.stdout.splitlines() if line.endswith("True")}
    assert ours == HOOKS & exports(real)
