"""MIG through NVML, in the gpu-reader: how a card is divided and could be, one instance made, one ended.

Profiles are told as the driver tells them: their ids and names differ between cards and drivers, and no id is known
beforehand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial
from typing import Any

import pynvml

from hypervisor.gpu import nvml_readings
from hypervisor.gpu.codes import INSUFFICIENT_SIZE, NOT_FOUND, NOT_SUPPORTED, SUCCESS, ErrorClass, classify
from hypervisor.gpu.nvml import Device, Nvml
from hypervisor.gpu.wire import (
    Answer,
    MigCreate,
    MigDestroy,
    MigDone,
    MigEnable,
    MigInstance,
    MigLook,
    MigProfile,
    MigTold,
)

# More than any card has; answers beyond are garbage.
MOST_PLACEMENTS, MOST_INSTANCES = 64, 64
# NVML numbers kinds of profiles from 0; newer drivers have more of them than this release of nvidia-ml-py knows.
MOST_KINDS = 32
MIB_A_GB = 1024
ENABLED = 1


MigRequest = MigLook | MigCreate | MigDestroy | MigEnable


def reply(nvml: Nvml, device: Device, request: MigRequest) -> MigTold | MigDone:
    """The reply to a request about MIG."""
    match request:
        case MigLook():
            return look(nvml, device)
        case MigCreate():
            return create(nvml, device, request)
        case MigDestroy():
            return destroy(nvml, device, request.gpu_instance)
        case MigEnable():
            return enable(nvml, device)


def look(nvml: Nvml, device: Device) -> MigTold:
    """How the card is divided."""
    mode = nvml.pair(device, "nvmlDeviceGetMigMode")
    if mode.value is None:
        return MigTold(mode, [], [], mode.code)
    profiles = list(_profiles(nvml, device))
    if mode.value[0] != ENABLED:
        return MigTold(mode, profiles, [])
    instances: list[MigInstance] = []
    code = SUCCESS
    uuids, complete = _uuids(nvml, device)
    for profile in profiles:
        found = _gpu_instances(nvml, device, profile)
        code = code or found.code
        for handle in found.value or ():
            told = _instance(nvml, device, handle, uuids)
            code = code or told.code
            if told.value is not None:
                instances.append(told.value)
    if not complete:
        code = code or NOT_FOUND
    return MigTold(mode, profiles, instances, code)


def _profiles(nvml: Nvml, device: Device) -> Iterator[MigProfile]:
    for kind in range(MOST_KINDS):
        told: Answer[Any] = nvml.ask(device, "nvmlDeviceGetGpuInstanceProfileInfoV", partial(_profile_info, kind), kind)
        if classify(told.code) is ErrorClass.ABSENT:
            told = nvml.ask(device, "nvmlDeviceGetGpuInstanceProfileInfo", partial(_old_profile_info, kind), kind)
        if told.value is None:
            continue
        info = told.value
        placements = nvml.ask(
            device, "nvmlDeviceGetGpuInstancePossiblePlacements_v2", partial(_placements, int(info.id)), int(info.id)
        )
        yield MigProfile(
            profile_id=int(info.id),
            name=_name(info),
            slices=int(info.sliceCount),
            most=int(info.instanceCount),
            multiprocessors=int(info.multiprocessorCount),
            memory_mebibytes=int(info.memorySizeMB),
            placements=placements.value or [],
        )


def _profile_info(kind: int, handle: Any) -> Any:
    return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, kind, version=2)


def _old_profile_info(kind: int, handle: Any) -> Any:
    return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, kind, version=1)


def _name(info: Any) -> str:
    raw = getattr(info, "name", b"")
    text = raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw)
    return text.removeprefix("MIG ").strip()


def _placements(profile_id: int, handle: Any) -> list[tuple[int, int]]:
    room = (pynvml.c_nvmlGpuInstancePlacement_t * MOST_PLACEMENTS)()
    count = ctypes.c_uint(MOST_PLACEMENTS)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, room, ctypes.byref(count))
    return [(int(each.start), int(each.size)) for each in room[: min(count.value, MOST_PLACEMENTS)]]


def _gpu_instances(nvml: Nvml, device: Device, profile: MigProfile) -> Answer[list[Any]]:
    def call(handle: Any) -> list[Any]:
        room = (pynvml.c_nvmlGpuInstance_t * MOST_INSTANCES)()
        count = ctypes.c_uint(MOST_INSTANCES)
        pynvml.nvmlDeviceGetGpuInstances(handle, profile.profile_id, room, ctypes.byref(count))
        if count.value > MOST_INSTANCES:
            raise pynvml.NVMLError(INSUFFICIENT_SIZE)
        return list(room[: count.value])

    return nvml.ask(Device(device.handle), "nvmlDeviceGetGpuInstances", call)


def _instance(nvml: Nvml, device: Device, gpu_instance: Any, uuids: dict[int, str]) -> Answer[MigInstance]:
    told = nvml.ask(Device(gpu_instance), "nvmlGpuInstanceGetInfo", pynvml.nvmlGpuInstanceGetInfo)
    if told.value is None:
        return Answer(None, told.code)
    info = told.value
    computes = _compute_instances(nvml, device, gpu_instance)
    if computes.value is None:
        return Answer(None, computes.code)
    return Answer(
        MigInstance(
            gpu_instance=int(info.id),
            profile_id=int(info.profileId),
            start=int(info.placement.start),
            size=int(info.placement.size),
            compute_instances=[number for number, _handle in computes.value],
            uuid=uuids.get(int(info.id), "") if computes.value else "",
        )
    )


def _compute_instances(nvml: Nvml, device: Device, gpu_instance: Any) -> Answer[list[tuple[int, Any]]]:
    """Ids and handles of the compute instances in a GPU instance."""
    found: list[tuple[int, Any]] = []
    for kind in range(MOST_KINDS):
        profile = _compute_profile(nvml, gpu_instance, kind)
        if profile.value is None:
            continue
        listed: Answer[list[Any]] = nvml.ask(
            Device(device.handle),
            "nvmlGpuInstanceGetComputeInstances",
            partial(_computes_of, gpu_instance, int(profile.value.id)),
        )
        if listed.value is None:
            return Answer(None, listed.code)
        for handle in listed.value:
            info = nvml.ask(Device(handle), "nvmlComputeInstanceGetInfo_v2", pynvml.nvmlComputeInstanceGetInfo_v2)
            if info.value is None:
                return Answer(None, info.code)
            found.append((int(info.value.id), handle))
    return Answer(found)


def _compute_profile(nvml: Nvml, gpu_instance: Any, kind: int) -> Answer[Any]:
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    answer: Answer[Any] = Answer(None, NOT_SUPPORTED)
    for version, name in ((2, "ProfileInfoV"), (1, "ProfileInfo")):
        answer = nvml.ask(
            Device(gpu_instance),
            f"nvmlGpuInstanceGetComputeInstance{name}",
            partial(_compute_profile_info, kind, shared, version),
        )
        if classify(answer.code) is not ErrorClass.ABSENT:
            break
    return answer


def _compute_profile_info(kind: int, engines: int, version: int, handle: Any) -> Any:
    return pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, kind, engines, version=version)


def _computes_of(gpu_instance: Any, profile_id: int, _handle: Any) -> list[Any]:
    room = (pynvml.c_nvmlComputeInstance_t * MOST_INSTANCES)()
    count = ctypes.c_uint(MOST_INSTANCES)
    pynvml.nvmlGpuInstanceGetComputeInstances(gpu_instance, profile_id, room, ctypes.byref(count))
    return list(room[: min(count.value, MOST_INSTANCES)])


def _uuids(nvml: Nvml, device: Device) -> tuple[dict[int, str], bool]:
    """GPU instance -> UUID of its MIG device with the lowest index, and whether all could be told."""
    found: dict[int, str] = {}
    handles, complete = nvml_readings.mig_devices(nvml, device)
    for instance in handles:
        number = nvml.number(instance, "nvmlDeviceGetGpuInstanceId")
        uuid = nvml.text(instance, "nvmlDeviceGetUUID")
        if number.value is None or not uuid.value:
            complete = False
            continue
        found.setdefault(number.value, uuid.value)
    return found, complete


# ---- changes ----


def create(nvml: Nvml, device: Device, wanted: MigCreate) -> MigDone:
    """Make an instance; when its compute instance can't be made, the GPU instance is ended again."""
    made = nvml.ask(Device(device.handle), "nvmlDeviceCreateGpuInstanceWithPlacement", partial(_create, wanted))
    if made.value is None:
        return MigDone(made.code, "nvmlDeviceCreateGpuInstanceWithPlacement")
    gpu_instance = made.value
    profile = _filling_profile(nvml, gpu_instance)
    computed: Answer[Any] = Answer(None, profile.code)
    if profile.value is not None:
        computed = nvml.ask(
            Device(gpu_instance),
            "nvmlGpuInstanceCreateComputeInstance",
            partial(_create_compute, profile.value),
        )
    if computed.value is not None:
        return MigDone(SUCCESS, "done")
    ended = nvml.ask(Device(gpu_instance), "nvmlGpuInstanceDestroy", pynvml.nvmlGpuInstanceDestroy)
    return MigDone(computed.code, "nvmlGpuInstanceCreateComputeInstance", undone=ended.code == SUCCESS)


def _create(wanted: MigCreate, handle: Any) -> Any:
    placement = pynvml.c_nvmlGpuInstancePlacement_t(wanted.start, wanted.size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, wanted.profile_id, ctypes.byref(placement))


def _create_compute(profile_id: int, handle: Any) -> Any:
    return pynvml.nvmlGpuInstanceCreateComputeInstance(handle, profile_id)


def _filling_profile(nvml: Nvml, gpu_instance: Any) -> Answer[int]:
    """The compute profile with the most slices that the GPU instance has: it fills it."""
    best: tuple[int, int] | None = None
    code = NOT_SUPPORTED
    for kind in range(MOST_KINDS):
        profile = _compute_profile(nvml, gpu_instance, kind)
        if profile.value is None:
            continue
        found = (int(profile.value.sliceCount), int(profile.value.id))
        best = max(best, found) if best else found
    return Answer(best[1]) if best else Answer(None, code)


def destroy(nvml: Nvml, device: Device, gpu_instance: int) -> MigDone:
    """End an instance with all that is in it. One that is not there any more counts as ended."""
    step = "nvmlDeviceGetGpuInstanceById"
    found = nvml.ask(Device(device.handle), step, partial(_instance_by_id, gpu_instance))
    if found.code == NOT_FOUND:
        return MigDone(SUCCESS, "done")
    if found.value is None:
        return MigDone(found.code, step)
    computes = _compute_instances(nvml, device, found.value)
    if computes.value is None:
        return MigDone(computes.code, "nvmlGpuInstanceGetComputeInstances")
    for _number, handle in computes.value:
        ended = nvml.ask(Device(handle), "nvmlComputeInstanceDestroy", pynvml.nvmlComputeInstanceDestroy)
        if ended.code != SUCCESS:
            return MigDone(ended.code, "nvmlComputeInstanceDestroy")
    ended = nvml.ask(Device(found.value), "nvmlGpuInstanceDestroy", pynvml.nvmlGpuInstanceDestroy)
    return MigDone(ended.code, "nvmlGpuInstanceDestroy" if ended.code else "done")


def _instance_by_id(gpu_instance: int, handle: Any) -> Any:
    return pynvml.nvmlDeviceGetGpuInstanceById(handle, gpu_instance)


def enable(nvml: Nvml, device: Device) -> MigDone:
    """Switch MIG mode on; activation says why it is not in force yet."""
    told = nvml.ask(Device(device.handle), "nvmlDeviceSetMigMode", _set_mode)
    if told.code != SUCCESS:
        return MigDone(told.code, "nvmlDeviceSetMigMode")
    return MigDone(SUCCESS, "done", activation=int(told.value or 0))


def _set_mode(handle: Any) -> int:
    return int(pynvml.nvmlDeviceSetMigMode(handle, ENABLED))
