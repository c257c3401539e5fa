"""Memory of graphs' allocation nodes, and of what is freed in stream order: held until the driver let go of it.

The judge is the simulator's own peak, less the context, which these limits do not count.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hypervisor.simulation import machine as machines
from hypervisor.simulation.profiles import load_description
from tests.integration.limiter.conftest import GIB, MIB, Files, Pod

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


# A graph of allocation nodes alone: what it leaves is for others to free.
NODES = (
    GRAPH
    + """
        import struct
        def allocating(*nodes):
            graph, executable, node, addresses = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), []
            must("cuGraphCreate", ctypes.byref(graph), 0)
            for device, size in nodes:
                # pinned, no handles, on a device; no access by others
                properties = struct.pack("iiii72xQQQQ", 1, 0, 1, device, 0, 0, size, 0)
                parameters = ctypes.create_string_buffer(properties, 120)
                must("cuGraphAddMemAllocNode", ctypes.byref(node), graph, None, ctypes.c_size_t(0), parameters)
                addresses.append(ctypes.c_uint64(struct.unpack_from("Q", parameters, 112)[0]))
            must("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
            return executable, addresses
        def launch_graph(graph):
            result = call("cuGraphLaunch", graph, stream)
            must("cuStreamSynchronize", stream)
            return result
        def free_all(addresses):
            for address in addresses:
                must("cuMemFreeAsync", address, stream)
            must("cuStreamSynchronize", stream)
"""
)


def test_a_graph_whose_memory_was_freed_and_given_up_has_to_find_room_again(pod: Pod) -> None:
    """That the device keeps as much, for another graph which has it in use, is nothing to it."""
    source = (
        NODES
        + """
        (one, its), (other, others) = allocating((0, 500 * MIB)), allocating((0, 500 * MIB))
        results = [launch_graph(other), launch_graph(one)]
        free_all(its)
        must("cuDeviceGraphMemTrim", 0)
        result, pointer = alloc(500 * MIB)
        results += [result, launch_graph(one), used(), free(pointer), launch_graph(one), used()]
        tell(results)
    """
    )
    assert pod.ask(source) == [0, 0, 0, 2, 1000, 0, 0, 1000]
    assert GIB - 100 * MIB < peak(pod) <= GIB
    assert pod.ask(source, limited=False)[:4] == [0, 0, 0, 0]
    assert peak(pod) > GIB


def test_graphs_that_were_launched_find_their_memory_again_without_room_for_more(pod: Pod) -> None:
    """Three at once in two streams, one of which leaves its memory allocated: again and again, at the limit."""
    source = (
        NODES
        + """
        second = ctypes.c_void_p()
        must("cuStreamCreate", ctypes.byref(second), 1)
        keeps, addresses = allocating((0, 300 * MIB))
        graphs, results = [captured(300 * MIB), captured(400 * MIB)], [launch_graph(keeps)]
        busy = kernel(20_000)
        must("cuLaunchKernel", busy, 1, 1, 1, 32, 1, 1, 0, stream, None, None)
        must("cuLaunchKernel", busy, 1, 1, 1, 32, 1, 1, 0, second, None, None)
        for _ in range(4):
            for graph, order in zip(graphs, (stream, second)):
                results.append(call("cuGraphLaunch", graph, order))
        results.append(alloc(100 * MIB)[0])
        must("cuCtxSynchronize")
        tell(results)
    """
    )
    answers = pod.ask(source)
    assert answers[:-1] == [0] * 9
    assert peak(pod) <= GIB


def test_memory_of_a_graph_is_not_taken_for_unknown_when_it_is_freed_at_once(pod: Pod) -> None:
    source = (
        NODES
        + """
        graph, addresses = allocating((0, 100 * MIB))
        results = [launch_graph(graph), call("cuGraphExecDestroy", graph), free(addresses[0]), used()]
        tell(results + [call("cuDeviceGraphMemTrim", 0), used()])
    """
    )
    assert pod.ask(source) == [0, 0, 0, 100, 0, 0]
    assert pod.files.show()["messages"] == []


def test_an_upload_takes_the_memory_as_a_launch_does(pod: Pod) -> None:
    source = (
        NODES
        + """
        def uploaded(graph):
            parameters = ctypes.create_string_buffer(struct.pack("QPPi4x", 2, stream.value, 0, 0))
            executable = ctypes.c_void_p()
            result = call("cuGraphInstantiateWithParams", ctypes.byref(executable), graph, parameters)
            return [result, struct.unpack_from("i", parameters, 24)[0]], executable
        def graph_of(size):
            graph, pointer = ctypes.c_void_p(), ctypes.c_uint64()
            must("cuStreamBeginCapture_v2", stream, 2)
            must("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(size), stream)
            must("cuMemFreeAsync", pointer, stream)
            must("cuStreamEndCapture", stream, ctypes.byref(graph))
            return graph
        first, executable = uploaded(graph_of(600 * MIB))
        held, graph = used(), graph_of(500 * MIB)
        result, pointer = alloc(400 * MIB)
        second = uploaded(graph)[0]
        free(pointer)
        large = allocating((0, 700 * MIB))[0]
        result, pointer = alloc(400 * MIB)
        tell([first, held, result, second, call("cuGraphUpload", large, stream), launch_graph(executable)])
    """
    )
    # The second and the one after it share what the device keeps, as far as that goes.
    assert pod.ask(source) == [[0, 0], 600, 0, [0, 0], 2, 0]
    assert peak(pod) <= GIB
    refused = source.replace("500 * MIB", "700 * MIB")
    assert pod.ask(refused) == [[0, 0], 600, 0, [2, 1], 2, 0]
    assert peak(pod) <= GIB
    assert pod.ask(refused, limited=False)[3:] == [[0, 0], 0, 0]


@pytest.fixture
def two(tmp_path: Path, limit_files: Path) -> Pod:
    """A Pod of a machine with several GPUs, limited to 1 GiB on each of the first two."""
    machine = tmp_path / "machine"
    machines.create(machine, load_description("a100-sxm-80gb"))
    with machines.opened(machine) as opened:
        uuids = [gpu["uuid"] for gpu in opened.show()["gpus"][:2]]
    directory = tmp_path / "limits"
    directory.mkdir()
    files = Files(directory, limit_files, uuids[0])
    files.make(GIB)
    files.run("also", uuids[1], GIB, 1_000_000)
    return Pod(machine, files)


def test_nodes_on_several_devices_count_each_on_its_own(two: Pod) -> None:
    source = (
        NODES
        + """
        both, addresses = allocating((0, 600 * MIB), (1, 700 * MIB))
        results = [launch_graph(both), launch_graph(allocating((0, 500 * MIB), (1, MIB))[0]),
                   launch_graph(allocating((1, 400 * MIB), (0, MIB))[0]), used()]
        free_all(addresses)
        tell(results + [launch_graph(allocating((0, 500 * MIB), (1, MIB))[0]), launch_graph(allocating((2, MIB))[0])])
    """
    )
    assert two.ask(source) == [0, 2, 2, 600, 0, 2]
    with machines.opened(two.machine) as machine:
        memories = [gpu["memory"] for gpu in machine.show()["gpus"][:3]]
    assert [memory["peak_bytes"] <= GIB + memory["context_bytes"] for memory in memories] == [True] * 3
    assert memories[1]["peak_bytes"] >= 700 * MIB
    assert memories[2]["peak_bytes"] == 0
    assert two.ask(source, limited=False)[:3] == [0, 0, 0]


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
