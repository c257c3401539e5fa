"""Random histories of a program's memory: after each step the account is the simulator's ledger, to the byte."""

from __future__ import annotations

import random

import pytest

from tests.integration.limiter.conftest import GIB, Pod, heard

CLIENT = """
        context = start()
        stream, pool = ctypes.c_void_p(), ctypes.c_void_p()
        must("cuStreamCreate", ctypes.byref(stream), 1)
        class PoolProperties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("kind", ctypes.c_int), ("id", ctypes.c_int),
                        ("security", ctypes.c_void_p), ("most", ctypes.c_size_t), ("reserved", ctypes.c_ubyte * 56)]
        class Properties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("kind", ctypes.c_int),
                        ("id", ctypes.c_int), ("meta", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]
        must("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(PoolProperties(1, 0, 1, 0)))
        held = {"plain": [], "managed": [], "async": [], "physical": [], "graph": []}
        def take(kind, result, thing):
            if result == 0:
                held[kind].append(thing)
            return result
        def plain(size):
            return take("plain", *alloc(size))
        def managed(size):
            return take("managed", *alloc(size, "cuMemAllocManaged", 1))
        def pitch(size):
            pointer, row = ctypes.c_uint64(), ctypes.c_size_t()
            return take("plain", call("cuMemAllocPitch_v2", ctypes.byref(pointer), ctypes.byref(row),
                                      ctypes.c_size_t(size % 5000 + 1), ctypes.c_size_t(size // 5000 + 1), 4), pointer)
        def asynchronous(size):
            return take("async", *alloc(size, "cuMemAllocAsync", stream))
        def from_pool(size):
            pointer = ctypes.c_uint64()
            return take("async", call("cuMemAllocFromPoolAsync", ctypes.byref(pointer), ctypes.c_size_t(size), pool,
                                      stream), pointer)
        def physical(size):
            handle, properties = ctypes.c_uint64(), Properties(1, 0, 1, 0)
            whole = ctypes.c_size_t(size // (2 * MIB) * 2 * MIB + 2 * MIB)
            return take("physical", call("cuMemCreate", ctypes.byref(handle), whole, ctypes.byref(properties),
                                         ctypes.c_uint64(0)), handle)
        def graph(size):
            made, executable, pointer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
            must("cuStreamBeginCapture_v2", stream, 2)
            result = alloc(size, "cuMemAllocAsync", stream)
            if result[0] == 0:
                must("cuMemFreeAsync", result[1], stream)
            must("cuStreamEndCapture", stream, ctypes.byref(made))
            if result[0]:
                return result[0]
            must("cuGraphInstantiateWithFlags", ctypes.byref(executable), made, ctypes.c_uint64(0))
            return take("graph", call("cuGraphLaunch", executable, stream), executable)
        def release(which):
            kind = sorted(held)[which % len(held)]
            if not held[kind]:
                return 0
            thing = held[kind].pop(which % len(held[kind]))
            if kind == "plain":
                return call("cuMemFreeAsync", thing, stream) if which % 2 else free(thing)
            if kind == "managed":
                return free(thing)
            if kind == "async":
                return call("cuMemFreeAsync", thing, stream)
            return call({"physical": "cuMemRelease", "graph": "cuGraphExecDestroy"}[kind], thing)
        def launch_again(which):
            return call("cuGraphLaunch", held["graph"][which % len(held["graph"])], stream) if held["graph"] else 0
        def trim(which):
            return call("cuDeviceGraphMemTrim", 0) if which % 2 else call("cuMemPoolTrimTo", pool, ctypes.c_size_t(0))
        def reset(which):
            must("cuDevicePrimaryCtxReset_v2", 0)
            must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
            must("cuCtxSetCurrent", context)
            must("cuStreamCreate", ctypes.byref(stream), 1)
            for kind in ("plain", "managed", "async", "graph"):
                held[kind].clear()
            return 0
        tell(0)
        for line in sys.stdin:
            name, number = line.split()
            result = globals()[name](int(number))
            must("cuStreamSynchronize", stream)
            must("cuCtxSynchronize")
            left, total = memory()  # looks at what pools hold now
            tell([result, total - left])
"""
TAKING = ("plain", "managed", "pitch", "asynchronous", "from_pool", "physical", "graph")
OTHERS = ("release", "release", "release", "release", "launch_again", "trim")
STEPS = 120
KEPT_BYTES = GIB // 7000  # what a thread may keep of what it freed (kept.h): in the account, and its process's to have


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_the_account_is_the_ledger_after_every_step(pod: Pod, seed: int) -> None:
    choice = random.Random(seed)
    refused = 0
    with pod.running(CLIENT) as client:
        assert heard(client) == 0
        assert client.stdin is not None
        history = []
        for _ in range(STEPS):
            step = "reset" if choice.randrange(40) == 0 else choice.choice(TAKING + OTHERS)
            number = choice.randrange(1, 160 << 20) if step in TAKING else choice.randrange(1 << 20)
            history.append(f"{step} {number}")
            client.stdin.write(f"{step} {number}\n")
            client.stdin.flush()
            result, used = heard(client)
            assert result in (0, 2), history[-12:]
            refused += result == 2
            memory = pod.gpu()["memory"]
            context = memory["context_bytes"]
            account = pod.files.show()
            assert used == memory["used_bytes"] - context, history
            assert account["total"] == account["slot_bytes"], history
            assert 0 <= account["total"] - used <= KEPT_BYTES, history
            assert memory["peak_bytes"] - context <= GIB, history
    assert refused > 0  # the limit was met on the way
