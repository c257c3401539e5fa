"""The probes of the driver's interface on a real one. The same program runs on the simulated driver in
tests/integration/simulation/test_driver_probes.py, where every answer must be the expected one.

The report goes to .cache/conformance/. Differences that are known and meant stand in tests/gpu/recorded/cuda.json, as
the report writes them; any other fails the test.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.simulation import cuda_probes

pytestmark = pytest.mark.gpu

HERE = Path(__file__).resolve().parent
REPORT = HERE.parents[1] / ".cache" / "conformance" / "cuda.json"
RECORDED = HERE / "recorded" / "cuda.json"


def test_the_real_driver_answers_as_the_simulated_one(tmp_path: Path) -> None:
    answers = cuda_probes.run(cuda_probes.build(tmp_path), None)
    if isinstance(answers, str):
        pytest.skip(f"no real driver to compare with: {answers}")
    found = {answer.name: [answer.expected, answer.code] for answer in answers if answer.code != answer.expected}
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    known = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    new = {name: both for name, both in found.items() if known.get(name) != both}
    assert new == {}, f"simulated and real differ; the whole report is {REPORT}"
