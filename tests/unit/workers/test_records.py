"""Records of workers that are damaged: told, and nothing of them is believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hypervisor.model import Probe, Refusal, WorkerSpec
from hypervisor.workers.records import WorkerRecord, load_all, save
from hypervisor.workers.supervisor import check

SPEC = WorkerSpec(worker_id="one", command=("/bin/true",), readiness=Probe(file="/sign"))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    (tmp_path / "one").mkdir()
    save(tmp_path / "one", WorkerRecord(spec=SPEC, run=3))
    return tmp_path


def test_what_was_saved_is_read(kept: Path) -> None:
    assert load_all(kept) == ({kept / "one": WorkerRecord(spec=SPEC, run=3)}, {})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("run",), -1),
        (("run",), 10**30),
        (("failures",), -(2**60)),
        (("spec", "grace_seconds"), -1.0),
        (("spec", "grace_seconds"), 1e308),
        (("spec", "readiness", "period_seconds"), 0),
        (("spec", "readiness", "initial_delay_seconds"), -5),
        (("spec", "readiness", "timeout_seconds"), 1e300),
        (("spec", "readiness", "failure_threshold"), 0),
        (("spec", "readiness", "command"), ["/bin/true"]),
    ],
)
def test_a_number_that_nobody_can_have_written_is_damage(kept: Path, path: tuple[str, ...], value: Any) -> None:
    file = kept / "one/worker.json"
    found = msgspec.json.decode(file.read_bytes())
    part = found
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    file.write_bytes(msgspec.json.encode(found))
    records, damaged = load_all(kept)
    assert (records, list(damaged)) == ({}, [kept / "one"])


@pytest.mark.parametrize(
    "probe",
    [
        Probe(command=("/bin/true", "a\0")),
        Probe(file="/a\0b"),
        Probe(file="x" * 600_000),
        Probe(file="\u20ac" * 200_000),
    ],
)
def test_a_probe_that_can_not_be_is_refused(probe: Probe) -> None:
    for parts in ({"readiness": probe}, {"liveness": probe}):
        with pytest.raises(Refusal, match="its probes"):
            check(WorkerSpec(worker_id="one", command=("/bin/true",), **parts))
