"""From a process on a GPU to the Pod that it is of, over a /proc as each runtime writes it, to what is then granted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from hypervisor.allocations.admission import Rules, admit
from hypervisor.config import Settings
from hypervisor.kube.checkpoint import Assignment
from hypervisor.kube.pod import Pod
from hypervisor.model import (
    AllocationSpec,
    DeviceRequest,
    HealthCode,
    Inventory,
    Owner,
    OwnerKind,
    ProcessOnGpu,
    Refusal,
    RefusalReason,
    Resources,
)
from hypervisor.node.kubernetes_events import PodEvents
from hypervisor.node.kubernetes_host import Host
from hypervisor.node.kubernetes_use import CardUse
from tests import node_values as v

UID = "6f0c2a2e-1b1f-4d6c-9a55-3d1d6a3a2f10"
ESCAPED = UID.replace("-", "_")
CONTAINER = "ab" * 32
POD = Pod(uid=UID, namespace="ns", name="app", node="n")
RULES = Rules(tflops_ratio=1.0, vram_ratio=1.0, context_bytes=lambda _: 0)
DIALECTS = {
    "v2, systemd, containerd": f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice/"
    f"cri-containerd-{CONTAINER}.scope",
    "v2, systemd, CRI-O": f"0::/kubepods.slice/kubepods-pod{ESCAPED}.slice/crio-{CONTAINER}.scope/container",
    "v2, systemd, Docker": f"0::/kubepods.slice/kubepods-pod{ESCAPED}.slice/docker-{CONTAINER}.scope",
    "v1, cgroupfs": f"11:memory:/kubepods/burstable/pod{UID}/{CONTAINER}\n1:name=systemd:/kubepods/burstable/pod{UID}"
    f"/{CONTAINER}",
    "hybrid": f"9:devices:/kubepods/pod{UID}/{CONTAINER}\n0::/",
    "nested": f"0::/docker/{'cd' * 32}/kubelet/kubepods/burstable/pod{UID}/{CONTAINER}",
}


@dataclass
class Pods:
    """The Pods of this node."""

    pods: Mapping[str, Pod] = field(default_factory=lambda: {UID: POD})
    complete: bool = True
    failing: str = ""


class Machine:
    """A card with one process, a /proc, and who judges it."""

    def __init__(self, directory: Path, *cgroups: str, kernel_threads: bool = True) -> None:
        self.proc = directory / "proc"
        (self.proc / "2").mkdir(parents=True)
        (self.proc / "2/stat").write_text("2 (kthreadd) S 0" if kernel_threads else "2 (sleep) S 1")
        processes = []
        for number, text in enumerate(cgroups):
            pid = 4000 + number
            (self.proc / str(pid)).mkdir()
            (self.proc / str(pid) / "cgroup").write_text(text + "\n")
            processes.append(ProcessOnGpu(pid=pid, memory_bytes=v.GIB, busy_ratio=None))
        self.inventory = v.inventory(v.device(0, readings=v.readings(processes=tuple(processes))), v.device(1))
        self.told: list[tuple[str, str]] = []
        events = PodEvents(None, lambda kind, reason, about, message, **_: self.told.append((reason, message)), "n")
        self.use = CardUse(pods=Pods(), host=Host(Settings(), proc=self.proc), events=events)

    def look(self, *allocations, assignments: tuple[Assignment, ...] = ()) -> Inventory:
        for _ in range(2):  # what is seen once may be moving
            self.use.step(self.inventory, assignments, allocations, ())
        return self.use.overlaid(self.inventory)


def ask(inventory: Inventory) -> str:
    """A grant on card 0, or why not."""
    request = DeviceRequest(gpu=v.uuid(0), requests=Resources(vram_bytes=v.GIB))
    owner = Owner(kind=OwnerKind.NAMED, name="x")
    try:
        (grant,) = admit(AllocationSpec(allocation_id="x", owner=owner, devices=(request,)), inventory, (), RULES)
    except Refusal as refusal:
        return refusal.reason.value
    return grant.gpu_uuid


def granted_to_the_pod(card: int):
    found = v.allocation("a")
    owner = Owner(kind=OwnerKind.POD, name="app", namespace="ns", pod_uid=UID, container="main")
    grant = replace(found.grants[0], gpu_uuid=v.uuid(card))
    return replace(found, spec=replace(found.spec, owner=owner), grants=(grant,))


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_a_process_of_a_pod_that_was_given_nothing_holds_its_card(tmp_path: Path, dialect: str) -> None:
    machine = Machine(tmp_path, DIALECTS[dialect])
    inventory = machine.look()
    assert machine.use.used_by == {v.uuid(0): "unmanaged-pod"}
    assert ask(inventory) == RefusalReason.GPU_IN_USE.value
    (condition,) = inventory.devices[0].conditions
    assert "process 4000 of Pod ns/app" in condition.message


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_a_process_of_a_pod_on_its_own_card_is_ours(tmp_path: Path, dialect: str) -> None:
    machine = Machine(tmp_path, DIALECTS[dialect])
    assert ask(machine.look(granted_to_the_pod(0))) == v.uuid(0)
    assert (machine.use.used_by, machine.told) == ({}, [])


def test_a_process_of_a_pod_on_another_card_is_told_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, DIALECTS["v2, systemd, containerd"])
    for _ in range(3):
        machine.look(granted_to_the_pod(1))
    assert [reason for reason, _ in machine.told] == ["GPUNotGranted"]
    assert v.uuid(0) in machine.told[0][1]


def test_a_cgroup_that_matches_nothing_is_no_pods_and_makes_no_card_foreign(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "garbage", "0::/user.slice/user-1000.slice", "12:nothing")
    assert ask(machine.look()) == v.uuid(0)
    assert machine.use.hidden == 0


def test_a_process_that_cannot_be_seen_holds_new_grants_with_the_reason(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/../../cut-off")
    inventory = machine.look()
    assert machine.use.hidden == 1
    assert ask(inventory) == RefusalReason.USE_UNKNOWN.value
    assert inventory.devices[0].conditions[0].code is HealthCode.USE_UNKNOWN


def test_without_the_hosts_process_namespace_a_process_is_hidden_and_not_ended(tmp_path: Path) -> None:
    seen, unseen = Machine(tmp_path / "a"), Machine(tmp_path / "b", kernel_threads=False)
    for machine, hidden in ((seen, 0), (unseen, 1)):
        gone = ProcessOnGpu(pid=999_999, memory_bytes=v.GIB, busy_ratio=None)
        machine.inventory = v.inventory(v.device(0, readings=v.readings(processes=(gone,))), v.device(1))
        machine.look()
        assert machine.use.hidden == hidden


@pytest.mark.parametrize(
    ("resource", "device_id"),
    [("nvidia.com/gpu", v.uuid(0)), ("nvidia.com/gpu.shared", f"{v.uuid(0)}::3"), ("nvidia.com/gpu", "nvidia0")],
)
def test_a_card_of_another_plugin_is_held_before_its_first_process(
    tmp_path: Path, resource: str, device_id: str
) -> None:
    machine = Machine(tmp_path)
    native = Assignment(resource=resource, device_ids=(device_id,), container="c", namespace="ns", pod_name="native")
    assert ask(machine.look()) == v.uuid(0)
    assert ask(machine.look(assignments=(native,))) == RefusalReason.GPU_IN_USE.value
