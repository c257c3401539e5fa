"""Loads for a real GPU through the driver API alone. As a program it runs one and prints JSON: rounds done in so many
seconds after the first, and with --measure the GPU seconds of a round, from the device's own clock.

    gemm      a matrix product of 1024 x 1024, one thread an element
    memory    a copy of 256 MiB by a kernel
    small     64 kernels of a few microseconds
    graph     one graph of 50 of these
    decode    a token of a small transformer: for each of 12 layers a matrix times a vector and two small kernels, and
              the host waits for the token
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable

LOADS = ("gemm", "memory", "small", "graph", "decode")
WARM_UP_SECONDS = 1.0
MEASURED_SECONDS = 1.0
SIDE = 1024
COPIED = 256 << 20
AHEAD = 4  # rounds that are queued before the host waits for the first of them

PTX = b"""
.version 6.4
.target sm_50
.address_size 64
.visible .entry product(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 side, .param .u32 rows)
{
    .reg .pred %p<3>; .reg .b32 %r<12>; .reg .b64 %d<12>; .reg .f32 %f<4>;
    ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.param.u64 %d3, [c];
    ld.param.u32 %r1, [side]; ld.param.u32 %r10, [rows];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    mul.lo.u32 %r11, %r10, %r1;
    setp.ge.u32 %p1, %r5, %r11;
    @%p1 bra done;
    div.u32 %r6, %r5, %r1;
    rem.u32 %r7, %r5, %r1;
    mul.lo.u32 %r8, %r6, %r1;
    mul.wide.u32 %d4, %r8, 4; add.u64 %d4, %d1, %d4;
    mul.wide.u32 %d5, %r7, 4; add.u64 %d5, %d2, %d5;
    mul.wide.u32 %d6, %r1, 4;
    mov.u32 %r9, 0; mov.f32 %f1, 0f00000000;
next:
    ld.global.f32 %f2, [%d4]; ld.global.f32 %f3, [%d5];
    fma.rn.f32 %f1, %f2, %f3, %f1;
    add.u64 %d4, %d4, 4; add.u64 %d5, %d5, %d6;
    add.u32 %r9, %r9, 1;
    setp.lt.u32 %p2, %r9, %r1;
    @%p2 bra next;
    mul.wide.u32 %d7, %r5, 4; add.u64 %d7, %d3, %d7;
    st.global.f32 [%d7], %f1;
done:
    ret;
}
.visible .entry copy(.param .u64 from, .param .u64 to, .param .u32 count)
{
    .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %d<6>; .reg .f32 %f<5>;
    ld.param.u64 %d1, [from]; ld.param.u64 %d2, [to]; ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p bra done;
    mul.wide.u32 %d3, %r5, 16;
    add.u64 %d4, %d1, %d3; add.u64 %d5, %d2, %d3;
    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%d4];
    st.global.v4.f32 [%d5], {%f1, %f2, %f3, %f4};
done:
    ret;
}
"""

Pointer = ctypes.c_uint64


class Driver:
    """The calls that the loads need; an error ends the program."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self.stream = ctypes.c_void_p()
        context, module, device = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self._functions = {}
        for name in ("product", "copy"):
            self._functions[name] = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(self._functions[name]), module, name.encode())

    def call(self, name: str, *arguments: object) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result != 0:
            sys.exit(f"{name} failed with CUDA error {result}")

    def memory(self, size: int) -> Pointer:
        pointer = Pointer()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        self.call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        return pointer

    def event(self, *, timed: bool) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 0 if timed else 2)
        return event

    def launch(self, name: str, threads: int, *values: ctypes._SimpleCData[int]) -> None:
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        blocks = -(-threads // 256)
        self.call("cuLaunchKernel", self._functions[name], blocks, 1, 1, 256, 1, 1, 0, self.stream, places, None)


def prepared(driver: Driver, load: str) -> Callable[[], None]:
    """A function that queues one round of a load."""
    one, two, three = (driver.memory(COPIED) for _ in range(3))
    side, rows, vector = ctypes.c_uint32(SIDE), ctypes.c_uint32(SIDE), ctypes.c_uint32(8)
    few, all_of_it = ctypes.c_uint32(1 << 14), ctypes.c_uint32(COPIED // 16)

    def gemm() -> None:
        driver.launch("product", SIDE * SIDE, one, two, three, side, rows)

    def memory() -> None:
        driver.launch("copy", COPIED // 16, one, two, all_of_it)

    def small() -> None:
        for _ in range(64):
            driver.launch("copy", 1 << 14, one, two, few)

    def decode() -> None:
        for _ in range(12):
            driver.launch("product", 8 * SIDE, one, two, three, side, vector)
            driver.launch("copy", 1 << 14, one, two, few)
            driver.launch("copy", 1 << 14, two, three, few)

    if load != "graph":
        return {"gemm": gemm, "memory": memory, "small": small, "decode": decode}[load]
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuStreamBeginCapture_v2", driver.stream, 2)
    for _ in range(50):
        driver.launch("copy", 1 << 14, one, two, few)
    driver.call("cuStreamEndCapture", driver.stream, ctypes.byref(graph))
    driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    return lambda: driver.call("cuGraphLaunch", executable, driver.stream)


def gpu_seconds(driver: Driver, queue: Callable[[], None]) -> float:
    """GPU seconds of a round, from rounds that follow each other without a pause."""
    start, end = driver.event(timed=True), driver.event(timed=True)
    ends, rounds, took = time.monotonic() + MEASURED_SECONDS, 0, 0.0
    while time.monotonic() < ends:
        driver.call("cuEventRecord", start, driver.stream)
        for _ in range(AHEAD * 4):
            queue()
        driver.call("cuEventRecord", end, driver.stream)
        driver.call("cuEventSynchronize", end)
        milliseconds = ctypes.c_float()
        driver.call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        rounds, took = rounds + AHEAD * 4, took + milliseconds.value / 1e3
    return took / rounds


def rounds_in(driver: Driver, queue: Callable[[], None], seconds: float, ahead: int) -> float:
    """Rounds a second that are done, after a warm-up; the host is `ahead` rounds before the device."""
    done = [driver.event(timed=False) for _ in range(ahead)]
    count, counted, began = 0, 0, 0.0
    ends = time.monotonic() + WARM_UP_SECONDS
    while True:
        event = done[count % ahead]
        if count >= ahead:
            driver.call("cuEventSynchronize", event)
        now = time.monotonic()
        if now >= ends:
            if began:
                return (count - counted) / (now - began)
            began, counted, ends = now, count, now + seconds
        queue()
        driver.call("cuEventRecord", event, driver.stream)
        count += 1


def main() -> None:
    load, seconds = sys.argv[1], float(sys.argv[2])
    driver = Driver()
    queue = prepared(driver, load)
    told = {"gpu_seconds": gpu_seconds(driver, queue)} if "--measure" in sys.argv else {}
    rate = rounds_in(driver, queue, seconds, 1 if load == "decode" else AHEAD)
    print(json.dumps(told | {"rounds_per_second": rate}))


if __name__ == "__main__":
    main()
