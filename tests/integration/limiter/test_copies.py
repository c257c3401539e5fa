"""Copies within a device are charged where the limits say so, by whatever call they are made; transfers never are."""

from __future__ import annotations

import pytest

from hypervisor.limits import DeviceFlags
from tests.integration.limiter.conftest import GIB, Pod

TIMES = 3

FORMS = """
    _, here = alloc(2 * MIB)
    host = (ctypes.c_char * MIB)()
    Address, Size = ctypes.c_uint64, ctypes.c_size_t
    to, source, bytes_ = Address(here.value), Address(here.value + MIB), Size(MIB)
    outside = Address(ctypes.addressof(host))
    Pointer = ctypes.c_void_p
    def end(name, dimensions, *more):
        fields = [(name + each, Size) for each in dimensions] + [(name + "_type", ctypes.c_int)]
        fields += [(name + "_host", Pointer), (name + "_device", Address), (name + "_array", Pointer)]
        return fields + [(name + each, type_) for each, type_ in more]
    class Flat(ctypes.Structure):
        _fields_ = end("from", ("_x", "_y"), ("_pitch", Size)) + end("to", ("_x", "_y"), ("_pitch", Size))
        _fields_ += [("width", Size), ("height", Size)]
    lines = (("_context", Pointer), ("_pitch", Size), ("_height", Size))
    class Box(ctypes.Structure):
        _fields_ = end("from", ("_x", "_y", "_z", "_lod"), *lines) + end("to", ("_x", "_y", "_z", "_lod"), *lines)
        _fields_ += [("width", Size), ("height", Size), ("depth", Size)]
    ends = {"from_type": 4, "from_pitch": 1024, "to_type": 2, "to_device": to, "to_pitch": 1024, "width": 1024}
    def flat(source):
        return ctypes.byref(Flat(from_device=source, height=1024, **ends))
    def box(source, **more):
        return ctypes.byref(Box(from_device=source, from_height=32, to_height=32, height=32, depth=32, **ends, **more))
    def peers(source):
        return box(source, from_context=context, to_context=context)
    def batch(name, source, *more):
        none, one = Size(0), (ctypes.c_int * 16)(1)
        lists = (ctypes.byref(to), ctypes.byref(source), ctypes.byref(bytes_))
        must(name, *lists, Size(1), one, ctypes.byref(none), Size(1), *more, None)
    forms = {
        "cuMemcpy": lambda s: must("cuMemcpy", to, s, bytes_),
        "cuMemcpy_ptds": lambda s: must("cuMemcpy_ptds", to, s, bytes_),
        "cuMemcpyAsync": lambda s: must("cuMemcpyAsync", to, s, bytes_, None),
        "cuMemcpyAsync_ptsz": lambda s: must("cuMemcpyAsync_ptsz", to, s, bytes_, None),
        "cuMemcpy2D_v2": lambda s: must("cuMemcpy2D_v2", flat(s)),
        "cuMemcpy2DUnaligned_v2": lambda s: must("cuMemcpy2DUnaligned_v2", flat(s)),
        "cuMemcpy2DAsync_v2": lambda s: must("cuMemcpy2DAsync_v2", flat(s), None),
        "cuMemcpy3D_v2": lambda s: must("cuMemcpy3D_v2", box(s)),
        "cuMemcpy3DAsync_v2": lambda s: must("cuMemcpy3DAsync_v2", box(s), None),
        "cuMemcpyBatchAsync": lambda s: batch("cuMemcpyBatchAsync", s, ctypes.byref(Size(0))),
        "cuMemcpyBatchAsync_v2": lambda s: batch("cuMemcpyBatchAsync_v2", s),
    }
    within_only = {
        "cuMemcpyPeer": lambda s: must("cuMemcpyPeer", to, context, s, context, bytes_),
        "cuMemcpyPeerAsync": lambda s: must("cuMemcpyPeerAsync", to, context, s, context, bytes_, None),
        "cuMemcpy3DPeer": lambda s: must("cuMemcpy3DPeer", peers(s)),
        "cuMemcpy3DPeerAsync": lambda s: must("cuMemcpy3DPeerAsync", peers(s), None),
        "cuMemcpyDtoDAsync_v2": lambda s: must("cuMemcpyDtoDAsync_v2", to, s, bytes_, None),
    }
"""


def counted(pod: Pod, calls: str) -> dict[str, int]:
    """How many copies of each form came to the gate, of TIMES that were made."""
    lines = f"""
    context = start()
{FORMS}
    for name, copy in ({calls}).items():
        for _ in range({TIMES}):
            copy(source)
            must("cuCtxSynchronize")
        tell(name)
        sys.stdin.readline()
"""
    found: dict[str, int] = {}
    with pod.running(lines) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = 0
        while line := process.stdout.readline():
            launches = pod.files.show()["launches"]
            found[line.strip().strip('"')] = launches - before
            before = launches
            process.stdin.write("\n")
            process.stdin.flush()
    return found


@pytest.fixture
def charging(pod: Pod) -> Pod:
    pod.files.make(GIB, 500_000)
    pod.files.run("flags", int(DeviceFlags.CHARGE_COPIES))
    return pod


def test_each_form_of_copy_within_a_device_is_charged(charging: Pod) -> None:
    found = counted(charging, "forms | within_only")
    assert len(found) == 16
    assert found == dict.fromkeys(found, TIMES)


def test_transfers_from_the_host_are_not_charged(charging: Pod) -> None:
    found = counted(charging, "{name: lambda s, copy=copy: copy(outside) for name, copy in forms.items()}")
    assert len(found) == 11
    assert found == dict.fromkeys(found, 0)


def test_copies_are_free_where_the_limits_say_nothing_of_them(pod: Pod) -> None:
    pod.files.make(GIB, 500_000)
    found = counted(pod, "forms | within_only")
    assert len(found) == 16
    assert sum(found.values()) <= 1  # the first one may ask whether it is free
