"""The one user of nvidia-ml-py: calls with their codes, counted and timed, with fall-backs and a memory for the absent.

A call never raises for what the driver says; it gives an Answer. Only the gpu-reader process may import this.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from hypervisor.gpu import library, lists
from hypervisor.gpu.codes import (
    FUNCTION_NOT_FOUND,
    NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    UNREADABLE,
    ErrorClass,
    classify,
)
from hypervisor.gpu.wire import Answer, Call, Memory, Process, Sample

Value = TypeVar("Value")
Rung = tuple[str, Callable[[Any], Value]]

AFFINITY_WORDS = 64  # 4096 CPUs
MOST_MIG_DEVICES = 64  # more than any card has; a count beyond is garbage
# A sample from further ahead is garbage; believed, its time would hide all samples that come after it.
A_DAY_US = 86_400_000_000
# Members of a field value's union, by its type.
FIELD_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
FIRST_SAMPLES_US = 2_000_000


@dataclass(frozen=True)
class NvmlUnusableError(Exception):
    """NVML can't be used at all: what was being done, the code, and details for people."""

    stage: str
    code: int
    detail: str = ""


@dataclass(slots=True)
class Device:
    """A handle, and what was learned of the calls on it. A new handle starts without that memory."""

    handle: Any
    absent: dict[tuple[Any, ...], int] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    process_version: str = lists.PROCESS_LIST_VERSIONS[0]
    last_sample_us: int = 0


class Nvml:
    """NVML, initialised. Not for use by several threads."""

    def __init__(self, path: str, native: ctypes.CDLL) -> None:
        self.path = path
        self._native = native
        self._calls: dict[tuple[str, int], tuple[int, float]] = {}
        self._most_pid = int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))
        self._system = Device(None)

    @classmethod
    def open(cls, environment: Mapping[str, str]) -> Nvml:
        """Load and initialise the library; touches no GPU. Raises NvmlUnusableError."""
        _check_distribution()
        try:
            library.load(environment)
        except library.LibraryNotFoundError as error:
            raise NvmlUnusableError("load", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "; ".join(error.tried)) from error
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        opened = cls(library.loaded_path(maps), ctypes.CDLL(library.SONAME))
        started = opened.ask(opened._system, "nvmlInit_v2", lambda _: pynvml.nvmlInit())
        if started.code != SUCCESS:
            raise NvmlUnusableError("initialise", started.code, opened.path)
        return opened

    # ---- how a call is made ----

    def ask(self, device: Device, name: str, call: Callable[[Any], Value], *key: int) -> Answer[Value]:
        """One call on a handle. What is absent is remembered under name and key, unless it has been there before."""
        remembered = device.absent.get((name, *key))
        if remembered is not None:
            return Answer(None, remembered)
        begun = time.perf_counter()
        value: Value | None = None
        try:
            value = call(device.handle)
            code = SUCCESS
        except pynvml.NVMLError as error:
            # Code 0 in an error is a defect of the wrapper: no value came.
            code = error.value or UNREADABLE
        except UnicodeDecodeError:
            code = UNREADABLE
        except AttributeError:
            # This release of nvidia-ml-py does not know the call.
            code = FUNCTION_NOT_FOUND
        self._note(device, name, key, code, time.perf_counter() - begun)
        return Answer(value, code)

    def _note(self, device: Device, name: str, key: tuple[int, ...], code: int, seconds: float) -> None:
        count, total = self._calls.get((name, code), (0, 0.0))
        self._calls[name, code] = (count + 1, total + seconds)
        if code == SUCCESS:
            device.answered.add(name)
        elif classify(code) is ErrorClass.ABSENT and name not in device.answered:
            device.absent[name, *key] = code

    def climb(self, device: Device, *rungs: Rung[Value]) -> Answer[Value]:
        """The first rung that this driver and GPU have; the code of the last where they have none."""
        answer: Answer[Value] = Answer(None, FUNCTION_NOT_FOUND)
        for name, call in rungs:
            answer = self.ask(device, name, call)
            if classify(answer.code) is not ErrorClass.ABSENT:
                break
        return answer

    def take_calls(self) -> list[Call]:
        """Calls since this was last asked."""
        taken, self._calls = self._calls, {}
        return [Call(name, code, count, seconds) for (name, code), (count, seconds) in taken.items()]

    # ---- the node ----

    def driver_version(self) -> Answer[str]:
        return self.ask(
            self._system, "nvmlSystemGetDriverVersion", lambda _: _text(pynvml.nvmlSystemGetDriverVersion())
        )

    def nvml_version(self) -> Answer[str]:
        return self._system_text("nvmlSystemGetNVMLVersion")

    def _system_text(self, name: str) -> Answer[str]:
        return self.ask(self._system, name, lambda _: _text(getattr(pynvml, name)()))

    def cuda_version(self) -> Answer[int]:
        return self.climb(
            self._system,
            ("nvmlSystemGetCudaDriverVersion_v2", lambda _: int(pynvml.nvmlSystemGetCudaDriverVersion_v2())),
            ("nvmlSystemGetCudaDriverVersion", lambda _: int(pynvml.nvmlSystemGetCudaDriverVersion())),
        )

    def count(self) -> Answer[int]:
        return self.ask(self._system, "nvmlDeviceGetCount_v2", lambda _: int(pynvml.nvmlDeviceGetCount()))

    def take_handle(self, *, index: int | None, bus_id: str | None) -> Answer[Any]:
        """A handle by bus id, which wakes up no other GPU, or by index."""
        if bus_id is not None:
            return self.ask(
                self._system,
                "nvmlDeviceGetHandleByPciBusId_v2",
                lambda _: pynvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode()),
            )
        return self.ask(
            self._system, "nvmlDeviceGetHandleByIndex_v2", lambda _: pynvml.nvmlDeviceGetHandleByIndex(index)
        )

    # ---- a GPU: plain facts by the name of their call ----

    def number(self, device: Device, name: str, *arguments: int) -> Answer[int]:
        """A call that gives one number."""
        return self.ask(device, name, lambda handle: int(getattr(pynvml, name)(handle, *arguments)), *arguments)

    def pair(self, device: Device, name: str) -> Answer[tuple[int, int]]:
        """A call that gives two numbers."""

        def call(handle: Any) -> tuple[int, int]:
            first, second = getattr(pynvml, name)(handle)
            return int(first), int(second)

        return self.ask(device, name, call)

    def four(self, device: Device, name: str) -> Answer[tuple[int, int, int, int]]:
        """A call that gives four numbers."""

        def call(handle: Any) -> tuple[int, int, int, int]:
            first, second, third, fourth = getattr(pynvml, name)(handle)
            return int(first), int(second), int(third), int(fourth)

        return self.ask(device, name, call)

    def length(self, device: Device, name: str, *arguments: int) -> Answer[int]:
        """How many entries the list has that a call gives."""
        return self.ask(device, name, lambda handle: len(getattr(pynvml, name)(handle, *arguments)), *arguments)

    def field(self, device: Device, field: int) -> Answer[int]:
        """A whole number among the field values."""

        def call(handle: Any) -> int:
            (told,) = pynvml.nvmlDeviceGetFieldValues(handle, [field])
            if told.nvmlReturn != SUCCESS:
                raise pynvml.NVMLError(told.nvmlReturn)
            member = FIELD_MEMBERS.get(told.valueType)
            if member is None:
                raise pynvml.NVMLError(UNREADABLE)
            return int(getattr(told.value, member))

        return self.ask(device, "nvmlDeviceGetFieldValues", call, field)

    def text(self, device: Device, name: str) -> Answer[str]:
        """A call that gives a text."""
        return self.ask(device, name, lambda handle: _text(getattr(pynvml, name)(handle)))

    def between(self, device: Device, other: Device, name: str, *arguments: int) -> Answer[int]:
        """A call about two GPUs that gives one number. Not remembered: the code may be about the other one."""
        return self.ask(
            Device(device.handle),
            name,
            lambda handle: int(getattr(pynvml, name)(handle, other.handle, *arguments)),
        )

    # ---- a GPU: what needs more than that ----

    def pci(self, device: Device) -> Answer[tuple[str, int]]:
        """Bus id as NVML writes it, and device << 16 | vendor."""

        def call(handle: Any) -> tuple[str, int]:
            info = pynvml.nvmlDeviceGetPciInfo(handle)
            return _text(info.busId), int(info.pciDeviceId)

        return self.ask(device, "nvmlDeviceGetPciInfo_v3", call)

    def link_remote(self, device: Device, link: int) -> Answer[str]:
        """Bus id of the far end of an NVLink."""
        return self.ask(
            device,
            "nvmlDeviceGetNvLinkRemotePciInfo_v2",
            lambda handle: _text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId),
            link,
        )

    def memory(self, device: Device) -> Answer[Memory]:
        """Memory, in the version that tells what is reserved where there is one."""

        def call_v2(handle: Any) -> Memory:
            info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
            return Memory(int(info.total), int(info.free), int(info.used), int(info.reserved))

        def call_v1(handle: Any) -> Memory:
            info = pynvml.nvmlDeviceGetMemoryInfo(handle)
            return Memory(int(info.total), int(info.free), int(info.used), None)

        return self.climb(device, ("nvmlDeviceGetMemoryInfo_v2", call_v2), ("nvmlDeviceGetMemoryInfo", call_v1))

    def utilization(self, device: Device) -> Answer[tuple[int, int]]:
        """Percent of time with a kernel, and with memory traffic."""

        def call(handle: Any) -> tuple[int, int]:
            rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
            return int(rates.gpu), int(rates.memory)

        return self.ask(device, "nvmlDeviceGetUtilizationRates", call)

    def temperature(self, device: Device) -> Answer[int]:
        """Celsius, of the GPU's own sensor."""
        return self.climb(
            device,
            ("nvmlDeviceGetTemperatureV", lambda handle: int(pynvml.nvmlDeviceGetTemperatureV(handle, 0))),
            ("nvmlDeviceGetTemperature", lambda handle: int(pynvml.nvmlDeviceGetTemperature(handle, 0))),
        )

    def clock_event_reasons(self, device: Device) -> Answer[int]:
        """Bits that say why the clocks are below their maximum."""
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")

        def rung(name: str) -> Rung[int]:
            return name, lambda handle: int(getattr(pynvml, name)(handle))

        return self.climb(device, *map(rung, names))

    def affinity(self, device: Device, name: str, *arguments: int) -> Answer[list[int]]:
        """A bit mask of CPUs or NUMA nodes, in words of 64 bits."""
        return self.ask(
            device,
            name,
            lambda handle: [int(word) for word in getattr(pynvml, name)(handle, AFFINITY_WORDS, *arguments)],
        )

    def mig_devices(self, device: Device) -> tuple[list[Device], bool]:
        """Handles of the MIG devices of a divided card, and whether these are all; the numbering has holes."""
        most = self.number(device, "nvmlDeviceGetMaxMigDeviceCount")
        found = []
        complete = bool(most.value)  # a divided card has room for one at least
        for index in range(min(most.value or 0, MOST_MIG_DEVICES)):
            answer = self.ask(device, "nvmlDeviceGetMigDeviceHandleByIndex", partial(_mig_device, index), index)
            if answer.code == SUCCESS:
                found.append(Device(answer.value))
            elif answer.code != NOT_FOUND:
                complete = False
        return found, complete

    # ---- events ----

    def make_event_set(self) -> Answer[Any]:
        """A set that takes events of cards."""
        return self.ask(self._system, "nvmlEventSetCreate", lambda _: pynvml.nvmlEventSetCreate())

    def free_event_set(self, event_set: Any) -> Answer[None]:
        """End a set."""
        return self.ask(self._system, "nvmlEventSetFree", lambda _: pynvml.nvmlEventSetFree(event_set))

    def watch(self, device: Device, event_set: Any, wanted: int) -> Answer[int]:
        """Deliver those of the wanted events that the card has; the mask of them."""
        supported = self.ask(
            device,
            "nvmlDeviceGetSupportedEventTypes",
            lambda handle: int(pynvml.nvmlDeviceGetSupportedEventTypes(handle)),
        )
        mask = (supported.value or 0) & wanted
        if not mask:
            return Answer(None, supported.code or NOT_SUPPORTED)

        def register(handle: Any) -> int:
            pynvml.nvmlDeviceRegisterEvents(handle, mask, event_set)
            return mask

        return self.ask(device, "nvmlDeviceRegisterEvents", register)

    def next_event(self, event_set: Any) -> Answer[tuple[int, int, int]]:
        """An event that has come: the card's handle as a number, type and data; TIMEOUT when there is none."""

        def call(_: Any) -> tuple[int, int, int]:
            told = pynvml.nvmlEventSetWait_v2(event_set, 0)
            return handle_number(told.device), int(told.eventType), int(told.eventData)

        return self.ask(self._system, "nvmlEventSetWait_v2", call)

    def instance_attributes(self, device: Device) -> Answer[tuple[int, int]]:
        """Multiprocessors and mebibytes of a MIG device."""

        def call(handle: Any) -> tuple[int, int]:
            attributes = pynvml.nvmlDeviceGetAttributes_v2(handle)
            return int(attributes.multiprocessorCount), int(attributes.memorySizeMB)

        return self.ask(device, "nvmlDeviceGetAttributes_v2", call)

    def processes(self, device: Device, most_bytes: int | None) -> Answer[list[Process]]:
        """Processes of all lists, each once, with the most that a list attributes to it."""
        found: list[Process] = []
        for kind in ("Compute", "Graphics", "MPSCompute"):
            answer = self._process_list(device, kind, most_bytes)
            if answer.value is None and (kind == "Compute" or classify(answer.code) is not ErrorClass.ABSENT):
                return answer  # an incomplete list would make what it leaves out look free
            found += [Process(entry.pid, entry.memory_bytes, kind == "MPSCompute") for entry in answer.value or ()]
        return Answer(lists.merged(found))

    def _process_list(self, device: Device, kind: str, most_bytes: int | None) -> Answer[list[Process]]:
        versions = lists.PROCESS_LIST_VERSIONS[lists.PROCESS_LIST_VERSIONS.index(device.process_version) :]
        doubtful: Answer[list[Process]] | None = None
        answer: Answer[list[Process]] = Answer(None, FUNCTION_NOT_FOUND)
        for version in versions:
            answer = self._ask_list(
                device,
                f"nvmlDeviceGet{kind}RunningProcesses{version}",
                partial(self._read_processes, kind, version),
            )
            if answer.value is None:
                if classify(answer.code) is not ErrorClass.ABSENT:
                    return answer
                continue
            if lists.plausible(answer.value, most_pid=self._most_pid, most_bytes=most_bytes):
                if doubtful is not None and answer.value:
                    device.process_version = version
                return answer
            doubtful = doubtful or answer
        if doubtful is None or doubtful.value is None:
            return answer
        if any(not 0 < entry.pid <= self._most_pid for entry in doubtful.value):
            return Answer(None, UNREADABLE)
        # The pids make sense and only the amounts do not: who is there is known, how much is not.
        return Answer([Process(entry.pid, None) for entry in doubtful.value])

    def _read_processes(self, kind: str, version: str, handle: Any) -> Answer[list[Process]]:
        return lists.read_processes(self._native, handle, kind, version)

    def samples(self, device: Device) -> Answer[list[Sample]]:
        """Utilisation samples of processes that were not given before."""
        answer = self._ask_list(
            device,
            "nvmlDeviceGetProcessUtilization",
            lambda handle: lists.read_samples(self._native, handle, device.last_sample_us),
        )
        now_us = time.time_ns() // 1000
        first, last = device.last_sample_us == 0, device.last_sample_us
        sane = [
            sample
            for sample in answer.value or ()
            if 0 < sample.pid <= self._most_pid and last < sample.time_us <= now_us + A_DAY_US
        ]
        device.last_sample_us = max((sample.time_us for sample in sane), default=last)
        if first:
            # The first answer reaches back as far as the driver remembers; old activity is no news.
            sane = [sample for sample in sane if sample.time_us >= now_us - FIRST_SAMPLES_US]
        return answer if answer.value is None else Answer(sane)

    def _ask_list(self, device: Device, name: str, call: Callable[[Any], Answer[list[Value]]]) -> Answer[list[Value]]:
        def raising(handle: Any) -> list[Value]:
            answer = call(handle)
            if answer.value is None:
                raise pynvml.NVMLError(answer.code)
            return answer.value

        return self.ask(device, name, raising)


def handle_number(handle: Any) -> int:
    """The pointer that a handle is."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _mig_device(index: int, handle: Any) -> Any:
    return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)


def _text(value: str | bytes) -> str:
    """Texts are bytes in old releases of the wrapper. Raises UnicodeDecodeError, also for what can't be printed."""
    text = value.decode() if isinstance(value, bytes) else value
    if not text.isprintable():
        raise UnicodeDecodeError("utf-8", text.encode("utf-8", "replace"), 0, len(text), "not printable")
    return text


def _check_distribution() -> None:
    """The deprecated distribution of the same module name has other layouts, which would shuffle every answer."""
    if not hasattr(pynvml, "nvmlDeviceGetGpuFabricInfoV") or not hasattr(pynvml, "nvmlMemory_v2"):
        raise NvmlUnusableError(
            "load",
            FUNCTION_NOT_FOUND,
            f"{pynvml.__file__} is not nvidia-ml-py 12 or newer; uninstall 'pynvml' and install 'nvidia-ml-py'",
        )
