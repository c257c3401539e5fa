"""Memory of graphs' allocation nodes, and of what is freed in stream order: held until the driver let go of it.

The judge is the simulator's own peak, less the context, which these limits do not count.
"""

from __future__ import annotations

from tests.integration.limiter.conftest import GIB, MIB, Pod

GRAPH = """
        start()
        stream = ctypes.c_void_p()
        must("cuStreamCreate", ctypes.byref(stream), 1)
        def captured(size):
            graph, executable, pointer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
            must("cuStreamBeginCapture_v2", stream, 2)
            must("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(size), stream)
            must("cuMemFreeAsync", pointer, stream)
            must("cuStreamEndCapture", stream, ctypes.byref(graph))
            must("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
            return executable
        def used():
            left, total = memory()
            return (total - left) // MIB
"""


def peak(pod: Pod) -> int:
    memory = pod.gpu()["memory"]
    return int(memory["peak_bytes"] - memory["context_bytes"])


def test_a_captured_allocation_counts_when_the_graph_is_launched(pod: Pod) -> None:
    source = (
        GRAPH
        + """
        graph = captured(600 * MIB)
        before = used()
        first = call("cuGraphLaunch", graph, stream)
        must("cuStreamSynchronize", stream)
        held = used()
        second = [call("cuGraphLaunch", graph, stream) for _ in range(3)]
        must("cuStreamSynchronize", stream)
        tell([before, first, held, second, used(), alloc(400 * MIB)[0]])
    """
    )
    assert pod.ask(source) == [0, 0, 600, [0, 0, 0], 600, 0]
    assert peak(pod) <= GIB


def test_a_graph_that_needs_more_than_is_left_is_not_launched(pod: Pod) -> None:
    source = (
        GRAPH
        + """
        graph = captured(600 * MIB)
        result, pointer = alloc(512 * MIB)
        refused = call("cuGraphLaunch", graph, stream)
        free(pointer)
        tell([result, refused, call("cuGraphLaunch", graph, stream)])
    """
    )
    assert pod.ask(source) == [0, 2, 0]
    assert peak(pod) <= GIB
    assert pod.ask(source, limited=False) == [0, 0, 0]  # the control: the limit it was
    pod.files.set(2 * GIB)
    assert pod.ask(source) == [0, 0, 0]


def test_graphs_share_what_the_device_keeps_for_them(pod: Pod) -> None:
    source = (
        GRAPH
        + """
        results = []
        for graph in [captured(700 * MIB), captured(800 * MIB), captured(900 * MIB)]:
            results.append(call("cuGraphLaunch", graph, stream))
            must("cuStreamSynchronize", stream)
        tell([results, used(), call("cuGraphExecDestroy", graph), used(), call("cuDeviceGraphMemTrim", 0), used()])
    """
    )
    assert pod.ask(source) == [[0, 0, 0], 900, 0, 900, 0, 0]
    assert peak(pod) <= GIB


def test_what_graphs_keep_is_given_up_before_anybody_is_refused(pod: Pod) -> None:
    source = (
        GRAPH
        + """
        must("cuGraphLaunch", captured(900 * MIB), stream)
        must("cuStreamSynchronize", stream)
        tell([used(), alloc(1000 * MIB)[0]])
    """
    )
    assert pod.ask(source) == [900, 0]
    assert peak(pod) <= GIB


def test_plain_memory_freed_in_stream_order_is_held_until_the_stream_is_there(pod: Pod) -> None:
    source = (
        GRAPH
        + """
        busy = kernel(200_000)
        result, pointer = alloc(700 * MIB)
        must("cuLaunchKernel", busy, 1, 1, 1, 32, 1, 1, 0, stream, None, None)
        must("cuMemFreeAsync", pointer, stream)
        held = used()
        again = alloc(700 * MIB)[0]
        must("cuStreamSynchronize", stream)
        tell([held, again, used()])
    """
    )
    assert pod.ask(source) == [700, 0, 700]
    assert peak(pod) <= GIB


def test_odd_sizes_count_as_the_driver_hands_them_out(pod: Pod) -> None:
    """Each of these takes 512 bytes more than it asks for, less one: together they would exceed the limit."""
    pod.files.set(64 * MIB)
    granted = pod.ask("""
        start()
        count = 0
        while alloc(512 * 64 + 1)[0] == 0:
            count += 1
        tell(count)
    """)
    assert granted == 64 * MIB // (512 * 65)
    assert 64 * MIB - 512 * 65 < peak(pod) <= 64 * MIB
