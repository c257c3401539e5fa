"""Bugs that users of other limiters reported, each as a test. The names say which."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.limiter.conftest import GIB, MIB, SECONDS, Pod, heard

PROPERTIES = """
        class Properties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("kind", ctypes.c_int),
                        ("id", ctypes.c_int), ("meta", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]
        def create(size, kind=1, number=0):
            handle, properties = ctypes.c_uint64(), Properties(1, 0, kind, number)
            return call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties),
                        ctypes.c_uint64(0)), handle
"""


def test_hami_core_93_memory_of_a_program_s_own_pool_is_freed(pod: Pod) -> None:
    source = """
        start()
        class Properties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("kind", ctypes.c_int), ("id", ctypes.c_int),
                        ("security", ctypes.c_void_p), ("most", ctypes.c_size_t), ("reserved", ctypes.c_ubyte * 56)]
        pool, pointer, properties = ctypes.c_void_p(), ctypes.c_uint64(), Properties(1, 0, 1, 0)
        must("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(properties))
        results = []
        for _ in range(5):
            size = ctypes.c_size_t(800 * MIB)
            results.append(call("cuMemAllocFromPoolAsync", ctypes.byref(pointer), size, pool, None))
            results.append(call("cuMemFreeAsync", pointer, None))
        must("cuCtxSynchronize")
        must("cuMemPoolDestroy", pool)
        tell([results, memory()[0]])
    """
    assert pod.ask(source) == [[0] * 10, GIB]


def test_hami_core_96_what_a_pool_once_held_is_not_held_against_it(pod: Pod) -> None:
    source = """
        start()
        pool, pointer, threshold = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64(1 << 60)
        must("cuDeviceGetDefaultMemPool", ctypes.byref(pool), 0)
        must("cuMemPoolSetAttribute", pool, 4, ctypes.byref(threshold))
        result, pointer = alloc(900 * MIB, "cuMemAllocAsync", None)
        must("cuMemFreeAsync", pointer, None)
        must("cuCtxSynchronize")
        must("cuMemPoolTrimTo", pool, ctypes.c_size_t(0))
        tell([result, memory()[0] // MIB, alloc(900 * MIB)[0]])
    """
    assert pod.ask(source) == [0, 1024, 0]


def test_hami_core_169_physical_memory_before_any_context_counts_on_its_own_device(pod: Pod) -> None:
    assert pod.ask(
        "        must('cuInit', 0)" + PROPERTIES + "\n        tell([create(800 * MIB)[0], create(800 * MIB)[0]])\n"
    ) == [
        0,
        2,
    ]
    assert pod.files.show()["total"] == 800 * MIB  # of the process that ended, until somebody recounts


@pytest.mark.parametrize("kind", [2, 3])
def test_hami_core_172_physical_memory_of_the_host_is_not_the_device_s(pod: Pod, kind: int) -> None:
    source = "        start()" + PROPERTIES + f"\n        tell([create(2 << 30, {kind})[0], memory()[0]])\n"
    limited, free = pod.ask(source), pod.ask(source, limited=False)
    assert limited == [free[0], GIB]


def test_hami_core_200_what_is_used_never_wraps(pod: Pod) -> None:
    source = """
        context = start()
        result, pointer = alloc(100 * MIB)
        answers = [free(pointer), free(pointer) != 0, free(pointer) != 0]
        result, pointer = alloc(100 * MIB)
        must("cuDevicePrimaryCtxReset_v2", 0)
        must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        must("cuCtxSetCurrent", context)
        tell([answers, free(pointer) != 0, list(memory())])
    """
    assert pod.ask(source) == [[0, True, True], True, [GIB, GIB]]


def test_hami_core_227_use_is_never_credited_to_another_process(pod: Pod) -> None:
    """The first of three dies; what the second frees and the third holds stays right."""
    holder = "start(); r, p = alloc(200 * MIB); tell(r); sys.stdin.readline(); tell(free(p)); sys.stdin.readline()"
    with pod.running(holder) as first, pod.running(holder) as second:
        assert heard(first) == heard(second) == 0
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        with pod.running(holder) as third:
            assert heard(third) == 0
            assert second.stdin is not None
            second.stdin.write("\n")
            second.stdin.flush()
            assert heard(second) == 0
            assert pod.ask("start(); tell(memory()[0])") == GIB - 200 * MIB


def test_hami_core_234_null_pointers_are_for_the_driver(pod: Pod) -> None:
    source = """
        start()
        tell([call("cuMemGetInfo_v2", None, None), call("cuDeviceTotalMem_v2", None, 0),
              call("cuMemAlloc_v2", None, ctypes.c_size_t(4096)), call("cuDeviceGetCount", None)])
    """
    assert pod.ask(source) == pod.ask(source, limited=False)


def test_hami_core_281_attributes_of_pointers_are_the_driver_s(pod: Pod) -> None:
    source = """
        start()
        result, pointer = alloc(MIB, "cuMemAllocManaged", 1)
        managed, several = ctypes.c_int(7), ctypes.c_int(7)
        one = call("cuPointerGetAttribute", ctypes.byref(managed), 8, pointer)
        which = (ctypes.c_int * 1)(8)
        data = (ctypes.c_void_p * 1)(ctypes.addressof(several))
        tell([result, one, managed.value, call("cuPointerGetAttributes", 1, which, data, pointer), several.value])
    """
    assert pod.ask(source) == pod.ask(source, limited=False)
    assert pod.ask(source)[2] == 1


def test_hami_core_79_no_form_of_memory_is_forgotten(pod: Pod) -> None:
    """Everything together, by the simulator's ledger: never over the limit."""
    source = (
        "        start()"
        + PROPERTIES
        + """
        held = 0
        class Flat(ctypes.Structure):
            _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("format", ctypes.c_int),
                        ("channels", ctypes.c_uint)]
        array, pitch, pointer = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_uint64()
        forms = [lambda: alloc(30 * MIB + 7)[0], lambda: alloc(30 * MIB + 7, "cuMemAllocManaged", 1)[0],
                 lambda: alloc(30 * MIB + 7, "cuMemAllocAsync", None)[0], lambda: create(32 * MIB)[0],
                 lambda: call("cuArrayCreate_v2", ctypes.byref(array), ctypes.byref(Flat(2001, 1003, 0x20, 4))),
                 lambda: call("cuMemAllocPitch_v2", ctypes.byref(pointer), ctypes.byref(pitch),
                              ctypes.c_size_t(10001), ctypes.c_size_t(3001), 4)]
        answers = [[form() for form in forms] for _ in range(12)]
        tell([sum(answer == 0 for row in answers for answer in row), sorted({a for row in answers for a in row})])
    """
    )
    granted, answers = pod.ask(source)
    assert granted > 20
    assert answers == [0, 2]
    memory = pod.gpu()["memory"]
    assert memory["peak_bytes"] - memory["context_bytes"] <= GIB


def test_hami_core_52_a_driver_that_looks_its_own_functions_up_does_not_go_round_in_circles(
    pod: Pod, build: Callable[..., Path]
) -> None:
    driver = build(
        "looking/libcuda.so.1",
        "fake_driver.c",
        flags=("-shared", "-fPIC", "-DLOOKS_ITSELF_UP", "-Wl,-soname,libcuda.so.1"),
    )
    pod.files.run("make", "GPU-00000000-0000-0000-0000-000000000001", GIB, 1_000_000)
    source = """
        start()
        function, status, pointer = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
        must("cuGetProcAddress_v2", b"cuMemAlloc", ctypes.byref(function), 12000, ctypes.c_uint64(0),
             ctypes.byref(status))
        allocate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(function.value)
        tell([status.value, allocate(ctypes.addressof(pointer), 2 * GIB), allocate(ctypes.addressof(pointer), GIB)])
    """
    assert pod.ask(source, LD_LIBRARY_PATH=str(driver.parent)) == [0, 2, 0]


def test_hami_820_processes_of_two_pid_namespaces_share_one_limit(pod: Pod) -> None:
    """As two containers of a Pod: each judges only its own, and both count."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False, timeout=SECONDS).returncode != 0:
        pytest.skip("a PID namespace can't be made here")
    with pod.running("start(); tell(alloc(700 * MIB)[0]); sys.stdin.readline()") as first:
        assert heard(first) == 0
        inside = pod.run([*unshare, *pod.program("start(); tell([alloc(700 * MIB)[0], alloc(200 * MIB)[0]])")])
        assert inside.stdout.strip() == "[2, 0]"
        # That one is dead, and only the daemon may say so: its bytes stay, on the high side.
        assert pod.ask("start(); tell([alloc(200 * MIB)[0], memory()[0] // MIB])") == [2, 124]


def test_nvshare_29_kinds_of_memory_stay_what_they_are(pod: Pod) -> None:
    source = """
        start()
        result, pointer = alloc(MIB)
        kind, managed = ctypes.c_int(7), ctypes.c_int(7)
        tell([call("cuPointerGetAttribute", ctypes.byref(kind), 2, pointer), kind.value,
              call("cuPointerGetAttribute", ctypes.byref(managed), 8, pointer), managed.value])
    """
    assert pod.ask(source) == pod.ask(source, limited=False)


def test_gpu_manager_35_nobody_waits_for_a_daemon(pod: Pod) -> None:
    """No daemon has ever been near these files: a program starts, allocates and ends."""
    assert pod.ask("start(); tell([alloc(100 * MIB)[0], launch(kernel(100))])", TF_LIMITER_WAIT_MS="0") == [0, 0]
