"""What is told of divided cards when nobody has looked at them since the start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypervisor.model.gpu import Partition
from hypervisor.node.partitioning import Partitioning
from hypervisor.workers.mig.journal import Journal, Record, Stage
from tests import builders


def device(number: int) -> Any:
    partition = Partition(parent_uuid="GPU-0", gpu_instance_id=number, compute_instance_id=0, profile="1g.10gb")
    return SimpleNamespace(identity=builders.make_identity(number, partition=partition))


def test_instances_of_others_are_counted_without_a_look(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path / "mig")
    record = Record(stage=Stage.THERE, profile_id=19, profile="1g.10gb", start=0, size=1, boot_id="b", gpu_instance=3)
    journal.put("GPU-0", record)
    whole = SimpleNamespace(identity=builders.make_identity(9))
    reader: Any = SimpleNamespace(
        inventory=SimpleNamespace(devices=(device(3), device(5), device(6), whole)), mig_control=lambda: None, cards=()
    )
    partitioning = Partitioning(
        reader, state_directory=tmp_path, boot_id="b", wishes={}, allocations=lambda: (), emit=lambda *_, **__: None
    )
    statistics = partitioning.statistics()
    assert (statistics.foreign_instances, dict(statistics.instances)) == (2, {"1g.10gb": 1})
