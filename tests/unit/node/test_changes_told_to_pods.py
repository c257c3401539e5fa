"""A card that fails is told to those who use it (k8s-device-plugin#403)."""

from __future__ import annotations

import pytest

from hypervisor.model import EventType, HealthState, NodeIdentity, NodeSnapshot, ObjectKind, Revision
from hypervisor.node.changes import changes
from hypervisor.node.derive import Ratios, derive_gpus
from tests import node_values as v


def snapshot(health: HealthState) -> NodeSnapshot:
    allocations = (v.allocation("of-pod", owner=v.pod("train")), v.allocation("other", index=1))
    inventory = v.inventory(v.device(0, health=health), v.device(1))
    gpus = derive_gpus(inventory, allocations, foreign={}, ratios=Ratios(tflops=1.0, vram=1.0), previous={}, now=1.0)
    return NodeSnapshot(
        identity=NodeIdentity(name="n", uid="u", boot_id="b"),
        revision=Revision(1, 1),
        version="0",
        system=inventory.system,
        started_at=1.0,
        conditions=(),
        gpus=gpus,
        allocations=allocations,
        usages=(),
        workers=(),
        simulated=False,
    )


@pytest.mark.parametrize("state", [HealthState.LOST, HealthState.UNHEALTHY])
def test_the_pod_of_a_card_that_fails_is_told_and_no_other(state: HealthState) -> None:
    well, ill = snapshot(HealthState.HEALTHY), snapshot(state)
    told = [each for each in changes(well, ill) if each.regarding.kind is not ObjectKind.GPU]
    assert [(each.type, each.reason, each.regarding.name) for each in told] == [
        (EventType.WARNING, "GpuUnhealthy", "train")
    ]
    assert v.uuid(0) in told[0].message
    again = [each for each in changes(ill, well) if each.regarding.kind is ObjectKind.POD]
    assert [(each.type, each.reason) for each in again] == [(EventType.NORMAL, "GpuRecovered")]


def test_a_card_that_is_only_slower_or_out_of_sight_is_not_told_to_its_pods() -> None:
    well = snapshot(HealthState.HEALTHY)
    for state in (HealthState.DEGRADED, HealthState.BLIND):
        assert [each for each in changes(well, snapshot(state)) if each.regarding.kind is ObjectKind.POD] == []
