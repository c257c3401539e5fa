"""Faults and losses, as nvidia-ml-py meets them; and events that tell of them."""

from __future__ import annotations

import pytest

from hypervisor.simulation.faults import parse_fault_text
from tests.integration.simulation.conftest import heard

VIRTUAL = """\
version: 1
driver: {version: "580.65.06", cuda: 13000}
clock: {mode: virtual}
gpus: [{count: 1, profile: t4}]
"""

READ = """
n.nvmlInit()
def read(index=0):
    h = n.nvmlDeviceGetHandleByIndex(index)
    out = {}
    for name, call in {
        "name": lambda: n.nvmlDeviceGetName(h),
        "temperature": lambda: n.nvmlDeviceGetTemperature(h, 0),
        "power": lambda: n.nvmlDeviceGetPowerUsage(h),
        "total": lambda: n.nvmlDeviceGetMemoryInfo(h).total,
        "energy": lambda: n.nvmlDeviceGetTotalEnergyConsumption(h),
        "util": lambda: n.nvmlDeviceGetUtilizationRates(h).gpu,
    }.items():
        try:
            out[name] = call()
        except n.NVMLError as error:
            out[name] = f"error {error.value}"
        except UnicodeDecodeError:
            out[name] = "not text"
    return out
"""


@pytest.mark.parametrize(
    ("fault", "changed"),
    [
        ("call=nvmlDeviceGetPowerUsage,return=3", {"power": "error 3"}),
        ("call=nvmlDeviceGetPowerUsage,return=zero", {"power": 0}),
        ("call=nvmlDeviceGetPowerUsage,value=123", {"power": 123}),
        ("call=nvmlDeviceGetPowerUsage,return=sentinel", {"power": 2**32 - 1}),
        ("call=nvmlDeviceGetMemoryInfo,return=zero", {"total": 0}),
        ("call=nvmlDeviceGetMemoryInfo,return=sentinel", {"total": 2**63 - 1}),
        ("call=nvmlDeviceGetName,return=garbage", {"name": "not text"}),
        ("symbol=nvmlDeviceGetTemperature,missing", {"temperature": "error 13"}),
        (
            "call=nvmlDeviceGet?*e,gpu=0,return=999",
            {"name": "error 999", "power": "error 999", "temperature": "error 999"},
        ),
        ("call=nvmlDeviceGetPowerUsage,gpu=1,return=3", {}),
        ("call=nvmlDeviceGetPowerUsage,pid=1,return=3", {}),
    ],
)
def test_a_fault_changes_what_it_names_and_nothing_else(simulate, fault: str, changed: dict[str, object]) -> None:
    simulation = simulate("h100-sxm-80gb")
    # energy grows by itself and is compared as there or not
    program = READ + "out = read(); out['energy'] = out['energy'] >= 0; tell(out)"
    healthy = simulation.ask(program)
    with simulation.opened() as machine:
        number = machine.add_fault(parse_fault_text(fault, machine.gpu_count))
        assert simulation.ask(program) == healthy | changed
        machine.clear_fault(number)
    assert simulation.ask(program) == healthy


def test_values_reach_the_figures_of_structures(simulate) -> None:
    simulation = simulate("h100-sxm-80gb")
    program = """
    n.nvmlInit()
    h = n.nvmlDeviceGetHandleByIndex(0)
    mine, other, rows = n.nvmlDeviceGetPciInfo(h), n.nvmlDeviceGetNvLinkRemotePciInfo(h, 0), \
        n.nvmlDeviceGetRowRemapperHistogram(h)
    tell([mine.bus, mine.busId, other.bus, other.pciDeviceId, rows.max, rows.none, n.nvmlDeviceGetMarginTemperature(h)])
    """
    healthy = simulation.ask(program)
    assert healthy[1] == "00000000:18:00.0"
    assert 7 not in healthy
    with simulation.opened() as machine:
        number = machine.add_fault(parse_fault_text("call=nvmlDeviceGet*,value=7", 8))
        assert simulation.ask(program) == [7, "00000000:18:00.0", 7, 7, 7, 7, 7]
        machine.clear_fault(number)
        machine.add_fault(parse_fault_text("call=nvmlDeviceGet*,return=zero", 8))
        assert simulation.ask(program) == [0, "", 0, 0, 0, 0, 0]


def test_a_fault_with_a_count_ends_by_itself(simulate) -> None:
    simulation = simulate("t4")
    with simulation.opened() as machine:
        machine.add_fault(parse_fault_text("call=nvmlDeviceGetPowerUsage,return=10,count=2", 1))
    powers = simulation.ask(READ + "tell([read()['power'] for _ in range(3)])")
    assert powers == ["error 10", "error 10", 10_000]


def test_a_stale_reading_stands_still(simulate) -> None:
    simulation = simulate(VIRTUAL)
    program = READ + "tell(read()['energy'])"
    with simulation.opened() as machine:
        machine.step(10**9)
        number = machine.add_fault(parse_fault_text("call=nvmlDeviceGetTotalEnergyConsumption,return=stale", 1))
        first = simulation.ask(program)
        machine.step(10**9)
        assert simulation.ask(program) == first > 0  # from another process, later
        machine.clear_fault(number)
        # 10 W idle for 2 s, less the window that is not full yet
        assert 2 * first <= simulation.ask(program) <= 20_000


def test_a_delayed_call_takes_longer(simulate) -> None:
    simulation = simulate("t4")
    with simulation.opened() as machine:
        machine.add_fault(parse_fault_text("call=nvmlDeviceGetPowerUsage,delay=300ms", 1))
    waited, power = simulation.ask(
        READ
        + """
import time
h = n.nvmlDeviceGetHandleByIndex(0)
began = time.monotonic()
power = n.nvmlDeviceGetPowerUsage(h)
tell([time.monotonic() - began, power])
"""
    )
    assert waited >= 0.3
    assert power == 10_000


def test_a_hang_lasts_until_the_fault_is_cleared(simulate) -> None:
    simulation = simulate("t4")
    with simulation.opened() as machine:
        number = machine.add_fault(parse_fault_text("call=nvmlDeviceGetPowerUsage,hang=forever", 1))
        with simulation.running(
            READ + "h = n.nvmlDeviceGetHandleByIndex(0)\ntell(0)\ntell(n.nvmlDeviceGetPowerUsage(h))"
        ) as child:
            assert heard(child) == 0
            while machine.show()["faults"][0]["hits"] == 0:
                assert child.poll() is None
            machine.clear_fault(number)
            assert heard(child) == 10_000


def test_a_failing_init_leaves_nothing_behind(simulate) -> None:
    simulation = simulate("t4")
    with simulation.opened() as machine:
        machine.add_fault(parse_fault_text("call=nvmlInit*,return=18,count=1", 1))
    assert simulation.ask("""
        library = ctypes.CDLL("libnvidia-ml.so.1")
        count = ctypes.c_uint()
        tell([library.nvmlInit_v2(), library.nvmlDeviceGetCount_v2(ctypes.byref(count)), library.nvmlInit_v2(),
              library.nvmlDeviceGetCount_v2(ctypes.byref(count)), count.value])
    """) == [18, 1, 0, 0, 1]


LOST = """
n.nvmlInit()
def code(function, *arguments):
    try:
        function(*arguments)
    except n.NVMLError as error:
        return error.value
    return 0
"""


def test_a_lost_gpu_is_lost_to_every_call_and_the_others_are_not(simulate) -> None:
    simulation = simulate("h100-sxm-80gb")
    with (
        simulation.opened() as machine,
        simulation.running(
            LOST
            + """
hs = [n.nvmlDeviceGetHandleByIndex(i) for i in range(8)]
tell("ready")
for line in sys.stdin:
    tell([n.nvmlDeviceGetCount(), code(n.nvmlDeviceGetHandleByIndex, 3), code(n.nvmlDeviceGetUUID, hs[3]),
          code(n.nvmlDeviceGetEncoderStats, hs[3]), code(n.nvmlDeviceGetTopologyCommonAncestor, hs[0], hs[3]),
          [code(n.nvmlDeviceGetUtilizationRates, h) for h in hs]])
"""
        ) as child,
    ):
        assert heard(child) == "ready"
        assert child.stdin is not None
        number = machine.add_fault(parse_fault_text("gpu=3,xid=79,lost", 8))
        child.stdin.write("\n")
        child.stdin.flush()
        assert heard(child) == [8, 15, 15, 15, 15, [0, 0, 0, 15, 0, 0, 0, 0]]
        machine.clear_fault(number)
        child.stdin.write("\n")
        child.stdin.flush()
        assert heard(child) == [8, 0, 0, 3, 0, [0] * 8]


def test_a_vanished_gpu_is_gone_from_the_next_enumeration(simulate) -> None:
    simulation = simulate("h100-sxm-80gb")
    uuids = [gpu["uuid"] for gpu in simulation.show()["gpus"]]
    with simulation.opened() as machine:
        machine.add_fault(parse_fault_text("gpu=2,vanish", 8))
    seen = simulation.ask("""
        n.nvmlInit()
        tell([n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())])
    """)
    assert seen == uuids[:2] + uuids[3:]


EVENTS = """
n.nvmlInit()
hs = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
events = n.nvmlEventSetCreate()
for h in hs:
    n.nvmlDeviceRegisterEvents(h, n.nvmlEventTypeXidCriticalError & n.nvmlDeviceGetSupportedEventTypes(h), events)
tell("ready")
def wait(milliseconds):
    try:
        data = n.nvmlEventSetWait_v2(events, milliseconds)
    except n.NVMLError as error:
        return error.value
    return [n.nvmlDeviceGetIndex(data.device) if data.eventData != 79 else "lost", data.eventType, data.eventData,
            data.gpuInstanceId]
"""


def test_an_xid_wakes_who_waits(simulate) -> None:
    simulation = simulate("h100-sxm-80gb")
    with simulation.opened() as machine:
        machine.add_fault(parse_fault_text("gpu=5,xid=31", 8))  # before the registration: never told
        with simulation.running(EVENTS + "tell(wait(20000)); tell(wait(20000)); tell(wait(1))") as child:
            assert heard(child) == "ready"
            machine.add_fault(parse_fault_text("gpu=6,xid=48", 8))
            assert heard(child) == [6, 8, 48, 0xFFFFFFFF]
            machine.add_fault(parse_fault_text("gpu=3,xid=79,lost", 8))
            assert heard(child) == ["lost", 8, 79, 0xFFFFFFFF]
            assert heard(child) == 10


def test_a_timed_fault_is_an_event_without_anybody_else_looking(simulate) -> None:
    simulation = simulate("t4")
    with simulation.running(EVENTS + "tell(wait(20000))") as child:
        assert heard(child) == "ready"
        with simulation.opened() as machine:
            machine.add_fault(parse_fault_text("gpu=0,xid=13,at=400ms", 1))
        assert heard(child) == [0, 8, 13, 0xFFFFFFFF]


def test_two_sets_each_get_the_event_and_a_freed_one_is_refused(simulate) -> None:
    simulation = simulate("t4")
    with (
        simulation.opened() as machine,
        simulation.running(
            EVENTS
            + """
other = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(hs[0], n.nvmlEventTypeXidCriticalError, other)
tell("both")
first = wait(20000)
n.nvmlEventSetFree(events)
freed = wait(1)
events = other
tell([first, freed, wait(20000), wait(1)])
"""
        ) as child,
    ):
        assert [heard(child), heard(child)] == ["ready", "both"]
        machine.add_fault(parse_fault_text("gpu=0,xid=62", 1))
        assert heard(child) == [[0, 8, 62, 0xFFFFFFFF], 2, [0, 8, 62, 0xFFFFFFFF], 10]
