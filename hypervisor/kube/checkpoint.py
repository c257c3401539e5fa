"""Kubelet's device checkpoint: which container of which Pod was given which device ids. Pure.

Kubelet guards the file with the 32-bit FNV-1a hash of a dump of its data, as Go's spew library writes it. A file whose
hash differs is being damaged or was made by a kubelet that dumps otherwise; nothing in it is believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec


class CheckpointError(ValueError):
    """A checkpoint that can't be used; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Device ids that kubelet gave to a container. The checkpoint knows the Pod's UID, PodResources its name.

    answer: what the plugin answered, as kubelet keeps it; b"" where that is not told.
    """

    resource: str
    device_ids: tuple[str, ...]
    container: str
    pod_uid: str = ""
    namespace: str = ""
    pod_name: str = ""
    answer: bytes = field(default=b"", compare=False, repr=False)


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[int, list[str] | None] | list[str] | None = msgspec.field(name="DeviceIDs")
    alloc_resp: bytes | None = None


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None
    registered_devices: dict[str, list[str] | None] | None


class _Checkpoint(msgspec.Struct, rename="pascal"):
    data: _Data
    checksum: int


def read_checkpoint(content: bytes) -> tuple[Assignment, ...]:
    """All assignments. Raises CheckpointError for what is no checkpoint, or one whose checksum is wrong."""
    try:
        found = msgspec.json.decode(content, type=_Checkpoint)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"it is no checkpoint: {error}") from error
    computed = _fnv32a(_dump(found.data).encode())
    if computed != found.checksum:
        raise CheckpointError(f"its checksum is {found.checksum}, and its content has {computed}")
    return tuple(
        Assignment(
            resource=entry.resource_name,
            device_ids=_ids(entry.device_ids),
            container=entry.container_name,
            pod_uid=entry.pod_uid,
            answer=entry.alloc_resp or b"",
        )
        for entry in found.data.pod_device_entries or ()
    )


def checksum(content: Mapping[str, object]) -> int:
    """The checksum that kubelet writes beside this "Data"."""
    return _fnv32a(_dump(msgspec.json.decode(msgspec.json.encode(content), type=_Data)).encode())


def _ids(by_node: dict[int, list[str] | None] | list[str] | None) -> tuple[str, ...]:
    if isinstance(by_node, dict):
        return tuple(sorted(each for ids in by_node.values() for each in ids or ()))
    return tuple(sorted(by_node or ()))


def _dump(data: _Data) -> str:
    """The text that kubelet hashes: Go values with their types, maps in the order of their keys."""
    entries = (
        "<nil>"
        if data.pod_device_entries is None
        else "[" + " ".join(_dump_entry(entry) for entry in data.pod_device_entries) + "]"
    )
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} "
        f"RegisteredDevices:(map[string][]string){_dump_map(data.registered_devices)}}}"
    )


def _dump_entry(entry: _Entry) -> str:
    ids = entry.device_ids
    if isinstance(ids, list):  # before Kubernetes 1.20
        devices = f"([]string){_dump_list(ids)}"
    else:
        devices = f"(checkpoint.DevicesPerNUMA){_dump_map(ids)}"
    answer = "<nil>" if entry.alloc_resp is None else "[" + " ".join(map(str, entry.alloc_resp)) + "]"
    return (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container_name} "
        f"ResourceName:(string){entry.resource_name} DeviceIDs:{devices} AllocResp:([]uint8){answer}}}"
    )


def _dump_map(by_key: Mapping[str, list[str] | None] | Mapping[int, list[str] | None] | None) -> str:
    if by_key is None:
        return "<nil>"
    pairs = sorted(by_key.items(), key=lambda pair: pair[0])  # keys of one kind: text or numbers
    return "map[" + " ".join(f"{key}:{_dump_list(ids)}" for key, ids in pairs) + "]"


def _dump_list(ids: list[str] | None) -> str:
    return "<nil>" if ids is None else "[" + " ".join(ids) + "]"


def _fnv32a(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value
