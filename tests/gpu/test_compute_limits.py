"""Compute limits on a real GPU, without the daemon: what comes through of a load, against what it does alone.

The share is rounds a second times the GPU time of a round, which the device's own clock told in a run without the
limiter. The figures go to .cache/gpu/compute.json with the card's name, for docs/performance.md.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from buildsupport.native import ROOT
from hypervisor.limits import Access, LimitDirectory
from tests.gpu import compute_loads
from tests.pacing.cell import Load
from tests.pacing.run import SHIPPED, limits_of

pytestmark = pytest.mark.gpu

REPORT = ROOT / ".cache" / "gpu" / "compute.json"
SECONDS = 10.0
POINTS = 1.0
LIMITS = (10, 25, 50, 75, 90)


@functools.cache
def card() -> tuple[str, str] | str:
    """Name and UUID of the first GPU, or why there is none."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return "there is no libnvidia-ml.so.1"
    handle, name, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) != 0:
        return "the driver has no GPU"
    nvml.nvmlDeviceGetName(handle, name, 96)
    nvml.nvmlDeviceGetUUID(handle, uuid, 96)
    return name.value.decode(), uuid.value.decode()


def ran(load: str, *options: str, environment: dict[str, str] | None = None) -> dict[str, float]:
    command = [sys.executable, compute_loads.__file__, load, str(SECONDS), *options]
    done = subprocess.run(
        command, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, float] = json.loads(done.stdout)
    return told


@functools.cache
def alone(load: str) -> dict[str, float]:
    """Without the limiter: GPU seconds of a round, and rounds a second."""
    return ran(load, "--measure")


def noted(name: str, figures: dict[str, Any]) -> None:
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    REPORT.write_text(json.dumps({**known, name: figures}, indent=1, sort_keys=True) + "\n")


@pytest.mark.parametrize("load", compute_loads.LOADS)
@pytest.mark.parametrize("percent", LIMITS)
def test_a_load_gets_its_share(load: str, percent: float, tmp_path: Path) -> None:
    found = card()
    if isinstance(found, str):
        pytest.skip(found)
    name, uuid = found
    directory = LimitDirectory(tmp_path, boot_id="real", node_epoch=1)
    directory.prepare()
    files = directory.create(
        "job",
        "job",
        limits_of(Load(percent=percent), [uuid]),
        access=Access(owner_uid=os.getuid()),
        context_bytes=(0,),
    )
    files.shm.arm()
    limited = ran(load, environment={"LD_PRELOAD": str(SHIPPED), "TF_SHM_PATH": str(files.directory)})
    files.close()
    free = alone(load)
    share = 100 * limited["rounds_per_second"] * free["gpu_seconds"]
    reachable = min(percent, 100 * free["rounds_per_second"] * free["gpu_seconds"])
    noted(f"{load} at {percent} %", {"card": name, "percent": share, "reachable": reachable})
    assert abs(share - reachable) <= POINTS
