"""Calls of NVML about the state of a GPU: the fabric of its NVLinks, errors on links, a vGPU's licence."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from hypervisor.gpu.codes import FUNCTION_NOT_FOUND, ErrorClass, classify
from hypervisor.gpu.nvml import Device, Field, Nvml
from hypervisor.gpu.wire import Answer, Fabric

# Counters of one NVLink among the field values, by what they count. The first three went with Blackwell, which has the
# others.
LINK_ERROR_FIELDS = {"replay": 161, "recovery": 162, "crc": 163, "receive": 208, "effective": 219, "symbol": 221}
# And among those of nvmlDeviceGetNvLinkErrorCounter, which older drivers have; Hopper and newer cards do not.
LINK_ERROR_COUNTERS = {"replay": 0, "recovery": 1, "crc": 2}


def fabric(nvml: Nvml, device: Device) -> Answer[Fabric]:
    """How far the GPU is in joining its fabric, in the newest version of the call that driver and wrapper know."""
    versions = (
        ("nvmlGpuFabricInfo_v3", "c_nvmlGpuFabricInfo_v3_t"),
        ("nvmlGpuFabricInfo_v2", "c_nvmlGpuFabricInfo_v2_t"),
    )
    answer: Answer[Fabric] = Answer(None, FUNCTION_NOT_FOUND)
    for key, (version, structure) in enumerate(versions):
        answer = nvml.ask(device, "nvmlDeviceGetGpuFabricInfoV", _versioned(version, structure), key)
        if classify(answer.code) is not ErrorClass.ABSENT:
            return answer

    def first(handle: Any) -> Fabric:
        info = pynvml.c_nvmlGpuFabricInfo_t()
        pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
        return Fabric(int(info.state), int(info.status), 0)

    return nvml.ask(device, "nvmlDeviceGetGpuFabricInfo", first)


def _versioned(version: str, structure: str) -> Callable[[Any], Fabric]:
    def call(handle: Any) -> Fabric:
        info = getattr(pynvml, structure)()
        info.version = getattr(pynvml, version)
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        return Fabric(int(info.state), int(info.status), int(info.healthMask))

    return call


def licensed(nvml: Nvml, device: Device) -> Answer[bool]:
    """Whether a vGPU has a licence; no value where none is needed."""

    def call(handle: Any) -> bool:
        told = pynvml.nvmlDeviceGetGridLicensableFeatures(handle)
        if not told.isGridLicenseSupported:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        features = told.gridLicensableFeatures[: int(told.licensableFeaturesCount)]
        return any(feature.featureState for feature in features)

    return nvml.ask(device, "nvmlDeviceGetGridLicensableFeatures", call)


def link_error_fields(links: int) -> list[Field]:
    """The field values that tell what went wrong on so many links."""
    return [(number, link) for number in LINK_ERROR_FIELDS.values() for link in range(links)]


def link_errors(
    nvml: Nvml, device: Device, links: int, told: Callable[[Field], Answer[int]]
) -> dict[str, list[Answer[int]]]:
    """Errors by kind and link; told gives the answer about a field value. Kinds that the GPU does not count are out."""
    found = {kind: [told((number, link)) for link in range(links)] for kind, number in LINK_ERROR_FIELDS.items()}
    for kind, counter in LINK_ERROR_COUNTERS.items():
        if links and _absent(found[kind]):
            found[kind] = [
                nvml.number(device, "nvmlDeviceGetNvLinkErrorCounter", link, counter) for link in range(links)
            ]
    return {kind: answers for kind, answers in found.items() if not _absent(answers)}


def _absent(answers: Sequence[Answer[int]]) -> bool:
    return all(classify(answer.code) is ErrorClass.ABSENT for answer in answers)
