"""The faults of the vocabulary, as a CUDA program meets them; test_faults.py has NVML's side."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hypervisor.simulation.faults import parse_fault_text
from tests.integration.simulation.conftest import Simulation, heard

VIRTUAL = """\
version: 1
driver: {version: "580.65.06", cuda: 13000}
clock: {mode: virtual}
gpus: [{count: 2, profile: t4}]
"""
OUT_OF_MEMORY, NOT_FOUND, DRIVER_MISMATCH = 2, 500, 803

# `read()` is the code of a call and what it gives: bytes of memory that are free.
READY = """
import time
cuda = ctypes.CDLL("libcuda.so.1")
context, free, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
def read():
    code = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return [code, free.value]
def allocate():
    address = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096))
"""
# The same, a line for each line that is written to it.
ASKED = """
tell("ready")
for line in sys.stdin:
    tell(eval(line))
"""


def test_a_fault_changes_what_a_call_gives(simulate: Callable[[str], Simulation]) -> None:
    machine = simulate("t4")
    with machine.opened() as opened, machine.running(READY + ASKED) as child:
        assert heard(child) == "ready"

        def asked() -> list[int]:
            assert child.stdin is not None
            child.stdin.write("read()\n")
            child.stdin.flush()
            answer: list[int] = heard(child)
            return answer

        healthy = asked()
        for fault, seen in {
            "return=999": [999, healthy[1]],  # and nothing is written
            "return=zero": [0, 0],
            "value=12345": [0, 12345],
            "return=sentinel": [0, 2**63 - 1],
            "return=garbage": [0, 0xDEADBEEFDEADBEEF],
        }.items():
            number = opened.add_fault(parse_fault_text(f"call=cuMemGetInfo_v2,{fault}", 1))
            assert asked() == seen
            opened.clear_fault(number)
            assert asked() == healthy


def test_a_stale_value_stands_still(simulate: Callable[[str], Simulation]) -> None:
    machine = simulate("t4")
    with machine.opened() as opened:
        opened.add_fault(parse_fault_text("call=cuMemGetInfo_v2,return=stale", 1))
    first, second = machine.ask(READY + "first = read(); allocate(); tell([first, read()])")
    assert first == second


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("count=2", [2, 2, 0, 0, 0, 0]),
        ("every=3", [0, 0, 2, 0, 0, 2]),
        ("every=2,count=2", [0, 2, 0, 2, 0, 0]),
        ("gpu=0", [2, 2, 2, 2, 2, 2]),
        ("gpu=1", [0, 0, 0, 0, 0, 0]),
    ],
)
def test_a_fault_strikes_as_often_and_where_it_says(
    simulate: Callable[[str], Simulation], text: str, codes: list[int]
) -> None:
    machine = simulate(VIRTUAL)
    with machine.opened() as opened:
        opened.add_fault(parse_fault_text(f"call=cuMemAlloc_v2,return={OUT_OF_MEMORY},{text}", 2))
    assert machine.ask(READY + "tell([allocate() for _ in range(6)])") == codes


def test_a_fault_begins_and_ends_at_its_time_for_both_libraries(simulate: Callable[[str], Simulation]) -> None:
    machine = simulate(VIRTUAL)
    program = (
        READY
        + """
n.nvmlInit()
handle = n.nvmlDeviceGetHandleByIndex(0)
def power():
    try:
        return n.nvmlDeviceGetPowerUsage(handle) > 0
    except n.NVMLError as error:
        return error.value
"""
        + ASKED
    )
    with machine.opened() as opened, machine.running(program) as child:
        assert heard(child) == "ready"
        assert child.stdin is not None
        for call in ("cuMemAlloc_v2,return=2", "nvmlDeviceGetPowerUsage,return=999"):
            opened.add_fault(parse_fault_text(f"call={call},at=5s,for=30s", 2))

        def asked() -> list[int | bool]:
            assert child.stdin is not None
            child.stdin.write("[allocate(), power()]\n")
            child.stdin.flush()
            answer: list[int | bool] = heard(child)
            return answer

        assert asked() == [0, True]
        opened.step(5 * 10**9)
        assert asked() == [2, 999]
        opened.step(29 * 10**9)
        assert asked() == [2, 999]
        opened.step(10**9)
        assert asked() == [0, True]


def test_a_delayed_call_takes_longer(simulate: Callable[[str], Simulation]) -> None:
    machine = simulate("t4")
    with machine.opened() as opened:
        opened.add_fault(parse_fault_text("call=cuMemAlloc_v2,delay=200ms", 1))
    took, code = machine.ask(
        READY + "began = time.monotonic(); code = allocate(); tell([time.monotonic() - began, code])"
    )
    assert (took >= 0.2, code) == (True, 0)


@pytest.mark.parametrize(("kind", "others_hang"), [("hang", False), ("hang_lock", True)])
def test_a_hang_is_of_one_call_or_of_the_driver(
    simulate: Callable[[str], Simulation], kind: str, others_hang: bool
) -> None:
    """While one thread hangs in a call, another makes a call of another name."""
    machine = simulate("t4")
    program = (
        READY
        + """
import threading
version = ctypes.c_uint64()
def other():
    assert cuda.cuCtxSetCurrent(context) == 0  # may hang
    tell(["other", read()[0]])
hanging = threading.Thread(target=lambda: (cuda.cuCtxSetCurrent(context), tell(["first", allocate()])), daemon=True)
hanging.start()
sys.stdin.readline()
tell("begun")
threading.Thread(target=other, daemon=True).start()
sys.stdin.readline()
"""
    )
    with machine.opened() as opened:
        number = opened.add_fault(parse_fault_text(f"call=cuMemAlloc_v2,{kind}=forever", 1))
        with machine.running(program) as child:
            assert child.stdin is not None
            while opened.show()["faults"][0]["hits"] == 0:
                assert child.poll() is None
            child.stdin.write("\n")
            child.stdin.flush()
            assert heard(child) == "begun"
            if not others_hang:
                assert heard(child) == ["other", 0]
            opened.clear_fault(number)
            rest = [heard(child)] if not others_hang else [heard(child), heard(child)]
            assert sorted(rest) == ([["first", 0], ["other", 0]] if others_hang else [["first", 0]])


def test_a_missing_function_is_not_found(simulate: Callable[[str], Simulation]) -> None:
    machine = simulate("t4")
    program = """
    cuda = ctypes.CDLL("libcuda.so.1")
    pointer, status = ctypes.c_void_p(), ctypes.c_int()
    cuda.cuInit(0)
    def look(name):
        return [cuda.cuGetProcAddress(name, ctypes.byref(pointer), 13000, ctypes.c_uint64(0)),
                cuda.cuGetProcAddress_v2(name, ctypes.byref(pointer), 13000, ctypes.c_uint64(0), ctypes.byref(status)),
                status.value]
    tell([look(b"cuMemCreate"), look(b"cuMemRelease")])
    """
    assert machine.ask(program) == [[0, 0, 0], [0, 0, 0]]
    with machine.opened() as opened:
        opened.add_fault(parse_fault_text("symbol=cuMemCreate,missing", 1))
    assert machine.ask(program) == [[NOT_FOUND, 0, 1], [0, 0, 0]]


ORDER = """
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
n.nvmlInit()
def of_cuda(device):
    uuid = (ctypes.c_ubyte * 16)()
    assert cuda.cuDeviceGetUuid_v2(uuid, device) == 0
    return bytes(uuid).hex()
by_nvml = [n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())]
tell([[of_cuda(i) for i in range(len(by_nvml))], [u.partition("-")[2].replace("-", "") for u in by_nvml]])
"""


def test_a_renumbered_gpu_is_so_for_both_libraries(simulate: Callable[[str], Simulation]) -> None:
    machine = simulate("h100-sxm-80gb")
    before, same = machine.ask(ORDER)
    assert before == same
    with machine.opened() as opened:
        number = opened.add_fault(parse_fault_text("gpu=5,renumber=1", 8))
        by_cuda, by_nvml = machine.ask(ORDER)
        assert by_cuda == by_nvml == [before[0], before[5], *before[1:5], *before[6:]]
        opened.clear_fault(number)
    assert machine.ask(ORDER) == [before, before]


def test_a_library_of_before_does_not_fit_another_driver(simulate: Callable[[str], Simulation]) -> None:
    """As after an upgrade: who looked at the old driver is refused, who comes later is not."""
    machine = simulate("t4")
    program = """
    cuda = ctypes.CDLL("libcuda.so.1")
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    version = ctypes.c_int()
    assert nvml.nvmlInit_v2() == 0 and nvml.nvmlShutdown() == 0
    assert cuda.cuDriverGetVersion(ctypes.byref(version)) == 0
    tell("ready")
    sys.stdin.readline()
    tell([cuda.cuInit(0), nvml.nvmlInit_v2()])
    """
    with machine.opened() as opened, machine.running(program) as child:
        assert heard(child) == "ready"
        opened.add_fault(parse_fault_text("driver=590.44.01", 1))
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        assert heard(child) == [DRIVER_MISMATCH, 18]  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
    assert machine.ask("""
        n.nvmlInit()
        tell([ctypes.CDLL("libcuda.so.1").cuInit(0), n.nvmlSystemGetDriverVersion()])
    """) == [0, "590.44.01"]
