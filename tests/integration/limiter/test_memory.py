"""The memory limit is exact, over all forms of allocation, processes and deaths."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.limiter.conftest import GIB, MIB, Pod, heard

MANAGED_UNCOUNTED = 4  # enum hv_device_flags

FILL = """
    start()
    held = []
    while len(held) < 64:
        result, pointer = {call}
        if result:
            break
        held.append(pointer)
    tell([len(held), result])
"""

FORMS = {
    "plain": "alloc(100 * MIB)",
    "managed": "alloc(100 * MIB, 'cuMemAllocManaged', 1)",
    "async": "alloc(100 * MIB, 'cuMemAllocAsync', None)",
    "async-per-thread": "alloc(100 * MIB, 'cuMemAllocAsync_ptsz', None)",
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_refused_at_the_limit(pod: Pod, form: str) -> None:
    fill = FILL.format(call=FORMS[form])
    assert pod.ask(fill) == [10, 2]
    assert pod.ask(fill, limited=False) != [10, 2]  # the controls: the limit it was that refused
    pod.files.set(2 * GIB)
    assert pod.ask(fill) == [20, 2]


def test_a_pitch_counts_as_the_driver_chose_it(pod: Pod) -> None:
    pitch, total = pod.ask("""
        start()
        pointer, pitch = ctypes.c_uint64(), ctypes.c_size_t()
        must("cuMemAllocPitch_v2", ctypes.byref(pointer), ctypes.byref(pitch), ctypes.c_size_t(1000),
             ctypes.c_size_t(1000), 4)
        left, total = memory()
        tell([pitch.value, total - left])
    """)
    assert total == pitch * 1000


def test_what_is_freed_can_be_had_again(pod: Pod) -> None:
    assert pod.ask("""
        start()
        for _ in range(200):
            result, pointer = alloc(600 * MIB)
            assert result == 0
            assert alloc(600 * MIB)[0] == 2
            assert free(pointer) == 0
        tell(memory())
    """) == [GIB, GIB]


def test_a_refused_program_lives_on_and_the_driver_was_not_asked(pod: Pod) -> None:
    assert pod.ask("start(); tell([alloc(2 * GIB)[0], alloc(1 << 60)[0], alloc(900 * MIB)[0]])") == [2, 2, 0]
    assert pod.gpu()["memory"]["peak_bytes"] < 900 * MIB + pod.gpu()["memory"]["context_bytes"] + MIB


def test_a_pointer_that_nobody_knows_is_for_the_driver_to_judge(pod: Pod) -> None:
    """HAMi-core 257: what is not known is freed all the same."""
    source = "start(); tell([free(ctypes.c_uint64(12345)), call('cuMemFree_v2', ctypes.c_uint64(0))])"
    assert pod.ask(source) == pod.ask(source, limited=False)


def test_memory_of_a_pool_is_not_taken_for_unknown_when_it_is_freed_at_once(pod: Pod) -> None:
    assert pod.ask("""
        start()
        result, pointer = alloc(MIB, "cuMemAllocAsync", None)
        must("cuCtxSynchronize")
        tell([result, free(pointer)])
    """) == [0, 0]
    assert pod.files.show()["messages"] == []


def test_a_failed_free_keeps_the_bytes(pod: Pod) -> None:
    assert pod.ask("""
        start()
        result, pointer = alloc(700 * MIB)
        inside = ctypes.c_uint64(pointer.value + 4096)
        tell([result, free(inside) != 0, alloc(700 * MIB)[0], free(pointer), alloc(700 * MIB)[0]])
    """) == [0, True, 2, 0, 0]


def test_physical_memory_is_held_as_long_as_it_is_mapped(pod: Pod) -> None:
    assert pod.ask("""
        start()
        class Properties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("kind", ctypes.c_int),
                        ("id", ctypes.c_int), ("meta", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]
        properties = Properties(1, 0, 1, 0)
        size = ctypes.c_size_t(600 * MIB)
        def create():
            handle = ctypes.c_uint64()
            return call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), ctypes.c_uint64(0)), handle
        results = []
        result, handle = create()
        results.append(result)
        address = ctypes.c_uint64()
        must("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), ctypes.c_uint64(0),
             ctypes.c_uint64(0))
        must("cuMemMap", address, size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        must("cuMemRelease", handle)
        results.append(create()[0])
        must("cuMemUnmap", address, size)
        results.append(create()[0])
        tell(results)
    """) == [0, 2, 0]


def test_the_view_is_the_limit_for_cuda_and_nvml(pod: Pod) -> None:
    view = pod.ask("""
        import pynvml as n
        start()
        result, pointer = alloc(256 * MIB)
        total = ctypes.c_size_t()
        must("cuDeviceTotalMem_v2", ctypes.byref(total), 0)
        n.nvmlInit()
        handle = n.nvmlDeviceGetHandleByIndex(0)
        one = n.nvmlDeviceGetMemoryInfo(handle)
        two = n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2)
        tell([list(memory()), total.value,
              [one.free, one.total, one.used], [two.free, two.total, two.used, two.reserved]])
    """)
    free, total, used = 768 * MIB, GIB, 256 * MIB
    assert view == [[free, total], total, [free, total, used], [free, total, used, 0]]


def test_a_limit_above_the_card_shows_the_card(pod: Pod) -> None:
    """HAMi-core PR 82: a total larger than the card."""
    pod.files.set(1 << 43)
    source = "start(); tell(memory())"
    assert pod.ask(source) == pod.ask(source, limited=False)


def test_a_limit_below_what_is_held_shows_nothing_left(pod: Pod) -> None:
    with pod.running(
        "start(); alloc(512 * MIB); tell(0); sys.stdin.readline(); tell([*memory(), alloc(4096)[0]])"
    ) as process:
        heard(process)
        pod.files.set(256 * MIB)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert heard(process) == [0, 256 * MIB, 2]


def test_a_device_outside_the_file_gives_nothing(pod: Pod) -> None:
    other = pod.files.uuid[:-1] + ("0" if pod.files.uuid[-1] != "0" else "1")
    with pod.running("start(); tell(0); sys.stdin.readline(); tell([alloc(4096)[0], *memory()])") as process:
        assert heard(process) == 0
        pod.files.run("set", other, GIB, 1_000_000)
        assert process.stdin is not None
        print(file=process.stdin, flush=True)
        assert heard(process) == [2, 0, 0]
    source = 'must("cuInit", 0); tell(call("cuDevicePrimaryCtxRetain", ctypes.byref(ctypes.c_void_p()), 0))'
    assert pod.ask(source) == 2


def test_processes_share_the_limit(pod: Pod) -> None:
    with pod.running("start(); tell(alloc(700 * MIB)[0]); sys.stdin.readline()") as first:
        assert heard(first) == 0
        assert pod.ask("start(); tell([memory()[0], alloc(700 * MIB)[0], alloc(300 * MIB)[0]])") == [324 * MIB, 2, 0]


def test_what_a_killed_process_held_comes_back(pod: Pod) -> None:
    with pod.running("start(); tell(alloc(900 * MIB)[0]); sys.stdin.readline()") as process:
        assert heard(process) == 0
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert pod.ask("start(); tell([memory()[0], alloc(900 * MIB)[0]])") == [GIB, 0]
    assert pod.files.show()["live"] == 1


def test_a_child_of_fork_has_a_slot_of_its_own(pod: Pod) -> None:
    assert pod.ask("""
        start()
        result, pointer = alloc(400 * MIB)
        child = os.fork()
        if child == 0:
            os._exit(call("cuInit", 0) if alloc(900 * MIB)[0] != 0 else 77)
        status = os.waitpid(child, 0)[1]
        tell([result, memory()[0] // MIB, free(pointer), memory()[0] // MIB])
    """) == [0, 624, 0, 1024]


def test_racing_processes_that_die_never_exceed_the_limit(pod: Pod) -> None:
    """By the simulator's own peak, less the contexts, which these limits do not count."""
    racer = """
        start()
        tell(0)
        import random
        held = []
        while True:
            result, pointer = alloc(random.randrange(1, 64) * MIB)
            if result == 0:
                held.append(pointer)
            elif held:
                free(held.pop(random.randrange(len(held))))
    """
    processes = 6
    context = pod.gpu()["memory"]["context_bytes"]
    for _ in range(2):
        running = [pod.running(racer) for _ in range(processes)]
        entered = [context_manager.__enter__() for context_manager in running]
        for process in entered:
            heard(process)
        for process in entered:
            process.kill()
        for context_manager in running:
            context_manager.__exit__(None, None, None)
    assert pod.gpu()["memory"]["peak_bytes"] <= GIB + processes * context
    assert pod.ask("start(); tell(memory())") == [GIB, GIB]
    assert pod.files.show()["total"] == 0


def test_host_memory_has_no_part_in_the_limit(pod: Pod) -> None:
    assert pod.ask("""
        start()
        result, pointer = alloc(1000 * MIB)
        host = ctypes.c_void_p()
        tell([result, call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(64 * MIB), 0),
              call("cuMemFreeHost", host), memory()[0] // MIB])
    """) == [0, 0, 0, 24]


def test_pinned_host_memory_has_a_quota_of_the_pod_s_own(pod: Pod) -> None:
    source = """
        import mmap
        start()
        def pinned(size, name, *more):
            address = ctypes.c_void_p()
            return call(name, ctypes.byref(address), ctypes.c_size_t(size), *more), address
        results = [pinned(60 * MIB, "cuMemAllocHost_v2"), pinned(60 * MIB, "cuMemHostAlloc", 0),
                   pinned(30 * MIB, "cuMemHostAlloc", 0)]
        pages = mmap.mmap(-1, 20 * MIB)
        place = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(pages)))
        register = lambda: call("cuMemHostRegister_v2", place, ctypes.c_size_t(20 * MIB), 0)
        refused = register()
        must("cuMemFreeHost", results[2][1])
        registered = register()
        tell([[result for result, _ in results], refused, registered, pinned(30 * MIB, "cuMemHostAlloc", 0)[0],
              call("cuMemHostUnregister", place), pinned(30 * MIB, "cuMemHostAlloc", 0)[0], memory()[0]])
    """
    unlimited = [[0, 0, 0], 0, 712, 0, 0, 0, GIB]  # it is registered already
    assert pod.ask(source) == unlimited
    pod.files.run("host-memory", 100 * MIB)
    assert pod.ask(source) == [[0, 2, 0], 2, 0, 2, 0, 0, GIB]
    pod.files.run("host-memory", 200 * MIB)
    assert pod.ask(source) == unlimited


def test_a_pool_on_the_host_is_in_its_quota_as_long_as_it_holds_memory(pod: Pod) -> None:
    source = """
        start()
        class Properties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("kind", ctypes.c_int), ("id", ctypes.c_int),
                        ("security", ctypes.c_void_p), ("most", ctypes.c_size_t), ("reserved", ctypes.c_ubyte * 56)]
        pool, keep = ctypes.c_void_p(), ctypes.c_uint64(1 << 40)
        must("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(Properties(1, 0, 2, 0)))
        must("cuMemPoolSetAttribute", pool, 4, ctypes.byref(keep))
        def take(size):
            pointer = ctypes.c_uint64()
            return call("cuMemAllocFromPoolAsync", ctypes.byref(pointer), ctypes.c_size_t(size), pool, None), pointer
        def pinned():
            address = ctypes.c_void_p()
            result = call("cuMemAllocHost_v2", ctypes.byref(address), ctypes.c_size_t(64 * MIB))
            return result, address
        first, pointer = take(64 * MIB)
        results = [first, take(64 * MIB)[0], pinned()[0], memory()[0]]
        must("cuMemFreeAsync", pointer, None)
        must("cuCtxSynchronize")
        result, address = pinned()  # what the pool keeps is given up before anything is refused
        results += [result, take(64 * MIB)[0]]
        must("cuMemFreeHost", address)
        results += [take(64 * MIB)[0]]
        must("cuMemPoolDestroy", pool)
        tell(results)
    """
    assert pod.ask(source) == [0, 0, 0, GIB, 0, 0, 0]
    pod.files.run("host-memory", 100 * MIB)
    assert pod.ask(source) == [0, 2, 2, GIB, 0, 2, 0]


def test_physical_memory_of_the_host_is_in_its_quota_as_long_as_it_is_mapped(pod: Pod) -> None:
    source = """
        start()
        class Properties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("kind", ctypes.c_int),
                        ("id", ctypes.c_int), ("meta", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]
        size, zero, none = ctypes.c_size_t(60 * MIB), ctypes.c_size_t(0), ctypes.c_uint64(0)
        def create():
            handle, properties = ctypes.c_uint64(), Properties(1, 0, 2, 0)
            return call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), none), handle
        address = ctypes.c_uint64()
        first, handle = create()
        must("cuMemAddressReserve", ctypes.byref(address), size, zero, none, none)
        must("cuMemMap", address, size, zero, handle, none)
        must("cuMemRelease", handle)
        mapped = create()[0]
        must("cuMemUnmap", address, size)
        last, handle = create()
        tell([first, mapped, last, call("cuMemRelease", handle), create()[0], memory()[0]])
    """
    assert pod.ask(source) == [0, 0, 0, 0, 0, GIB]
    pod.files.run("host-memory", 100 * MIB)
    assert pod.ask(source) == [0, 2, 0, 0, 0, GIB]


def test_managed_memory_counts_unless_the_device_says_otherwise(pod: Pod) -> None:
    """As on machines where host and device memory are one: there it can't be told whose it is."""
    source = "start(); tell([alloc(700 * MIB, 'cuMemAllocManaged', 1)[0], alloc(700 * MIB)[0], memory()[0] // MIB])"
    assert pod.ask(source) == [0, 2, 324]
    pod.files.run("flags", MANAGED_UNCOUNTED)
    assert pod.ask(source) == [0, 0, 324]


def test_a_pool_counts_what_it_holds(pod: Pod) -> None:
    """What was freed in stream order is held until the stream was waited for; the simulator's peak is the judge."""
    results = pod.ask("""
        start()
        result, pointer = alloc(600 * MIB, "cuMemAllocAsync", None)
        must("cuMemFreeAsync", pointer, None)
        again, pointer = alloc(700 * MIB, "cuMemAllocAsync", None)
        held = memory()[1] - memory()[0]
        beside = alloc(600 * MIB)[0]
        must("cuMemFreeAsync", pointer, None)
        must("cuCtxSynchronize")
        tell([result, again, held // MIB, beside, memory()[0] // MIB, alloc(1000 * MIB)[0]])
    """)
    assert results == [0, 0, 700, 2, 1024, 0]
    assert pod.gpu()["memory"]["peak_bytes"] <= GIB + pod.gpu()["memory"]["context_bytes"]


def test_a_pool_gives_up_what_it_keeps_before_anybody_is_refused(pod: Pod) -> None:
    assert pod.ask("""
        start()
        pool, threshold = ctypes.c_void_p(), ctypes.c_uint64(1 << 62)
        must("cuDeviceGetDefaultMemPool", ctypes.byref(pool), 0)
        must("cuMemPoolSetAttribute", pool, 4, ctypes.byref(threshold))
        result, pointer = alloc(800 * MIB, "cuMemAllocAsync", None)
        must("cuMemFreeAsync", pointer, None)
        must("cuCtxSynchronize")
        kept = (memory()[1] - memory()[0]) // MIB
        tell([result, kept, alloc(800 * MIB)[0]])
    """) == [0, 800, 0]


def test_what_a_context_held_goes_with_it(pod: Pod) -> None:
    assert pod.ask("""
        context = start()
        alloc(900 * MIB)
        must("cuDevicePrimaryCtxReset_v2", 0)
        must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        must("cuCtxSetCurrent", context)
        first = [memory()[0] // MIB, alloc(900 * MIB)[0]]
        must("cuDevicePrimaryCtxReset_v2", 0)
        own = ctypes.c_void_p()
        must("cuCtxCreate_v2", ctypes.byref(own), 0, 0)
        alloc(900 * MIB)
        must("cuCtxDestroy_v2", own)
        must("cuCtxCreate_v2", ctypes.byref(own), 0, 0)
        tell([*first, memory()[0] // MIB])
    """) == [1024, 0, 1024]


def test_a_new_context_is_counted_until_it_is_measured(pod: Pod) -> None:
    pod.files.run("make", pod.files.uuid, GIB, 1_000_000, 300 * MIB)
    assert pod.ask("start(); start(); tell([memory()[0] // MIB, alloc(800 * MIB)[0], alloc(700 * MIB)[0]])") == [
        724,
        2,
        0,
    ]
    pod.files.run("make", pod.files.uuid, 200 * MIB, 1_000_000, 300 * MIB)
    assert pod.ask("must('cuInit', 0); tell(call('cuDevicePrimaryCtxRetain', ctypes.byref(ctypes.c_void_p()), 0))") == 2


@pytest.mark.parametrize("limit", [GIB, 200 * MIB])
def test_a_context_that_no_wrapper_saw_is_counted_with_the_first_allocation(pod: Pod, limit: int) -> None:
    """As runtimes make it: through a table of the driver's own. Here the driver's function is called by its address."""
    folders = pod.variables()["LD_LIBRARY_PATH"].split(":")
    library = next(path for folder in folders if (path := Path(folder) / "libcuda.so.1").exists())
    symbols = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True, check=True).stdout
    offset = next(
        int(line.split()[0], 16) for line in symbols.splitlines() if line.endswith(" cuDevicePrimaryCtxRetain")
    )
    pod.files.make(limit, context_bytes=300 * MIB)
    source = f"""
        must("cuInit", 0)
        maps = [line.split() for line in open("/proc/self/maps") if line.endswith("/libcuda.so.1\\n")]
        base = min(int(line[0].split("-")[0], 16) - int(line[2], 16) for line in maps)
        context = ctypes.c_void_p()
        retain = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)(base + {offset})
        assert retain(ctypes.addressof(context), 0) == 0
        must("cuCtxSetCurrent", context)
        first = alloc(4096)[0]
        tell([first, memory()[0] // MIB, alloc(800 * MIB)[0], alloc(700 * MIB)[0]])
    """
    expected = [0, 723, 2, 0] if limit == GIB else [2, 0, 2, 2]
    assert pod.ask(source) == expected
    assert pod.files.show()["total"] >= 300 * MIB


def test_a_pod_sees_its_own_processes(pod: Pod) -> None:
    holder = "start(); alloc(100 * MIB); tell(os.getpid()); sys.stdin.readline()"
    listing = """
        import pynvml as n
        start()
        n.nvmlInit()
        handle = n.nvmlDeviceGetHandleByIndex(0)
        count = ctypes.c_uint(0)
        size = n.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None)
        tell([os.getpid(), size, count.value, [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(handle)]])
    """
    with pod.running(holder) as ours, pod.running(holder, limited=False) as theirs:
        inside, outside = heard(ours), heard(theirs)
        itself, size, count, seen = pod.ask(listing)
        assert set(seen) == {inside, itself}
        assert (size, count) == (7, 2)
        assert {inside, outside} <= set(pod.ask(listing, limited=False)[3])
