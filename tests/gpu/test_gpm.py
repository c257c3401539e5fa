"""GPM on a real GPU of Hopper or newer: is its graphics utilisation the share of GPU time that a lone load had?

The share is what the driver's samples of the process say, on which limits rest elsewhere; where it has none, what the
load's own rounds say, as in test_compute_limits.py. Both, and what a look at GPM costs, go into the same report.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hypervisor.gpu import survey, wire
from hypervisor.gpu.nvml import Nvml
from hypervisor.gpu.nvml_gpm import GpmWatch
from hypervisor.gpu.wire import GpmReading, GpmTarget, Sample
from hypervisor.limits import Access, LimitDirectory
from tests.gpu import compute_loads
from tests.gpu.test_compute_limits import POINTS, SECONDS, alone, card, noted
from tests.pacing.cell import Load
from tests.pacing.run import SHIPPED, limits_of

pytestmark = pytest.mark.gpu

WARM_SECONDS = 2.0  # until costs are learned
LOOK_SECONDS = 1 / 6


class Looks:
    """The windows of the first GPU, read as the daemon's reader does, and the samples of its processes beside them."""

    def __init__(self) -> None:
        self._nvml = Nvml.open(os.environ)
        handle = self._nvml.take_handle(index=0, bus_id=None)
        assert handle.value is not None, handle
        self._card, _ = survey.attach(self._nvml, handle.value, wire.Attach(index=0))
        self._watch = GpmWatch()
        self.costs: list[float] = []

    def take(self) -> tuple[list[GpmReading], list[Sample]]:
        samples = survey.samples(self._nvml, self._card).samples.value or []
        begun = time.perf_counter()
        told = self._watch.take(self._nvml, self._card, [GpmTarget(None, (self._card.uuid,))]).readings
        self.costs.append(time.perf_counter() - begun)
        return told, samples


@pytest.mark.parametrize("load", compute_loads.LOADS)
@pytest.mark.parametrize("percent", [25, 75])
def test_gpm_says_what_share_a_lone_load_had(load: str, percent: float, tmp_path: Path) -> None:
    found = card()
    if isinstance(found, str):
        pytest.skip(found)
    name, uuid = found
    looks, free = Looks(), alone(load)
    looks.take()
    time.sleep(LOOK_SECONDS)
    for reading in looks.take()[0]:
        if reading.busy_percent.value is None:
            pytest.skip(f"no GPM: {name} answers {reading.busy_percent.code}")
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
    windows: list[float] = []
    samples: list[float] = []
    with subprocess.Popen(
        [sys.executable, compute_loads.__file__, load, str(SECONDS)],
        env={**os.environ, "LD_PRELOAD": str(SHIPPED), "TF_SHM_PATH": str(files.directory)},
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        began: float | None = None
        while running.poll() is None:
            time.sleep(LOOK_SECONDS)
            told, sampled = looks.take()
            alone_there = [each for each in told if each.pids == [running.pid]]
            if alone_there and began is None:
                began = time.monotonic()
            if began is not None and WARM_SECONDS < time.monotonic() - began < SECONDS - 1:
                windows += [each.busy_percent.value for each in alone_there if each.busy_percent.value is not None]
                samples += [each.busy_percent for each in sampled if each.pid == running.pid]
        assert running.stdout is not None
        limited = json.loads(running.stdout.read())
    files.close()
    share = 100 * limited["rounds_per_second"] * free["gpu_seconds"]
    assert len(windows) > (SECONDS - WARM_SECONDS - 1) / LOOK_SECONDS / 2, "the load was alone and was seen"
    mean = statistics.mean(windows)
    noted(
        f"GPM of {load} at {percent} %",
        {
            "card": name,
            "percent": share,
            "gpm": mean,
            "samples": statistics.mean(samples) if samples else None,
            "look_seconds": statistics.median(looks.costs),
            "longest_look_seconds": max(looks.costs),
        },
    )
    # Samples are whole percents, of windows that begin and end at other times than those of GPM.
    assert abs(mean - (statistics.mean(samples) if samples else share)) <= 2 * POINTS
