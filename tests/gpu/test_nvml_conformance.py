"""The probes of NVML on the real driver, compared with the simulated machine of the same model.

The report goes to .cache/conformance/. Differences that are known and meant stand in tests/gpu/recorded/, one file a
model, as the report writes them; any other fails the test.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hypervisor.simulation import machine as machines
from hypervisor.simulation.description import parse_machine
from hypervisor.simulation.environment import environment
from hypervisor.simulation.models import load_model, model_names
from tests.gpu import nvml_probes

pytestmark = pytest.mark.gpu

HERE = Path(__file__).resolve().parent
REPORTS = HERE.parents[1] / ".cache" / "conformance"
SECONDS = 120


def answers(variables: dict[str, str] | None) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, nvml_probes.__file__],
        env=variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-1000:]
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def real() -> dict[str, dict[str, Any]]:
    try:
        code = ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2()
    except OSError as error:
        pytest.skip(f"no real driver to compare with: {error}")
    if code != 0:
        pytest.skip(f"no real driver to compare with: nvmlInit says {code}")
    return answers(None)


def text_of(answer: dict[str, Any]) -> str:
    return bytes.fromhex(answer["value"][0]).split(b"\0")[0].decode()


def test_the_simulated_machine_answers_as_the_real_one(real: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    name, driver = text_of(real["nvmlDeviceGetName"]), text_of(real["nvmlSystemGetDriverVersion"])
    model = next((each for each in model_names() if load_model(each).gpu.name == name), None)
    if model is None:
        pytest.skip(f"there is no simulated {name}; there are {', '.join(model_names())}")
    cuda, count = (real[each]["value"][0] for each in ("nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetCount_v2"))
    yaml = (
        f'version: 1\ndriver: {{version: "{driver}", cuda: {cuda}}}\nclock: {{mode: virtual}}\n'
        f"gpus: [{{count: {count}, profile: {model}}}]\n"
    )
    path = tmp_path / "machine"
    machines.create(path, parse_machine(yaml, "the same machine", profile=model))
    with machines.opened(path) as machine:
        machine.step(10**9)  # there are samples
    found = nvml_probes.differences(answers(environment(path)), real)
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"nvml-{model}.json"
    report.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    recorded = HERE / "recorded" / report.name
    known = json.loads(recorded.read_text()) if recorded.exists() else {}
    new = {probe: both for probe, both in found.items() if known.get(probe) != both}
    assert new == {}, f"simulated and real differ; the whole report is {report}"
