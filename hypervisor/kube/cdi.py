"""Our CDI file: the node's cards as devices that a container runtime can inject. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypervisor.kube.answers import CONTROL_NODES, NO_MIG_MINORS, HostFiles, library_places, nodes_of
from hypervisor.kube.names import CONTAINER_LIMITER, CONTAINER_PRELOAD, CONTAINER_SHM, CONTAINER_USAGE, DOMAIN
from hypervisor.model import Allocation, AllocationPhase, GpuIdentity, IsolationMode

# The lowest that has all we write (names that begin with a digit): a runtime refuses files of later ones than it knows.
CDI_VERSION = "0.5.0"
FILE_NAME = "tensor-fusion.json"


def cdi_files(
    cards: Sequence[GpuIdentity],
    allocations: Iterable[Allocation],
    host: HostFiles,
    *,
    existing_nodes: Iterable[str],
    mig_minors: Mapping[str, int] = NO_MIG_MINORS,
) -> dict[str, str]:
    """Content by file name: one of the cards, one of the allocations while there are any, and one of the hook that
    loads the limiter where there is one.

    tensor-fusion.ai/gpu=UUID gives a card's device nodes; tensor-fusion.ai/allocation=UID gives the limits of an
    allocation with the library that holds them, and the cards that it was granted.
    """
    there = set(existing_nodes)
    control = [{"path": node} for node in CONTROL_NODES if node in there]
    by_uuid = {card.uuid: [{"path": node} for node in nodes_of(card, mig_minors) if node in there] for card in cards}
    files: dict[str, str] = {}
    if cards:
        devices = [
            {"name": card.uuid, "containerEdits": {"deviceNodes": [*by_uuid[card.uuid], *control] or None}}
            for card in cards
        ]
        files[FILE_NAME] = _file("gpu", devices)
    limited = [
        {"name": each.uid, "containerEdits": _edits(each, host, by_uuid, control)}
        for each in sorted(allocations, key=lambda each: each.uid)
        if each.phase is AllocationPhase.ACTIVE
    ]
    if limited:
        files["tensor-fusion-allocations.json"] = _file("allocation", limited)
    if host.preload_hook:
        edits = {"hooks": [_preload_hook(host)]}
        files["tensor-fusion-limiter.json"] = _file("limiter", [{"name": "preload", "containerEdits": edits}])
    return files


def _preload_hook(host: HostFiles) -> dict[str, Any]:
    """Runs before the container's first program; the image's own /etc/ld.so.preload keeps what it has."""
    return {
        "hookName": "createContainer",
        "path": host.preload_hook,
        "args": [host.preload_hook, "preload", "merge", "--library", CONTAINER_LIMITER],
    }


def _edits(
    allocation: Allocation, host: HostFiles, by_uuid: dict[str, list[dict[str, str]]], control: list[dict[str, str]]
) -> dict[str, Any]:
    nodes = [node for grant in allocation.grants for node in by_uuid.get(grant.gpu_uuid, ())]
    hooks: list[dict[str, Any]] = []
    mounts = [
        _mount(f"{allocation.directory}/shm", CONTAINER_SHM, "ro"),
        _mount(f"{allocation.directory}/usage", CONTAINER_USAGE, "rw"),
    ]
    if allocation.spec.isolation is not IsolationMode.SHARED:
        mounts += [_mount(library, path, "ro") for path, library in library_places(host)]
        if host.preload_hook:
            hooks.append(_preload_hook(host))
        else:
            mounts.append(_mount(host.preload, CONTAINER_PRELOAD, "ro"))
    devices = ",".join(grant.gpu_uuid for grant in allocation.grants)
    return {
        "env": [
            f"TF_SHM_PATH={CONTAINER_SHM}",
            f"TF_ISOLATION_MODE={allocation.spec.isolation.value}",
            f"CUDA_VISIBLE_DEVICES={devices}",
        ],
        "mounts": mounts,
        "hooks": hooks,
        "deviceNodes": [*nodes, *control] or None,
    }


def _mount(host_path: str, container_path: str, access: str) -> dict[str, Any]:
    options = ["bind", "nosuid", "nodev", access]
    return {"hostPath": host_path, "containerPath": container_path, "options": options}


def _file(kind: str, devices: list[dict[str, Any]]) -> str:
    content = {
        "cdiVersion": CDI_VERSION,
        "kind": f"{DOMAIN}/{kind}",
        "devices": [_without_nothing(device) for device in devices],
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _without_nothing(device: dict[str, Any]) -> dict[str, Any]:
    edits = {key: value for key, value in device["containerEdits"].items() if value}
    # The format wants edits with something in them.
    return {**device, "containerEdits": edits or {"env": [f"NVIDIA_VISIBLE_DEVICES={device['name']}"]}}
