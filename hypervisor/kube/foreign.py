"""Which cards are in other hands: another device plugin's Pods, and processes of Pods that we gave nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hypervisor.kube.cgroups import Residence
from hypervisor.kube.checkpoint import Assignment
from hypervisor.kube.device_ids import is_third_party, uuid_of
from hypervisor.kube.names import INDEX_RESOURCE, MIG_RESOURCE, NATIVE_RESOURCE
from hypervisor.kube.pod import Pod
from hypervisor.kube.reconcile import pod_at
from hypervisor.model import (
    Condition,
    ConditionStatus,
    DeviceObservation,
    HealthCode,
    Inventory,
)

NVIDIA_PLUGIN = "nvidia-device-plugin"
THIRD_PARTY = "3rd-party-device-plugin"
UNMANAGED_POD = "unmanaged-pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Who uses a card beside us: used_by as it is published, "" where that is not known; message for people."""

    used_by: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A process of one of our Pods on a card that the Pod was not given."""

    pod: Pod
    pid: int
    gpu_uuid: str


def index_of_cards(inventory: Inventory) -> Mapping[str, str]:
    """UUIDs by what some plugins call them: "0", and "0/3" for GPU instance 3 of card 0."""
    found = {}
    cards = {device.identity.uuid: device.identity.index for device in inventory.devices}
    for device in inventory.devices:
        part = device.identity.partition
        if part is None:
            found[str(device.identity.index)] = device.identity.uuid
        elif part.parent_uuid in cards:
            found[f"{cards[part.parent_uuid]}/{part.gpu_instance_id}"] = device.identity.uuid
    return found


def foreign_uses(
    inventory: Inventory,
    *,
    assignments: Iterable[Assignment],
    pods: Mapping[str, Pod],
    granted: Mapping[str, frozenset[str]],
    residences: Mapping[int, Residence | None],
    our_pids: frozenset[int] = frozenset(),
) -> tuple[Mapping[str, Use], tuple[Stray, ...]]:
    """By UUID the uses that are not ours, and processes of our Pods on cards that they were not given.

    granted: by Pod UID, the UUIDs that it was given. residences: by host pid, where a process lives; None where that
    can't be said, and no entry where it has ended. our_pids: processes that attached to an allocation.
    """
    names = {device.identity.uuid.lower(): device.identity.uuid for device in inventory.devices}
    by_index, uses = index_of_cards(inventory), dict[str, Use]()
    for assignment in assignments:
        if assignment.resource.startswith(INDEX_RESOURCE) or _has_ended(assignment, pods):
            continue
        for device_id in assignment.device_ids:
            uuid = names.get(uuid_of(device_id, by_index) or "")
            if uuid is not None:
                uses.setdefault(uuid, _by_plugin(assignment, device_id))
    strays = []
    for device in inventory.devices:
        uuid = device.identity.uuid
        for process in device.readings.processes or ():
            if process.pid in our_pids or process.pid not in residences:
                continue
            residence = residences[process.pid]
            if residence is None or residence.hidden:
                uses.setdefault(
                    uuid, Use(used_by="", message=f"process {process.pid} uses it, and whose it is can't be seen")
                )
                continue
            pod = pods.get(residence.pod_uid)
            if not residence.pod_uid or uuid in granted.get(residence.pod_uid, frozenset()):
                continue
            if residence.pod_uid in granted and pod is not None:
                strays.append(Stray(pod=pod, pid=process.pid, gpu_uuid=uuid))
            who = f"Pod {pod.label}" if pod is not None else f"a Pod with the UID {residence.pod_uid}"
            uses.setdefault(
                uuid,
                Use(used_by=UNMANAGED_POD, message=f"process {process.pid} of {who} uses it, which was not given it"),
            )
    return uses, tuple(strays)


def overlaid(inventory: Inventory, uses: Mapping[str, Use]) -> Inventory:
    """The inventory with a condition on each card that is in other hands, which holds new grants on it.

    A card in use as a whole is so with its instances, and the other way round only for the card.
    """
    if not uses:
        return inventory
    return replace(inventory, devices=tuple(_overlaid(device, uses) for device in inventory.devices))


def _overlaid(device: DeviceObservation, uses: Mapping[str, Use]) -> DeviceObservation:
    part = device.identity.partition
    use = uses.get(device.identity.uuid) or (uses.get(part.parent_uuid) if part is not None else None)
    if use is None:
        return device
    code = HealthCode.FOREIGN_USE if use.used_by else HealthCode.USE_UNKNOWN
    condition = Condition(
        type=code.value, status=ConditionStatus.TRUE, code=code, message=use.message, last_transition_at=0.0
    )
    others = tuple(each for each in device.conditions if each.type != condition.type)
    return replace(device, conditions=(*others, condition))


def _has_ended(assignment: Assignment, pods: Mapping[str, Pod]) -> bool:
    """Kubelet gives devices back only when it needs them, so what ended may still be listed."""
    if pod_at(assignment, pods.values()) is not None:
        return False
    return any(
        pod.ended
        and (pod.uid == assignment.pod_uid or (pod.namespace, pod.name) == (assignment.namespace, assignment.pod_name))
        for pod in pods.values()
    )


def _by_plugin(assignment: Assignment, device_id: str) -> Use:
    native = assignment.resource == NATIVE_RESOURCE or assignment.resource.startswith(MIG_RESOURCE)
    used_by = NVIDIA_PLUGIN if native and not is_third_party(device_id) else THIRD_PARTY
    who = f"{assignment.namespace}/{assignment.pod_name}" if assignment.pod_name else assignment.pod_uid
    return Use(used_by=used_by, message=f"Pod {who} has it as {assignment.resource} ({device_id})")
