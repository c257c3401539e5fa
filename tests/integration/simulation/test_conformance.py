"""The probes that also run on a real GPU: there is one for each simulated function, and they pass here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from buildsupport.native import ROOT
from hypervisor.simulation.environment import environment, library_folder
from tests.gpu import nvml_probes

NEWEST = """\
version: 1
driver: {{version: "615.10", cuda: 13040}}
clock: {{mode: virtual}}
gpus: [{{count: {count}, profile: {model}}}]
"""
UNSUPPORTED = set(re.findall(r"\((nvml\w+)\)", (ROOT / "simulator/nvml/unsupported.def").read_text()))
SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, VERSION_MISMATCH = 0, 2, 3, 6, 25
# What a healthy idle GPU without MIG may answer to a question that changes nothing.
PLAIN = {SUCCESS, NOT_SUPPORTED, NOT_FOUND}
# Asked in a way that is no question: a handle, an index or a structure that is none.
REFUSED = {
    "nvmlDeviceGetHandleByIndex_v2": INVALID_ARGUMENT,
    "nvmlDeviceGetHandleByUUIDV": INVALID_ARGUMENT,
    "nvmlDeviceGetFieldValues": SUCCESS,  # the call succeeds, the field in it does not
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": INVALID_ARGUMENT,
    "nvmlGpmSampleGet": INVALID_ARGUMENT,
    "nvmlGpmMigSampleGet": INVALID_ARGUMENT,
    "nvmlGpmMetricsGet": VERSION_MISMATCH,
}


def answers(machine: Path) -> dict[str, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, nvml_probes.__file__],
        env=environment(machine),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_there_is_a_probe_for_each_simulated_function() -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library_folder() / "libnvidia-ml.so.1"],
        capture_output=True,
        text=True,
        check=True,
    )
    exported = {line.split()[-1] for line in listed.stdout.splitlines()}
    names = [probe.name for probe in nvml_probes.PROBES]
    assert len(set(names)) == len(names) > 150
    assert set(names) == exported - UNSUPPORTED - nvml_probes.BY_OTHER_WAYS


@pytest.mark.parametrize("model", ["t4", "a100-sxm-80gb", "h100-sxm-80gb", "rtx4090"])
def test_probes_on_the_simulated_machine(simulate, model: str) -> None:
    simulation = simulate(NEWEST.format(count=2, model=model))
    with simulation.opened() as machine:
        machine.step(10**9)  # there are samples, and no more of them come
    found = answers(simulation.path)
    odd = {}
    for probe in nvml_probes.PROBES:
        code = found[probe.name]["code"]
        if probe.name in REFUSED:
            allowed = {REFUSED[probe.name]}
        else:
            allowed = {INVALID_ARGUMENT} if probe.arguments[0] == "n" else PLAIN
        if code not in allowed:
            odd[probe.name] = code
    assert odd == {}
    assert sum(answer["code"] == SUCCESS for answer in found.values()) >= 90
    assert nvml_probes.differences(found, answers(simulation.path)) == {}
    assert simulation.show()["gpus"][0]["mig"] == {"mode": False, "instances": []}


def test_a_difference_is_found() -> None:
    """The comparison sees another code, and another value where values count."""
    same = {probe.name: {"code": 0, "value": [1]} for probe in nvml_probes.PROBES}
    code = same | {"nvmlDeviceGetPowerUsage": {"code": 3, "value": []}}
    value = same | {"nvmlDeviceGetNumGpuCores": {"code": 0, "value": [2]}}
    moved = same | {"nvmlDeviceGetPowerUsage": {"code": 0, "value": [2]}}
    assert nvml_probes.differences(same, code) == {"nvmlDeviceGetPowerUsage": ["code 0", "code 3"]}
    assert nvml_probes.differences(same, value) == {"nvmlDeviceGetNumGpuCores": [[1], [2]]}
    assert nvml_probes.differences(same, moved) == {}
