"""How NVML is called: with codes, counted and timed, with fall-backs and a memory for what is absent.

A call never raises for what the driver says; it gives an Answer. Only the gpu-reader process may import this and its
neighbours nvml_*.py, which hold the calls that need more than a name; nobody else uses nvidia-ml-py.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from hypervisor.gpu import library, lists
from hypervisor.gpu.codes import (
    FUNCTION_NOT_FOUND,
    SUCCESS,
    UNREADABLE,
    ErrorClass,
    classify,
)
from hypervisor.gpu.stamps import Stamps
from hypervisor.gpu.wire import Answer, Call

Value = TypeVar("Value")
Rung = tuple[str, Callable[[Any], Value]]
Field = tuple[int, int]  # its number and its scope: a link, or 0

# Members of a field value's union, by its type.
FIELD_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
# Field values that one call is asked for.
FIELDS_AT_ONCE = 64
FIELD_VALUES = "nvmlDeviceGetFieldValues"


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
    stamps: Stamps = field(default_factory=Stamps)


class Nvml:
    """NVML, initialised. Not for use by several threads."""

    def __init__(self, path: str, native: ctypes.CDLL) -> None:
        self.path = path
        self.native = native
        self._calls: dict[tuple[str, int], tuple[int, float]] = {}
        self.most_pid = int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))
        self.system = Device(None)

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
        started = opened.ask(opened.system, "nvmlInitWithFlags", lambda _: pynvml.nvmlInit())
        if started.code != SUCCESS:
            raise NvmlUnusableError("initialise", started.code, opened.path)
        return opened

    def close(self) -> None:
        """Let go of the driver; every handle is worthless from then on."""
        self.ask(self.system, "nvmlShutdown", lambda _: pynvml.nvmlShutdown())

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
            self.system, "nvmlSystemGetDriverVersion", lambda _: text_of(pynvml.nvmlSystemGetDriverVersion())
        )

    def nvml_version(self) -> Answer[str]:
        return self._system_text("nvmlSystemGetNVMLVersion")

    def _system_text(self, name: str) -> Answer[str]:
        return self.ask(self.system, name, lambda _: text_of(getattr(pynvml, name)()))

    def cuda_version(self) -> Answer[int]:
        return self.climb(
            self.system,
            ("nvmlSystemGetCudaDriverVersion_v2", lambda _: int(pynvml.nvmlSystemGetCudaDriverVersion_v2())),
            ("nvmlSystemGetCudaDriverVersion", lambda _: int(pynvml.nvmlSystemGetCudaDriverVersion())),
        )

    def count(self) -> Answer[int]:
        return self.ask(self.system, "nvmlDeviceGetCount_v2", lambda _: int(pynvml.nvmlDeviceGetCount()))

    def take_handle(self, *, index: int | None, bus_id: str | None) -> Answer[Any]:
        """A handle by bus id, which wakes up no other GPU, or by index."""
        if bus_id is not None:
            return self.ask(
                self.system,
                "nvmlDeviceGetHandleByPciBusId_v2",
                lambda _: pynvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode()),
            )
        return self.ask(
            self.system, "nvmlDeviceGetHandleByIndex_v2", lambda _: pynvml.nvmlDeviceGetHandleByIndex(index)
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

    def fields(self, device: Device, wanted: Sequence[Field]) -> dict[Field, Answer[int]]:
        """Whole numbers among the field values, many with one call. What the GPU has not is asked for once."""
        answers: dict[Field, Answer[int]] = {}
        asked = []
        for each in wanted:
            remembered = device.absent.get((FIELD_VALUES, *each))
            if remembered is None:
                asked.append(each)
            else:
                answers[each] = Answer(None, remembered)
        for at in range(0, len(asked), FIELDS_AT_ONCE):
            some = asked[at : at + FIELDS_AT_ONCE]
            told = self.ask(device, FIELD_VALUES, partial(_field_values, some))
            for each, answer in zip(some, told.value or [Answer(None, told.code)] * len(some), strict=True):
                answers[each] = answer
                if told.value is not None and classify(answer.code) is ErrorClass.ABSENT:
                    device.absent[FIELD_VALUES, *each] = answer.code
        return answers

    def text(self, device: Device, name: str) -> Answer[str]:
        """A call that gives a text."""
        return self.ask(device, name, lambda handle: text_of(getattr(pynvml, name)(handle)))

    def between(self, device: Device, other: Device, name: str, *arguments: int) -> Answer[int]:
        """A call about two GPUs that gives one number. Not remembered: the code may be about the other one."""
        return self.ask(
            Device(device.handle),
            name,
            lambda handle: int(getattr(pynvml, name)(handle, other.handle, *arguments)),
        )


def _field_values(wanted: Sequence[Field], handle: Any) -> list[Answer[int]]:
    return [_field_value(told) for told in pynvml.nvmlDeviceGetFieldValues(handle, list(wanted))]


def _field_value(told: Any) -> Answer[int]:
    if told.nvmlReturn != SUCCESS:
        return Answer(None, int(told.nvmlReturn))
    member = FIELD_MEMBERS.get(told.valueType)
    return Answer(None, UNREADABLE) if member is None else Answer(int(getattr(told.value, member)))


def handle_number(handle: Any) -> int:
    """The pointer that a handle is."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def text_of(value: str | bytes) -> str:
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
