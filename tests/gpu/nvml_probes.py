"""One probe for each function of NVML that the simulator has, for any libnvidia-ml.so.1. As a program it prints JSON.

A probe calls the function once, with arguments that change nothing: what would change something is called with a
handle that is none. Whether the code and the value must be those of a real card of the same model says its kind:
`same` both, `code` the code alone, because the value is the card's own or moves.

Arguments, in the order of the call:
    d, e       the first GPU, and the last one      n         NULL
    u, i, q    place for 32 bits, 32 signed, 64     tN        text with room for N bytes, and N
    oN         N bytes                              vN:V      a structure of N bytes and version V
    wN:V       the same, the version a bare number  =N, ==N   the number N in 32 and in 64 bits
    cN*M       a count, then M places of N bytes    aN*M      the places, then the count
    bM         M, then M unsigned longs             U, P, S   the first GPU's UUID, bus id, serial number
    p          this process's id
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass
from typing import Any

SAME, CODE = "same", "code"

TABLE = """
nvmlSystemGetDriverVersion                       code  t80
nvmlSystemGetNVMLVersion                         code  t80
nvmlSystemGetCudaDriverVersion                   code  u
nvmlSystemGetCudaDriverVersion_v2                code  u
nvmlSystemGetDriverBranch                        code  v84:1 =80
nvmlSystemGetProcessName                         code  p t64
nvmlSystemGetTopologyGpuSet                      code  =0 c8*64
nvmlGetExcludedDeviceCount                       same  u
nvmlGetBlacklistDeviceCount                      same  u
nvmlUnitGetCount                                 same  u
nvmlDeviceGetCount                               code  u
nvmlDeviceGetCount_v2                            code  u
nvmlDeviceGetHandleByIndex                       code  =0 q
nvmlDeviceGetHandleByIndex_v2                    code  =99 q
nvmlDeviceGetHandleByUUID                        code  U q
nvmlDeviceGetHandleByUUIDV                       code  o52 q
nvmlDeviceGetHandleByPciBusId                    code  P q
nvmlDeviceGetHandleByPciBusId_v2                 code  P q
nvmlDeviceGetHandleBySerial                      code  S q
nvmlDeviceGetName                                same  d t96
nvmlDeviceGetUUID                                code  d t96
nvmlDeviceGetSerial                              code  d t32
nvmlDeviceGetBoardPartNumber                     code  d t80
nvmlDeviceGetVbiosVersion                        code  d t32
nvmlDeviceGetIndex                               same  d u
nvmlDeviceGetMinorNumber                         code  d u
nvmlDeviceGetModuleId                            code  d u
nvmlDeviceGetBoardId                             code  d u
nvmlDeviceGetMultiGpuBoard                       same  d u
nvmlDeviceGetBrand                               same  d u
nvmlDeviceGetArchitecture                        same  d u
nvmlDeviceGetCudaComputeCapability               same  d i i
nvmlDeviceGetNumGpuCores                         same  d u
nvmlDeviceGetMemoryBusWidth                      same  d u
nvmlDeviceGetBusType                             same  d u
nvmlDeviceGetAttributes                          code  d o40
nvmlDeviceGetAttributes_v2                       code  d o40
nvmlDeviceGetAddressingMode                      code  d v8:1
nvmlDeviceGetPciInfo                             code  d o52
nvmlDeviceGetPciInfo_v2                          code  d o52
nvmlDeviceGetPciInfo_v3                          code  d o68
nvmlDeviceGetPciInfoExt                          code  d v64:1
nvmlDeviceGetMemoryInfo                          code  d o24
nvmlDeviceGetMemoryInfo_v2                       code  d v40:2
nvmlDeviceGetBAR1MemoryInfo                      code  d o24
nvmlDeviceGetUtilizationRates                    code  d o8
nvmlDeviceGetEncoderUtilization                  code  d u u
nvmlDeviceGetDecoderUtilization                  code  d u u
nvmlDeviceGetJpgUtilization                      code  d u u
nvmlDeviceGetOfaUtilization                      code  d u u
nvmlDeviceGetSamples                             code  d =1 ==0 u c16*512
nvmlDeviceGetProcessUtilization                  code  d a32*64 ==0
nvmlDeviceGetProcessesUtilizationInfo            code  d v24:1
nvmlDeviceGetComputeRunningProcesses             code  d c16*64
nvmlDeviceGetComputeRunningProcesses_v2          code  d c24*64
nvmlDeviceGetComputeRunningProcesses_v3          code  d c24*64
nvmlDeviceGetGraphicsRunningProcesses            code  d c16*64
nvmlDeviceGetGraphicsRunningProcesses_v2         code  d c24*64
nvmlDeviceGetGraphicsRunningProcesses_v3         code  d c24*64
nvmlDeviceGetMPSComputeRunningProcesses          code  d c16*64
nvmlDeviceGetMPSComputeRunningProcesses_v2       code  d c24*64
nvmlDeviceGetMPSComputeRunningProcesses_v3       code  d c24*64
nvmlDeviceGetRunningProcessDetailList            code  d v24:1
nvmlDeviceGetAccountingMode                      code  d u
nvmlDeviceGetAccountingBufferSize                code  d u
nvmlDeviceGetAccountingPids                      code  d c4*8192
nvmlDeviceGetAccountingStats                     code  d p o56
nvmlDeviceClearAccountingPids                    code  n
nvmlDeviceSetAccountingMode                      code  n =0
nvmlDeviceGetClock                               code  d =0 =0 u
nvmlDeviceGetClockInfo                           code  d =1 u
nvmlDeviceGetMaxClockInfo                        same  d =1 u
nvmlDeviceGetApplicationsClock                   code  d =0 u
nvmlDeviceGetDefaultApplicationsClock            code  d =0 u
nvmlDeviceGetMaxCustomerBoostClock               code  d =0 u
nvmlDeviceGetCurrentClocksEventReasons           code  d q
nvmlDeviceGetCurrentClocksThrottleReasons        code  d q
nvmlDeviceGetSupportedClocksEventReasons         same  d q
nvmlDeviceGetSupportedClocksThrottleReasons      same  d q
nvmlDeviceGetViolationStatus                     code  d =0 o16
nvmlDeviceGetPerformanceState                    code  d u
nvmlDeviceGetPowerState                          code  d u
nvmlDeviceGetPowerUsage                          code  d u
nvmlDeviceGetPowerSource                         same  d u
nvmlDeviceGetPowerManagementMode                 same  d u
nvmlDeviceGetPowerManagementLimit                code  d u
nvmlDeviceGetPowerManagementDefaultLimit         same  d u
nvmlDeviceGetPowerManagementLimitConstraints     same  d u u
nvmlDeviceGetEnforcedPowerLimit                  code  d u
nvmlDeviceSetPowerManagementLimit                code  n =1
nvmlDeviceGetTotalEnergyConsumption              code  d q
nvmlDeviceGetTemperature                         code  d =0 u
nvmlDeviceGetTemperatureV                        code  d v12:1
nvmlDeviceGetTemperatureThreshold                same  d =0 u
nvmlDeviceGetMarginTemperature                   code  d v8:1
nvmlDeviceGetFanSpeed                            code  d u
nvmlDeviceGetFanSpeed_v2                         code  d =0 u
nvmlDeviceGetNumFans                             same  d u
nvmlDeviceGetCurrPcieLinkGeneration              code  d u
nvmlDeviceGetCurrPcieLinkWidth                   code  d u
nvmlDeviceGetMaxPcieLinkGeneration               code  d u
nvmlDeviceGetGpuMaxPcieLinkGeneration            same  d u
nvmlDeviceGetMaxPcieLinkWidth                    code  d u
nvmlDeviceGetPcieSpeed                           code  d u
nvmlDeviceGetPcieLinkMaxSpeed                    code  d u
nvmlDeviceGetPcieReplayCounter                   code  d u
nvmlDeviceGetPcieThroughput                      code  d =0 u
nvmlDeviceGetPersistenceMode                     code  d u
nvmlDeviceSetPersistenceMode                     code  n =1
nvmlDeviceGetComputeMode                         code  d u
nvmlDeviceSetComputeMode                         code  n =0
nvmlDeviceGetDisplayActive                       code  d u
nvmlDeviceGetDisplayMode                         code  d u
nvmlDeviceGetVirtualizationMode                  code  d u
nvmlDeviceGetEccMode                             code  d u u
nvmlDeviceGetDefaultEccMode                      same  d u
nvmlDeviceSetEccMode                             code  n =1
nvmlDeviceClearEccErrorCounts                    code  n =0
nvmlDeviceGetTotalEccErrors                      code  d =0 =0 q
nvmlDeviceGetMemoryErrorCounter                  code  d =0 =0 =2 q
nvmlDeviceGetDetailedEccErrors                   code  d =0 =0 o32
nvmlDeviceGetSramEccErrorStatus                  code  d v104:1
nvmlDeviceGetRemappedRows                        code  d u u u u
nvmlDeviceGetRowRemapperHistogram                code  d o20
nvmlDeviceGetRetiredPages                        code  d =0 c8*64
nvmlDeviceGetRetiredPages_v2                     code  d =0 c8*64 o512
nvmlDeviceGetRetiredPagesPendingStatus           code  d u
nvmlDeviceGetUnrepairableMemoryFlag_v1           code  d v8:1
nvmlDeviceGetFieldValues                         code  d =1 o40
nvmlDeviceGetTopologyCommonAncestor              code  d e u
nvmlDeviceGetTopologyNearestGpus                 code  d =50 c8*64
nvmlDeviceGetP2PStatus                           code  d e =0 u
nvmlDeviceOnSameBoard                            code  d e i
nvmlDeviceGetCpuAffinity                         code  d b16
nvmlDeviceGetCpuAffinityWithinScope              code  d b16 =0
nvmlDeviceGetMemoryAffinity                      code  d b16 =0
nvmlDeviceGetNumaNodeId                          code  d u
nvmlDeviceGetNvLinkState                         code  d =0 u
nvmlDeviceGetNvLinkVersion                       same  d =0 u
nvmlDeviceGetNvLinkCapability                    code  d =0 =0 u
nvmlDeviceGetNvLinkErrorCounter                  code  d =0 =0 q
nvmlDeviceGetNvLinkRemoteDeviceType              code  d =0 u
nvmlDeviceGetNvLinkRemotePciInfo                 code  d =0 o52
nvmlDeviceGetNvLinkRemotePciInfo_v2              code  d =0 o68
nvmlDeviceResetNvLinkErrorCounters               code  n =0
nvmlDeviceGetGpuFabricInfo                       code  d o28
nvmlDeviceGetGpuFabricInfoV                      code  d v36:2
nvmlDeviceGetSupportedEventTypes                 code  d q
nvmlDeviceRegisterEvents                         code  n ==8 n
nvmlEventSetCreate                               code  q
nvmlEventSetFree                                 code  n
nvmlEventSetWait                                 code  n o24 =0
nvmlEventSetWait_v2                              code  n o32 =0
nvmlGpmQueryDeviceSupport                        same  d w8:1
nvmlGpmQueryIfStreamingEnabled                   code  d u
nvmlGpmSampleAlloc                               code  q
nvmlGpmSampleFree                                code  n
nvmlGpmSampleGet                                 code  d n
nvmlGpmMigSampleGet                              code  d =77 n
nvmlGpmMetricsGet                                code  o24
nvmlDeviceGetMigMode                             code  d u u
nvmlDeviceSetMigMode                             code  n =0 u
nvmlDeviceSetMemoryLimits_v1                     code  n o24
nvmlDeviceGetMemoryLimits_v1                     code  n o32
nvmlDeviceGetMaxMigDeviceCount                   same  d u
nvmlDeviceGetMigDeviceHandleByIndex              code  d =0 q
nvmlDeviceIsMigDeviceHandle                      same  d u
nvmlDeviceGetDeviceHandleFromMigDeviceHandle     code  d q
nvmlDeviceGetGpuInstanceId                       code  d u
nvmlDeviceGetComputeInstanceId                   code  d u
nvmlDeviceGetGpuInstanceProfileInfo              same  d =2 o48
nvmlDeviceGetGpuInstanceProfileInfoV             same  d =2 v152:2
nvmlDeviceGetGpuInstanceProfileInfoByIdV         same  d =9 v152:2
nvmlDeviceGetGpuInstancePossiblePlacements       same  d =9 a8*16
nvmlDeviceGetGpuInstancePossiblePlacements_v2    same  d =9 a8*16
nvmlDeviceGetGpuInstanceRemainingCapacity        code  d =9 u
nvmlDeviceGetGpuInstances                        code  d =9 a8*16
nvmlDeviceGetGpuInstanceById                     code  d =77 q
nvmlDeviceCreateGpuInstance                      code  n =9 q
nvmlDeviceCreateGpuInstanceWithPlacement         code  n =9 o8 q
nvmlGpuInstanceDestroy                           code  n
nvmlGpuInstanceGetInfo                           code  n o24
nvmlGpuInstanceGetComputeInstanceProfileInfo     code  n =0 =0 o36
nvmlGpuInstanceGetComputeInstanceProfileInfoV    code  n =0 =0 v136:2
nvmlGpuInstanceGetComputeInstanceRemainingCapacity  code  n =0 u
nvmlGpuInstanceGetComputeInstancePossiblePlacements code  n =0 a8*16
nvmlGpuInstanceGetComputeInstances               code  n =0 a8*16
nvmlGpuInstanceGetComputeInstanceById            code  n =0 q
nvmlGpuInstanceCreateComputeInstance             code  n =0 q
nvmlGpuInstanceCreateComputeInstanceWithPlacement   code  n =0 o8 q
nvmlComputeInstanceDestroy                       code  n
nvmlComputeInstanceGetInfo                       code  n o24
nvmlComputeInstanceGetInfo_v2                    code  n o32
"""
# Called around the probes, or no function in the sense of the table.
BY_OTHER_WAYS = frozenset(
    {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString", "nvmlInternalGetExportTable"}
)
MISSING = "missing"  # the library has no such function


@dataclass(frozen=True, slots=True)
class Probe:
    name: str
    kind: str
    arguments: tuple[str, ...]


PROBES = tuple(
    Probe(name, kind, tuple(arguments))
    for name, kind, *arguments in (line.split() for line in TABLE.split("\n") if line)
)


@dataclass(frozen=True, slots=True)
class _Gpu:
    first: ctypes.c_void_p
    last: ctypes.c_void_p
    uuid: bytes
    bus: bytes
    serial: bytes


def _numbers(token: str) -> tuple[int, int]:
    first, _, second = token[1:].replace("*", ":").partition(":")
    return int(first or 0), int(second or 0)


class _Call:
    """The arguments of one call, and what was written to them."""

    def __init__(self, gpu: _Gpu) -> None:
        self._gpu = gpu
        self.arguments: list[Any] = []
        self._results: list[Any] = []

    def add(self, token: str) -> None:
        plain = {
            "d": self._gpu.first,
            "e": self._gpu.last,
            "n": ctypes.c_void_p(0),
            "U": self._gpu.uuid,
            "P": self._gpu.bus,
            "S": self._gpu.serial,
            "p": ctypes.c_uint(os.getpid()),
        }
        if token in plain:
            self.arguments.append(plain[token])
        elif token.startswith("=="):
            self.arguments.append(ctypes.c_uint64(int(token[2:])))
        elif token.startswith("="):
            self.arguments.append(ctypes.c_uint(int(token[1:])))
        elif token in {"u", "i", "q"}:
            place = {"u": ctypes.c_uint, "i": ctypes.c_int, "q": ctypes.c_uint64}[token](0)
            self._results.append(place)
            self.arguments.append(ctypes.byref(place))
        else:
            self._add_buffer(token)

    def _add_buffer(self, token: str) -> None:
        size, second = _numbers(token)
        if token[0] in "ca":
            count, places = ctypes.c_uint(second), ctypes.create_string_buffer(size * second)
            self._results.append(count)
            both = [ctypes.byref(count), places]
            self.arguments += both if token[0] == "c" else both[::-1]
            return
        room = ctypes.create_string_buffer(size * 8 if token[0] == "b" else size)
        if token[0] in "vw":
            version = second if token[0] == "w" else size | second << 24
            ctypes.memmove(room, version.to_bytes(4, "little"), 4)
        if token[0] == "b":
            self.arguments.append(ctypes.c_uint(size))
        self.arguments.append(room)
        if token[0] == "t":
            self.arguments.append(ctypes.c_uint(size))
        self._results.append(room)

    def value(self) -> list[int | str]:
        return [place.raw.hex() if hasattr(place, "raw") else place.value for place in self._results]


def _first_and_last(library: Any) -> _Gpu:
    count, first, last = ctypes.c_uint(0), ctypes.c_void_p(0), ctypes.c_void_p(0)
    for code in (
        library.nvmlDeviceGetCount_v2(ctypes.byref(count)),
        library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(first)),
        library.nvmlDeviceGetHandleByIndex_v2(count.value - 1, ctypes.byref(last)),
    ):
        if code != 0:
            raise SystemExit(f"the first GPU can't be used: NVML says {code}")
    texts = []
    for name in ("nvmlDeviceGetUUID", "nvmlDeviceGetSerial"):
        text = ctypes.create_string_buffer(96)
        getattr(library, name)(first, text, 96)
        texts.append(text.value)
    pci = ctypes.create_string_buffer(68)
    library.nvmlDeviceGetPciInfo_v3(first, pci)
    return _Gpu(first, last, texts[0], pci.raw[36:].split(b"\0")[0], texts[1])


def run(path: str = "libnvidia-ml.so.1") -> dict[str, dict[str, Any]]:
    """Each probe's answer: its code, or `missing`, and the words written to its arguments."""
    library = ctypes.CDLL(path)
    if (code := library.nvmlInit_v2()) != 0:
        raise SystemExit(f"NVML can't be initialised: it says {code}")
    gpu = _first_and_last(library)
    answers: dict[str, dict[str, Any]] = {}
    for probe in PROBES:
        if not hasattr(library, probe.name):
            answers[probe.name] = {"code": MISSING, "value": []}
            continue
        call = _Call(gpu)
        for token in probe.arguments:
            call.add(token)
        code = getattr(library, probe.name)(*call.arguments)
        answers[probe.name] = {"code": code, "value": call.value() if code == 0 else []}
    library.nvmlShutdown()
    return answers


def differences(simulated: dict[str, dict[str, Any]], real: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
    """Where the simulated machine answers otherwise than the real one: name -> [simulated, real]."""
    found: dict[str, list[Any]] = {}
    for probe in PROBES:
        ours, theirs = simulated[probe.name], real[probe.name]
        if ours["code"] != theirs["code"]:
            found[probe.name] = [f"code {ours['code']}", f"code {theirs['code']}"]
        elif probe.kind == SAME and ours["value"] != theirs["value"]:
            found[probe.name] = [ours["value"], theirs["value"]]
    return found


if __name__ == "__main__":
    print(json.dumps(run()))
