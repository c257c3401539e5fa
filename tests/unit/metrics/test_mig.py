"""MIG instances among the metrics: each by its own UUID, with its card and whether it is granted."""

from __future__ import annotations

from dataclasses import replace

from hypervisor.metrics.mig import collect
from hypervisor.metrics.view import MetricsView
from hypervisor.model import Partition
from tests import builders


def test_each_instance_is_told_with_its_card() -> None:
    card, held, free = (builders.make_gpu(index) for index in range(3))
    parts = Partition(parent_uuid=card.identity.uuid, gpu_instance_id=3, compute_instance_id=0, profile="1g.10gb")
    held = replace(held, identity=replace(held.identity, uuid="MIG-held", partition=parts))
    free = replace(free, identity=replace(free.identity, uuid="MIG-free", partition=replace(parts, gpu_instance_id=4)))
    allocation = builders.make_allocation("a", grants=(builders.make_grant(0, gpu_uuid="MIG-held"),))
    snapshot = builders.make_snapshot(gpus=(card, held, free), allocations=(allocation,))
    view = MetricsView(snapshot=snapshot, wall_time=0.0, monotonic_time=0.0, statistics={}, refusals={})
    (family,) = collect(view)
    assert family.name == "gpuhv_mig_instance_allocated"
    told = {sample.labels["uuid"]: sample for sample in family.samples}
    assert {uuid: sample.value for uuid, sample in told.items()} == {"MIG-held": 1.0, "MIG-free": 0.0}
    assert told["MIG-free"].labels["parent_uuid"] == card.identity.uuid
    assert told["MIG-free"].labels["gpu_instance"] == "4"
