"""Threads that do at random what may be done with graphs, contexts, arrays and memory.

The judge is the simulator's ledger: its peak is never above the limit, and what is accounted is what it holds.
"""

from __future__ import annotations

import pytest

from tests.integration.limiter.conftest import GIB, MIB, Pod, heard
from tests.integration.limiter.test_contexts import ARRAY
from tests.integration.limiter.test_graph_memory import NODES

SECONDS = 4
SEEDS = (1, 2)

GRAPHS = (
    NODES
    + """
        import random
        ends = time.monotonic() + SECONDS
        def made(chance):
            graph, executable, node, kept = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), []
            must("cuGraphCreate", ctypes.byref(graph), 0)
            for _ in range(chance.randrange(1, 3)):
                properties = struct.pack("iiii72xQQQQ", 1, 0, 1, 0, 0, 0, chance.randrange(1, 300 * MIB), 0)
                parameters = ctypes.create_string_buffer(properties, 120)
                must("cuGraphAddMemAllocNode", ctypes.byref(node), graph, None, ctypes.c_size_t(0), parameters)
                address = ctypes.c_uint64(struct.unpack_from("Q", parameters, 112)[0])
                if chance.random() < 0.5:  # freed by the graph itself
                    after, place = (ctypes.byref(node), ctypes.c_size_t(1)), ctypes.c_void_p()
                    must("cuGraphAddMemFreeNode", ctypes.byref(place), graph, *after, address)
                else:
                    kept.append(address)
            flags = ctypes.c_uint64(chance.choice([0, 1]))  # 1: what it left is freed when it is launched again
            must("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, flags)
            return executable, kept
        def work(number):
            chance, graphs, plain = random.Random(SEED * 100 + number), [], []
            start()
            own = ctypes.c_void_p()
            must("cuStreamCreate", ctypes.byref(own), 1)
            def freed(graph):
                for address in graph[1]:
                    call("cuMemFreeAsync", address, own)
            while time.monotonic() < ends:
                match chance.randrange(10):
                    case 0 if len(graphs) < 5:
                        graphs.append(made(chance))
                    case 1 | 2 | 3 if graphs:
                        call("cuGraphLaunch", chance.choice(graphs)[0], own)
                    case 4 if graphs:
                        freed(chance.choice(graphs))
                    case 5:
                        call("cuDeviceGraphMemTrim", 0)
                    case 6:
                        result, pointer = alloc(chance.randrange(1, 200 * MIB))
                        plain += [pointer] if result == 0 else []
                    case 7 if plain:
                        free(plain.pop())
                    case 8:
                        call("cuStreamSynchronize", own)
                    case 9 if graphs and chance.random() < 0.3:
                        gone = graphs.pop()
                        freed(gone)
                        call("cuStreamSynchronize", own)
                        must("cuGraphExecDestroy", gone[0])
            for pointer in plain:
                free(pointer)
            for graph in graphs:
                freed(graph)
            call("cuStreamSynchronize", own)
            for graph in graphs:
                must("cuGraphExecDestroy", graph[0])
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        must("cuDeviceGraphMemTrim", 0)
        tell([used(), alloc(GIB)[0]])
        sys.stdin.readline()
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_graphs(pod: Pod, seed: int) -> None:
    source = GRAPHS.replace("SECONDS", str(SECONDS)).replace("SEED", str(seed))
    with pod.running(source) as process:
        assert heard(process) == [0, 0]
        memory = pod.gpu()["memory"]
        assert memory["peak_bytes"] - memory["context_bytes"] <= GIB
        assert memory["used_bytes"] - memory["context_bytes"] == pod.files.show()["total"] == GIB
    pod.files.set(2 * GIB)  # the control: the limit it was
    with pod.running(source) as process:
        heard(process)
    memory = pod.gpu()["memory"]
    assert memory["peak_bytes"] - memory["context_bytes"] > GIB


CONTEXTS = (
    ARRAY
    + """
    import random
    start()
    ends = time.monotonic() + SECONDS
    def work(number):
        chance, own, things, primary = random.Random(SEED * 100 + number), [], [], ctypes.c_void_p()
        def current():
            context = ctypes.c_void_p()
            call("cuCtxGetCurrent", ctypes.byref(context))
            return context.value
        while time.monotonic() < ends:
            match chance.randrange(9):
                case 0 if len(own) < 4:
                    context = ctypes.c_void_p()
                    if call("cuCtxCreate_v2", ctypes.byref(context), 0, 0) == 0:
                        own.append(context)
                case 1 if own:
                    context = own.pop(chance.randrange(len(own)))
                    if chance.random() < 0.3:
                        call("cuCtxSetCurrent", context)
                        call("cuCtxAttach", ctypes.byref(ctypes.c_void_p()), 0)
                        call("cuCtxDetach", context)
                        call("cuCtxDetach", context)
                    else:
                        call("cuCtxDestroy_v2", context)
                    things = [thing for thing in things if thing[2] != context.value]
                case 2 if own:
                    call("cuCtxSetCurrent", chance.choice(own))
                case 3 | 4:
                    kind, where = chance.choice([array, alloc]), current()
                    result, thing = kind(chance.randrange(1, 40) * MIB)
                    things += [(kind, thing, where)] if result == 0 else []
                case 5 if things:
                    kind, thing, _ = things.pop(chance.randrange(len(things)))
                    call("cuArrayDestroy", thing) if kind is array else free(thing)
                case 6 if number == 0 and chance.random() < 0.05:
                    call("cuDevicePrimaryCtxReset_v2", 0)
                case 7:
                    if call("cuDevicePrimaryCtxRetain", ctypes.byref(primary), 0) == 0:
                        call("cuCtxSetCurrent", primary)
                        call("cuDevicePrimaryCtxRelease_v2", 0)
        for context in own:
            call("cuCtxDestroy_v2", context)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    call("cuDevicePrimaryCtxReset_v2", 0)
    start()
    tell("ended")
    sys.stdin.readline()
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_contexts_with_arrays_and_memory(pod: Pod, seed: int) -> None:
    context = pod.gpu()["memory"]["context_bytes"]
    pod.files.make(4 * GIB, context_bytes=context)
    source = CONTEXTS.replace("SECONDS", str(SECONDS)).replace("SEED", str(seed))
    with pod.running(source) as process:
        assert heard(process) == "ended"
        memory = pod.gpu()["memory"]
        assert 4 * GIB - 100 * MIB < memory["peak_bytes"] <= 4 * GIB
        assert memory["used_bytes"] == pod.files.show()["total"] == context
