"""VRAM limits of control groups by NVML's calls of driver 615, over real cgroups of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypervisor.simulation.environment import environment
from hypervisor.workers.placing import tree_root
from tests.simulated_load import LOAD

MIB = 2**20
DRIVER = 'version: 1\ndriver: {{version: "{}", cuda: 13000}}\ngpus: [{{count: 2, profile: h100-sxm-80gb}}]\n'
CALLS = """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
MAX = 2**64 - 1
def put(group, hard, soft=0, handle=h):
    try:
        n.nvmlDeviceSetMemoryLimits_v1(handle, n.c_nvmlSetMemoryLimits_v1_t(group.encode(), soft, hard))
        return 0
    except n.NVMLError as error:
        return error.value
def get(group, handle=h):
    told = n.c_nvmlGetMemoryLimits_v1_t(group.encode(), 1, 2, 3)
    try:
        n.nvmlDeviceGetMemoryLimits_v1(handle, told)
        return [told.softLimit, told.hardLimit, told.currentUsed]
    except n.NVMLError as error:
        return error.value
"""
SEEN = """
import ctypes as c
cuda, context, free, total = c.CDLL("libcuda.so.1"), c.c_void_p(), c.c_size_t(), c.c_size_t()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(c.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemGetInfo_v2(c.byref(free), c.byref(total))
print(free.value, total.value)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup with one below it."""
    root = tree_root()
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("there is no tree of cgroups to write to")
    path = root / f"hypervisor-limits-{os.getpid()}"
    (path / "inner").mkdir(parents=True)
    yield path
    for each in (path / "inner", path):
        if each.exists():
            each.rmdir()


def inside(group: Path, *command: str) -> list[str]:
    """A command that runs in a cgroup."""
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]


def test_what_a_whole_cgroup_holds_is_bounded(simulate, group: Path) -> None:
    machine = simulate(DRIVER.format("615.71.09"))
    hard = 2048 * MIB
    told = machine.ask(
        CALLS
        + f"""
tell([put("{group}", {hard}), get("{group}"), get("{group}/inner"), get("{group}", n.nvmlDeviceGetHandleByIndex(1)),
      put("{group}/none", 1), put("relative", 1), put("{group}", 1, 2), get("{group}/none")])
"""
    )
    nothing = [0, 2**64 - 1, 0]
    assert told == [0, [0, hard, 0], nothing, nothing, 6, 2, 2, 6]

    def grow(where: Path, name: str, *flags: str) -> int:
        grown = [str(LOAD), "--idle", "--seconds", "0", "--grow", str(64 * MIB), *flags]
        around = environment(machine.path) | {"SIM_GROUP": name}
        # Of several one may come too late for its context, and then it ends.
        done = subprocess.run(inside(where, *grown), env=around, capture_output=True, check=not flags)
        assert b"refused" in done.stdout
        found = next(each for each in machine.show()["groups"] if each["name"] == name)
        return int(found["gpus"]["0"]["peak_bytes"])

    assert hard - 64 * MIB < grow(group, "one") <= hard
    assert hard - 64 * MIB < grow(group / "inner", "below") <= hard  # the nearest limited one above counts
    # Four processes have it together.
    assert hard - 4 * 64 * MIB < grow(group, "four", "--processes", "4") <= hard
    seen = subprocess.run(
        inside(group, sys.executable, "-S", "-c", SEEN),
        env=environment(machine.path), capture_output=True, check=True,
    )  # fmt: skip
    free, total = map(int, seen.stdout.split())
    assert (total, free < total) == (hard, True)
    # A limit of its own is no part of the one above; and it goes with its cgroup.
    assert machine.ask(CALLS + f'tell(put("{group}/inner", {512 * MIB}))') == 0
    assert grow(group / "inner", "own") <= 512 * MIB
    (group / "inner").rmdir()
    (group / "inner").mkdir()
    assert machine.ask(CALLS + f'tell(get("{group}/inner"))') == nothing
    # Lifted, and a limit of the whole tree's root is nobody's.
    assert machine.ask(CALLS + f'tell([put("{group}", MAX), get("{group}")])') == [0, nothing]
    assert grow(group, "free") > 60_000 * MIB


def test_drivers_before_615_have_no_such_call(simulate, group: Path) -> None:
    for version in ("580.65.06", "610.43.02"):
        told = simulate(DRIVER.format(version)).ask(CALLS + f'tell([put("{group}", 1), get("{group}")])')
        assert told == [13, 13]


def test_a_card_alone_is_limited_and_no_mig_instance(simulate, group: Path) -> None:
    machine = simulate(DRIVER.format("615.71.09") + "mig: {gpu1: {mode: on, instances: [3g.40gb]}}\n")
    told = machine.ask(
        CALLS + f'tell(put("{group}", 1, 0, n.nvmlDeviceGetMigDeviceHandleByIndex(n.nvmlDeviceGetHandleByIndex(1), 0)))'
    )
    assert told == 3
