"""Memory that one process shares with another: its owner pays for it, and nobody else, whatever the road."""

from __future__ import annotations

import pytest

from tests.daemon_process import wait_until
from tests.integration.limiter.conftest import GIB, MIB, Pod, heard

# Two processes of one program: the child imports. They talk over a socket, which carries descriptors too.
PAIR = """
        import array, mmap, socket, struct
        ours, theirs = socket.socketpair()
        child = os.fork()
        size = 600 * MIB
        length, none = ctypes.c_size_t(size), ctypes.c_uint64(0)
        def say(value=b"", descriptors=()):
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            theirs.sendmsg([struct.pack("I", len(value)) + value], rights if descriptors else [])
        def hear():
            message, rights, _, _ = theirs.recvmsg(4096, 64)
            numbers = array.array("i", rights[0][2]).tolist() if rights else []
            return message[4:], numbers
        def used():
            left, total = memory()
            return (total - left) // MIB
        class Properties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("kind", ctypes.c_int),
                        ("id", ctypes.c_int), ("meta", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]
        class PoolProperties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("kind", ctypes.c_int), ("id", ctypes.c_int),
                        ("security", ctypes.c_void_p), ("most", ctypes.c_size_t), ("reserved", ctypes.c_ubyte * 56)]
        if child:
            theirs = ours
        start()
"""

# What the owner makes and lets go, what the importer opens and closes.
PHYSICAL = """
        def make():
            handle, number = ctypes.c_uint64(), ctypes.c_int()
            must("cuMemCreate", ctypes.byref(handle), length, ctypes.byref(Properties(1, 1, 1, 0)), none)
            must("cuMemExportToShareableHandle", ctypes.byref(number), handle, 1, none)
            say(b"", [number.value])
            return lambda: must("cuMemRelease", handle)
        def open_it():
            _, numbers = hear()
            handle, address = ctypes.c_uint64(), ctypes.c_uint64()
            must("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(numbers[0]), 1)
            must("cuMemAddressReserve", ctypes.byref(address), length, ctypes.c_size_t(0), none, none)
            must("cuMemMap", address, length, ctypes.c_size_t(0), handle, none)
            must("cuMemRelease", handle)
            return lambda: must("cuMemUnmap", address, length)
"""
IPC = """
        class Handle(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_ubyte * 64)]
        def make():
            handle = Handle()
            result, pointer = alloc(size)
            must("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
            say(bytes(handle))
            return lambda: free(pointer)
        def open_it():
            message, _ = hear()
            pointer = ctypes.c_uint64()
            must("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), Handle.from_buffer_copy(message), 1)
            return lambda: must("cuIpcCloseMemHandle", pointer)
"""
POOL = """
        class Data(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_ubyte * 64)]
        def make():
            pool, number, pointer, data = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64(), Data()
            must("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(PoolProperties(1, 1, 1, 0)))
            must("cuMemPoolExportToShareableHandle", ctypes.byref(number), pool, 1, none)
            must("cuMemAllocFromPoolAsync", ctypes.byref(pointer), length, pool, None)
            must("cuCtxSynchronize")
            must("cuMemPoolExportPointer", ctypes.byref(data), pointer)
            say(bytes(data), [number.value])
            def let_go():
                must("cuMemFreeAsync", pointer, None)
                must("cuCtxSynchronize")
                must("cuMemPoolDestroy", pool)
            return let_go
        def open_it():
            message, numbers = hear()
            pool, pointer = ctypes.c_void_p(), ctypes.c_uint64()
            must("cuMemPoolImportFromShareableHandle", ctypes.byref(pool), ctypes.c_void_p(numbers[0]), 1, none)
            must("cuMemPoolImportPointer", ctypes.byref(pointer), pool, ctypes.byref(Data.from_buffer_copy(message)))
            def close():
                must("cuMemFreeAsync", pointer, None)
                must("cuCtxSynchronize")
            return close
"""

BOTH = """
        if child:
            let_go = make()
            hear()          # it is open there
            while_open = [used(), alloc(600 * MIB)[0]]
            say()
            hear()          # closed again
            closed = used()
            let_go()
            after = used()
            say()
            tell([while_open, closed, after, int(hear()[0])])
            os.waitpid(child, 0)
        else:
            close = open_it()
            seen = [used(), alloc(600 * MIB)[0], alloc(100 * MIB)[0]]
            assert seen == [600, 2, 0], seen
            say()
            hear()
            close()
            say()
            hear()          # the owner let go as well
            say(str(alloc(700 * MIB)[0]).encode())
            os._exit(0)
"""


ROADS = pytest.mark.parametrize("road", [PHYSICAL, IPC, POOL], ids=["physical", "ipc", "pool"])


@ROADS
def test_shared_memory_is_its_owner_s(pod: Pod, road: str) -> None:
    assert pod.ask(PAIR + road + BOTH) == [[700, 2], 700, 100, 0]


@pytest.mark.parametrize(
    ("road", "limited"),
    [
        pytest.param(PHYSICAL, True, id="physical"),
        pytest.param(IPC, True, id="ipc"),
        pytest.param(POOL, True, id="pool"),
        pytest.param(PHYSICAL, False, id="physical-driver-alone"),
        # What the simulated driver does by itself is the same on each road.
        pytest.param(IPC, False, id="ipc-driver-alone", marks=pytest.mark.slow),
        pytest.param(POOL, False, id="pool-driver-alone", marks=pytest.mark.slow),
    ],
)
def test_an_importer_holds_memory_after_its_owner_s_end(pod: Pod, road: str, limited: bool) -> None:
    """As drivers have it. The judge is the simulated driver; the daemon measures it: test_orphaned_import."""
    source = f"""
        {PAIR}
        {road}
        if child:  # the importer is the one that stays
            close = open_it()
            tell("open")
            sys.stdin.readline()
            say()
            os.waitpid(child, 0)
            tell("alone")
            sys.stdin.readline()
            close()
            tell("closed")
            sys.stdin.readline()
        else:
            keep = make()
            hear()
            os._exit(0)
    """
    context = pod.gpu()["memory"]["context_bytes"]
    with pod.running(source, limited=limited) as process:

        def holds(held: int) -> None:
            heard(process)
            wait_until(lambda: pod.gpu()["memory"]["used_bytes"] == held, f"{held} bytes held")

        for held in (600 * MIB + 2 * context, 600 * MIB + context, context):
            holds(held)
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()


HOME = """
        class Properties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("kind", ctypes.c_int),
                        ("id", ctypes.c_int), ("meta", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]
        none, length = ctypes.c_uint64(0), ctypes.c_size_t(600 * MIB)
        def create():
            handle = ctypes.c_uint64()
            return call("cuMemCreate", ctypes.byref(handle), length, ctypes.byref(Properties(1, 1, 1, 0)), none), handle
        def export(handle):
            number = ctypes.c_int()
            must("cuMemExportToShareableHandle", ctypes.byref(number), handle, 1, none)
            return number.value
        def come_home(number):
            handle = ctypes.c_uint64()
            return call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(number), 1), handle
        def release(handle):
            must("cuMemRelease", handle)
        def used():
            left, total = memory()
            return (total - left) // MIB
        start()
        result, first = create()
        number = export(first)
"""


def test_memory_that_comes_home_counts_until_its_last_handle_is_gone(pod: Pod) -> None:
    source = f"""
        {HOME}
        second, third = come_home(number)[1], come_home(export(first))[1]
        seen = [used()]
        for handle in (first, second):
            release(handle)
            seen += [used(), create()[0]]
        address = ctypes.c_uint64()
        must("cuMemAddressReserve", ctypes.byref(address), length, ctypes.c_size_t(0), none, none)
        must("cuMemMap", address, length, ctypes.c_size_t(0), third, none)
        release(third)
        seen += [used(), call("cuMemUnmap", address, ctypes.c_size_t(MIB)), used()]
        must("cuMemUnmap", address, length)
        tell([seen, used(), create()[0]])
    """
    assert pod.ask(source) == [[600, 600, 2, 600, 2, 600, 1, 600], 0, 0]


def test_memory_that_only_its_descriptor_held_is_reserved_anew(pod: Pod) -> None:
    source = f"""
        {HOME}
        release(first)
        _, other = alloc(500 * MIB)
        refused = come_home(number)[0]
        free(other)
        result, again = come_home(number)
        counted = [used(), alloc(500 * MIB)[0]]
        release(again)
        tell([refused, result, counted, used()])
    """
    assert pod.ask(source) == [2, 0, [600, 2], 0]
    assert pod.ask(source, limited=False)[0] == 0  # the control


def test_memory_of_another_interface_is_its_owner_s(pod: Pod) -> None:
    """As a graphics interface hands it out: by a descriptor. Mapping and freeing it changes nothing."""
    source = """
        class Handle(ctypes.Union):
            _fields_ = [("fd", ctypes.c_int), ("pointers", ctypes.c_void_p * 2)]
        class Description(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handle", Handle), ("size", ctypes.c_ulonglong),
                        ("flags", ctypes.c_uint), ("reserved", ctypes.c_uint * 16)]
        class Buffer(ctypes.Structure):
            _fields_ = [("offset", ctypes.c_ulonglong), ("size", ctypes.c_ulonglong), ("flags", ctypes.c_uint),
                        ("reserved", ctypes.c_uint * 16)]
        start()
        descriptor = os.memfd_create("exported")
        os.truncate(descriptor, 16 * MIB)
        memory_object, pointer = ctypes.c_void_p(), ctypes.c_uint64()
        description = Description(1, Handle(fd=descriptor), 16 * MIB)
        must("cuImportExternalMemory", ctypes.byref(memory_object), ctypes.byref(description))
        must("cuExternalMemoryGetMappedBuffer", ctypes.byref(pointer), memory_object, ctypes.byref(Buffer(0, 16 * MIB)))
        before = memory()
        result = [free(pointer), call("cuDestroyExternalMemory", memory_object)]
        tell([before, result, memory(), alloc(1024 * MIB)[0]])
    """
    assert pod.ask(source) == [[GIB, GIB], [0, 0], [GIB, GIB], 0]
