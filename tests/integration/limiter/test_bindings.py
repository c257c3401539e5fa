"""Physical memory that is only bound to something: it counts for as long as the driver holds it.

The judge is the driver that only counts, limiter/tests/fake_physical.c, or the ledger of the simulated one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hypervisor.simulation import machine as machines
from hypervisor.simulation.profiles import load_description
from tests.integration.limiter.conftest import GIB, MIB, Files, Pod, heard

UUID = "GPU-00000000-0000-0000-0000-000000000001"  # of the driver's only device

PHYSICAL = """
        start()
        class Properties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("kind", ctypes.c_int),
                        ("id", ctypes.c_int), ("meta", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]
        class Level(ctypes.Structure):
            _fields_ = [(name, ctypes.c_uint) for name in ("level", "layer", "x", "y", "z", "width", "height", "depth")]
        class MapInfo(ctypes.Structure):
            _fields_ = [("kind", ctypes.c_int), ("array", ctypes.c_void_p), ("part", ctypes.c_int),
                        ("gap", ctypes.c_int), ("place", Level), ("operation", ctypes.c_int),
                        ("handle_kind", ctypes.c_int), ("handle", ctypes.c_uint64), ("offset", ctypes.c_uint64),
                        ("devices", ctypes.c_uint), ("flags", ctypes.c_uint), ("reserved", ctypes.c_uint * 2)]
        class Sparse(ctypes.Structure):
            _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t),
                        ("format", ctypes.c_int), ("channels", ctypes.c_uint), ("flags", ctypes.c_uint)]
        size = ctypes.c_size_t(600 * MIB)
        zero, none = ctypes.c_size_t(0), ctypes.c_uint64(0)
        address = ctypes.c_uint64(0x10_0000_0000)
        def create():
            handle = ctypes.c_uint64()
            return call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(Properties(1, 0, 1, 0)), none), handle
        def multicast():
            handle = ctypes.c_uint64()
            must("cuMulticastCreate", ctypes.byref(handle), None)
            return handle
        def held():
            return ctypes.c_uint64.in_dll(cuda, "fake_used").value // MIB
        def counted():
            left, total = memory()
            return (total - left) // MIB
        def both():
            return [held(), counted(), create()[0]]
"""

ENDINGS = """
        def unbound(group):
            must("cuMulticastUnbind", group, 0, zero, size)
        def released(group):
            must("cuMemRelease", group)
        def unmapped(group):
            must("cuMemMap", address, size, zero, group, none)
            must("cuMemRelease", group)
            assert counted() == 600
            must("cuMemUnmap", address, size)
"""


@pytest.fixture(scope="module")
def library(build: Callable[..., Path]) -> Path:
    sources = ("fake_driver.c", "fake_physical.c")
    # -Bsymbolic as real drivers have it: what it calls of itself is its own.
    flags = ("-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")
    return build("physical/libcuda.so.1", *sources, flags=flags)


@pytest.fixture
def fake(pod: Pod, library: Path) -> Callable[[str], object]:
    pod.files.run("make", UUID, GIB, 1_000_000)

    def ask(source: str) -> object:
        return pod.ask(PHYSICAL + source, LD_LIBRARY_PATH=str(library.parent))

    return ask


@pytest.mark.parametrize(
    "bind",
    [
        'must("cuMulticastBindMem", group, zero, memory_handle, zero, size, none)',
        """must("cuMemMap", other, size, zero, memory_handle, none)
            must("cuMulticastBindAddr", group, zero, other, size, none)
            must("cuMemUnmap", other, size)""",
    ],
    ids=["handle", "address"],
)
def test_memory_bound_to_a_multicast_object_counts_until_it_is_let_go(fake: Callable[[str], object], bind: str) -> None:
    seen = fake(f"""
        {ENDINGS}
        other = ctypes.c_uint64(0x20_0000_0000)
        def life(group, end):
            result, memory_handle = create()
            {bind}
            must("cuMemRelease", memory_handle)
            before = both()
            end(group)
            after = [held(), counted()]
            result, again = create()
            must("cuMemRelease", again)
            return before, after, result
        def imported():
            group = ctypes.c_uint64()
            must("cuMemImportFromShareableHandle", ctypes.byref(group), None, 1)
            return group
        tell([life(*case) for case in [(multicast(), unbound), (multicast(), released), (multicast(), unmapped),
                                       (imported(), unbound), (imported(), released)]])
    """)
    assert seen == [[[600, 600, 2], [0, 0], 0]] * 5


@pytest.mark.parametrize(
    "bind",
    [
        'must("cuLogicalEndpointBindMem", 1, 0, none, handle, none, whole, none)',
        """must("cuMemMap", address, size, zero, handle, none)
        must("cuLogicalEndpointBindAddr", 1, 0, none, address, whole, none)
        must("cuMemUnmap", address, size)""",
    ],
    ids=["handle", "address"],
)
@pytest.mark.parametrize("end", ['"cuLogicalEndpointUnbind", 1, 0, none, whole', '"cuLogicalEndpointDestroy", 1'])
def test_memory_bound_to_a_logical_endpoint_counts_until_it_is_let_go(
    fake: Callable[[str], object], bind: str, end: str
) -> None:
    """Its number is that of the memory's handle, and of another thing."""
    assert fake(f"""
        whole = ctypes.c_uint64(600 * MIB)
        result, handle = create()
        {bind}
        must("cuMemRelease", handle)
        before = both()
        must({end})
        tell([result, before, both()])
    """) == [0, [600, 600, 2], [0, 0, 0]]


@pytest.mark.parametrize("end", ["unbound", "released"])
def test_memory_bound_to_a_multicast_object_is_the_simulated_driver_s_too(
    tmp_path: Path, limit_files: Path, end: str
) -> None:
    """Its ledger is the judge, where the machine has switches."""
    machine = tmp_path / "machine"
    machines.create(machine, load_description("h100-sxm-80gb"))
    with machines.opened(machine) as opened:
        uuid = opened.show()["gpus"][0]["uuid"]
    limits = tmp_path / "limits"
    limits.mkdir()
    switched = Pod(machine, Files(limits, limit_files, uuid))
    switched.files.make(GIB)
    source = f"""
        {PHYSICAL}
        {ENDINGS}
        class Group(ctypes.Structure):
            _fields_ = [("devices", ctypes.c_uint), ("size", ctypes.c_size_t),
                        ("handles", ctypes.c_ulonglong), ("flags", ctypes.c_ulonglong)]
        group, whole = ctypes.c_uint64(), Group(1, 600 * MIB, 0, 0)
        must("cuMulticastCreate", ctypes.byref(group), ctypes.byref(whole))
        must("cuMulticastAddDevice", group, 0)
        result, handle = create()
        must("cuMulticastBindMem", group, zero, handle, zero, size, none)
        must("cuMemRelease", handle)
        tell([result, counted(), create()[0]])
        sys.stdin.readline()
        {end}(group)
        tell([counted(), create()[0]])
        sys.stdin.readline()
    """
    context = switched.gpu()["memory"]["context_bytes"]
    with switched.running(source) as process:
        assert heard(process) == [0, 600, 2]
        assert switched.gpu()["memory"]["used_bytes"] == context + 600 * MIB
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert heard(process) == [0, 0]
        assert switched.gpu()["memory"]["used_bytes"] == context + 600 * MIB  # of the new one alone


SPARSE = """
        array = ctypes.c_void_p()
        def map_into(x, handle):
            info = MapInfo(0, array, 0, 0, Level(x=x), 1 if handle else 2, 0, handle or 0)
            must("cuMemMapArrayAsync", ctypes.byref(info), 1, None)
        sparse = Sparse(16, 16, 1, 1, 1, 0x40)
        must("cuMipmappedArrayCreate", ctypes.byref(array), ctypes.byref(sparse), 1)
        assert counted() == 0
        result, handle = create()
        map_into(64, handle.value)
        must("cuMemRelease", handle)
        before = [held(), create()[0]]
"""


def test_memory_mapped_into_a_sparse_array_counts_until_it_is_let_go(fake: Callable[[str], object]) -> None:
    assert fake(f"""
        {SPARSE}
        map_into(128, None)  # another part of it is another mapping
        before.append(held())
        before.append(create()[0])
        map_into(64, None)
        unmapped = [held(), counted()]
        result, handle = create()
        map_into(64, handle.value)
        must("cuMemRelease", handle)
        must("cuMipmappedArrayDestroy", array)
        tell([before, unmapped, held(), counted(), create()[0]])
    """) == [[600, 2, 600, 2], [0, 0], 0, 0, 0]
