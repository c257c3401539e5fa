"""Contexts that end with memory in them, and what other threads or contexts have beside them."""

from __future__ import annotations

import pytest

from tests.integration.limiter.conftest import GIB, MIB, Pod, heard

# An array of floats, of whole MiB.
ARRAY = """
    def array(size, name="cuArrayCreate_v2"):
        import struct
        made = ctypes.c_void_p()
        return call(name, ctypes.byref(made), struct.pack("QQII", 8192, size // 32768, 0x20, 1)), made
"""

# Threads allocate in the primary context while another one resets it: what they got of the next one is not gone.
RACE = """
    start()
    may_end = threading.Event()
    def allocate():
        context = ctypes.c_void_p()
        while not may_end.is_set():
            call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
            call("cuCtxSetCurrent", context)
            MAKE(64 * MIB)
    def reset():
        while not may_end.is_set():
            call("cuDevicePrimaryCtxReset_v2", 0)
    threads = [threading.Thread(target=run) for run in (allocate, allocate, allocate, reset)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    may_end.set()
    for thread in threads:
        thread.join()
    tell("ended")
    sys.stdin.readline()
    must("cuDevicePrimaryCtxReset_v2", 0)
    start()
    tell([memory()[0], alloc(GIB)[0]])
"""


@pytest.mark.parametrize("make", ["alloc", pytest.param("array", marks=pytest.mark.slow)])
def test_memory_of_the_next_context_does_not_go_with_the_one_before(pod: Pod, make: str) -> None:
    with pod.running(ARRAY + RACE.replace("MAKE", make)) as process:
        assert heard(process) == "ended"
        memory = pod.gpu()["memory"]
        contexts = memory["used_bytes"] % (64 * MIB) and memory["context_bytes"]  # none, or the primary one
        assert memory["used_bytes"] - contexts <= pod.files.show()["total"] <= GIB
        # one context may begin before the one before it has ended
        assert memory["peak_bytes"] <= GIB + 2 * memory["context_bytes"]
        assert process.stdin is not None
        print(file=process.stdin, flush=True)
        assert heard(process) == [GIB, 0]  # and nothing stayed accounted that is gone


@pytest.mark.parametrize("make", ["alloc", "array"])
@pytest.mark.parametrize("end", ["cuCtxDestroy_v2", "cuCtxDetach"])
def test_what_a_context_held_goes_with_it_while_there_are_others(pod: Pod, end: str, make: str) -> None:
    source = """
    context = start()
    kept, kept_array = alloc(100 * MIB)[1], array(24 * MIB)[1]
    results = []
    for _ in range(12):
        own = ctypes.c_void_p()
        must("cuCtxCreate_v2", ctypes.byref(own), 0, 0)
        results.append(MAKE(200 * MIB)[0])
        must(END, own)
    must("cuCtxSetCurrent", context)
    left = memory()[0] // MIB
    must("cuArrayDestroy", kept_array)
    tell([results, left, free(kept), memory()[0] // MIB])
    """
    assert pod.ask(ARRAY + source.replace("END", repr(end)).replace("MAKE", make)) == [[0] * 12, 900, 0, 1024]


def test_a_context_that_is_used_once_more_ends_with_its_last_use(pod: Pod) -> None:
    source = """
    start()
    own, same, left = ctypes.c_void_p(), ctypes.c_void_p(), []
    must("cuCtxCreate_v2", ctypes.byref(own), 0, 0)
    must("cuCtxAttach", ctypes.byref(same), 0)
    array(200 * MIB)
    for _ in range(2):
        must("cuCtxDetach", own)
        left.append(memory()[0] // MIB)
    tell([own.value == same.value, left])
    """
    assert pod.ask(ARRAY + source) == [True, [824, 1024]]


def test_a_primary_context_that_threads_begin_at_once_counts_once(pod: Pod) -> None:
    """Each of them finds it absent; and who resets one that is absent gives nothing back of the others."""
    pod.files.make(GIB, context_bytes=100 * MIB)
    source = """
        must("cuInit", 0)
        threads, counted = 8, []
        together = threading.Barrier(threads)
        def begin():
            context = ctypes.c_void_p()
            together.wait()
            must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
            must("cuCtxSetCurrent", context)
        for _ in range(10):
            begun = [threading.Thread(target=begin) for _ in range(threads)]
            for thread in begun:
                thread.start()
            for thread in begun:
                thread.join()
            must("cuDevicePrimaryCtxReset_v2", 0)
            own = ctypes.c_void_p()
            must("cuCtxCreate_v2", ctypes.byref(own), 0, 0)
            counted.append((GIB - memory()[0]) // MIB)
            must("cuDevicePrimaryCtxReset_v2", 0)
            counted.append((GIB - memory()[0]) // MIB)
            must("cuCtxDestroy_v2", own)
        tell(sorted(set(counted)))
    """
    assert pod.ask(source) == [100]
    assert pod.files.show()["total"] == 0


@pytest.mark.parametrize("limit", [2**64 - 1, 2**43])
def test_without_a_limit_little_is_kept_all_the_same(pod: Pod, limit: int) -> None:
    pod.files.make(limit)
    source = """
        start()
        for size in (600 * MIB, 400_000, 300_000, MIB - 512, 2 * MIB):
            free(alloc(size)[1])
        tell("freed")
        sys.stdin.readline()
    """
    with pod.running(source) as process:
        assert heard(process) == "freed"
        assert pod.files.show()["total"] < MIB


# Each pool is destroyed while its memory is in use; the driver holds that until it is freed.
POOLS = """
    import struct
    start()
    # pinned memory, no handles, on a device, the first one
    properties = ctypes.create_string_buffer(struct.pack("iiii", 1, 0, 1, 0), 256)
    pointers, results = [], []
    for _ in range(4):
        pool, pointer = ctypes.c_void_p(), ctypes.c_uint64()
        must("cuMemPoolCreate", ctypes.byref(pool), properties)
        must("cuDeviceSetMemPool", 0, pool)
        results.append(call("cuMemAllocFromPoolAsync", ctypes.byref(pointer), ctypes.c_size_t(400 * MIB), pool, None))
        must("cuMemPoolDestroy", pool)
        if results[-1] == 0:
            pointers.append(pointer)
    usual, now = ctypes.c_void_p(), ctypes.c_void_p()
    must("cuDeviceGetDefaultMemPool", ctypes.byref(usual), 0)
    must("cuDeviceGetMemPool", ctypes.byref(now), 0)
    tell([results, memory()[0] // MIB, usual.value == now.value])
    sys.stdin.readline()
    for pointer in pointers:
        must("cuMemFreeAsync", pointer, None)
    must("cuCtxSynchronize")
    tell([memory()[0], alloc(GIB)[0]])
    sys.stdin.readline()
"""


def test_memory_of_a_destroyed_pool_counts_until_it_is_freed(pod: Pod) -> None:
    with pod.running(POOLS) as process:
        assert heard(process) == [[0, 0, 2, 2], 224, True]
        memory = pod.gpu()["memory"]
        assert memory["used_bytes"] - memory["context_bytes"] == pod.files.show()["total"] == 800 * MIB
        assert process.stdin is not None
        print(file=process.stdin, flush=True)
        assert heard(process) == [GIB, 0]
