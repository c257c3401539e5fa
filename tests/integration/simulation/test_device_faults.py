"""Faults of whole GPUs and of the driver: readings that are set, resets, renumbering, another driver, held locks."""

from __future__ import annotations

import select

import pytest
from hypervisor.simulation._machine import ffi, lib

from hypervisor.simulation.faults import LINK_READINGS, READINGS, parse_fault_text
from tests.integration.simulation.conftest import heard

READ = """
import time
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
def code(function, *arguments):
    try:
        return function(*arguments)
    except n.NVMLError as error:
        return f"error {error.value}"
def fabric():
    info = n.c_nvmlGpuFabricInfo_t()
    n.nvmlDeviceGetGpuFabricInfo(h, ctypes.byref(info))
    return info.state
def sram():  # in all, in SRAM, in device memory; and whether there are too many
    status = n.c_nvmlEccSramErrorStatus_v1_t()
    status.version = n.nvmlEccSramErrorStatus_v1
    n.nvmlDeviceGetSramEccErrorStatus(h, ctypes.byref(status))
    at = lambda location: n.nvmlDeviceGetMemoryErrorCounter(h, 1, 0, location)
    return [n.nvmlDeviceGetTotalEccErrors(h, 1, 0), at(7), at(2), status.bThresholdExceeded]
def stamped_ahead():  # seconds, of the newest sample of the card
    time.sleep(0.4)
    return n.nvmlDeviceGetSamples(h, 1, 0)[1][-1].timeStamp / 1e6 - time.time()
def field(number, scope=0):
    value = n.nvmlDeviceGetFieldValues(h, [(number, scope)])[0]
    return [value.nvmlReturn, value.value.ullVal]
"""


def test_the_two_tables_of_readings_are_one() -> None:
    names = []
    while name := lib.sim_reading_name(len(names)):
        names.append(ffi.string(name).decode())
    assert sorted(names) == sorted([*READINGS, *(f"link<n>.{name}" for name in LINK_READINGS)])


@pytest.mark.parametrize(
    ("profile", "reading", "value", "program", "expected"),
    [
        ("h100-sxm-80gb", "ecc_uncorrected_volatile", 3, "n.nvmlDeviceGetTotalEccErrors(h, 1, 0)", 3),
        ("h100-sxm-80gb", "ecc_corrected_aggregate", 9, "field(5)", [0, 9]),
        ("h100-sxm-80gb", "sram_uncorrected_volatile", 3, "sram()", [3, 3, 0, 0]),
        ("h100-sxm-80gb", "sram_threshold_exceeded", 1, "sram()", [0, 0, 0, 1]),
        ("h100-sxm-80gb", "remap_pending", 1, "[n.nvmlDeviceGetRemappedRows(h), field(144), field(230)]", None),
        ("h100-sxm-80gb", "remap_failed", 1, "n.nvmlDeviceGetRemappedRows(h)[3]", 1),
        ("h100-sxm-80gb", "recovery_action", 2, "field(230)", [0, 2]),
        ("h100-sxm-80gb", "sample_ahead_ms", 3_600_000, "round(stamped_ahead() / 3600)", 1),
        ("h100-sxm-80gb", "throttle_reasons", 0x40, "n.nvmlDeviceGetCurrentClocksEventReasons(h)", 0x40),
        (
            "h100-sxm-80gb",
            "link3.active",
            0,
            "[n.nvmlDeviceGetNvLinkState(h, 3), n.nvmlDeviceGetNvLinkState(h, 4)]",
            [0, 1],
        ),
        ("h100-sxm-80gb", "link3.replay_errors", 5, "[field(161, 3), field(161, 4)]", [[0, 5], [0, 0]]),
        ("h100-sxm-80gb", "link3.crc_errors", 6, "field(163, 3)", [0, 6]),
        ("a100-sxm-80gb", "link3.recovery_errors", 7, "n.nvmlDeviceGetNvLinkErrorCounter(h, 3, 1)", 7),
        (
            "h100-sxm-80gb",
            "fabric_state",
            2,
            "fabric()",
            2,
        ),
        ("h100-sxm-80gb", "pcie_replays", 11, "n.nvmlDeviceGetPcieReplayCounter(h)", 11),
        (
            "h100-sxm-80gb",
            "pcie_gen",
            1,
            "[n.nvmlDeviceGetCurrPcieLinkGeneration(h), n.nvmlDeviceGetMaxPcieLinkGeneration(h)]",
            [1, 5],
        ),
        (
            "t4",
            "retired_double",
            2,
            "[len(list(n.nvmlDeviceGetRetiredPages(h, 1))), len(list(n.nvmlDeviceGetRetiredPages(h, 0)))]",
            [2, 0],
        ),
        ("t4", "retire_pending", 1, "n.nvmlDeviceGetRetiredPagesPendingStatus(h)", 1),
        ("t4", "temperature_idle_c", 90, "n.nvmlDeviceGetTemperature(h, 0)", 90),
    ],
)
def test_a_reading_that_is_set_is_read_and_goes_back(
    simulate, profile: str, reading: str, value: int, program: str, expected
) -> None:
    simulation = simulate(profile)
    ask = READ + f"tell({program})"
    before = simulation.ask(ask)
    with simulation.opened() as machine:
        number = machine.add_fault(parse_fault_text(f"gpu=0,set={reading},value={value}", machine.gpu_count))
        changed = simulation.ask(ask)
        if reading == "remap_pending":
            assert changed == [[0, 0, 1, 0], [0, 1], [0, 1]]
        else:
            assert changed == expected
        machine.clear_fault(number)
    assert simulation.ask(ask) == before


def test_memory_that_nothing_mends(simulate) -> None:
    simulation = simulate("""\
version: 1
driver: {version: "590.44.01", cuda: 13010}
gpus: [{count: 1, profile: h100-sxm-80gb}]
faults: [{gpu: 0, set: unrepairable, value: 1}]
""")
    assert simulation.ask(READ + "tell(n.nvmlDeviceGetUnrepairableMemoryFlag_v1(h))") == 1


VIRTUAL = """\
version: 1
driver: {version: "580.65.06", cuda: 13000}
clock: {mode: virtual}
gpus: [{count: 1, profile: h100-sxm-80gb}]
faults:
  - {at: 1s, for: 2s, gpu: 0, set: throttle_reasons, value: 0x24}
  - {at: 2s, gpu: 0, set: ecc_uncorrected_volatile, value: 4}
  - {at: 5s, gpu: 0, reset: true}
"""


def test_readings_come_and_go_at_their_time(simulate) -> None:
    """Throttling from 1 s to 3 s is counted in its counters; what a reset clears is cleared at 5 s."""
    simulation = simulate(VIRTUAL)
    program = (
        READ
        + """
tell([n.nvmlDeviceGetCurrentClocksEventReasons(h), n.nvmlDeviceGetTotalEccErrors(h, 1, 0), field(74)[1] // 10**8,
      field(269)[1] // 10**8, field(270)[1], n.nvmlDeviceGetViolationStatus(h, 0).violationTime // 10**8])
"""
    )
    answers = []
    with simulation.opened() as machine:
        for _ in range(6):
            answers.append(simulation.ask(program))
            machine.step(10**9)
        resets = machine.show()["notices"]
    assert [answer[:2] for answer in answers] == [[1, 0], [0x24, 0], [0x24, 4], [1, 4], [1, 4], [1, 0]]
    assert answers[0][2:] == [0, 0, 0, 0]
    # windows of 167 ms: two seconds less or more than one of them
    assert 18 <= answers[5][2] <= 22
    assert answers[5][2] == answers[5][3] == answers[5][5]
    assert answers[5][4] == 0
    assert [notice["kind"] for notice in resets] == ["clock", "ecc-double", "clock", "reset"]


def test_events_of_memory_errors_and_clocks(simulate) -> None:
    simulation = simulate("h100-sxm-80gb")
    with (
        simulation.opened() as machine,
        simulation.running(
            READ
            + """
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(h, 0x1 | 0x2 | 0x10 | 0x8000, events)
tell("ready")
for _ in range(4):
    event = n.nvmlEventSetWait_v2(events, 20000)
    tell([event.eventType, event.eventData])
"""
        ) as child,
    ):
        assert heard(child) == "ready"
        for reading, value in (
            ("ecc_corrected_volatile", 1),
            ("ecc_uncorrected_volatile", 2),
            ("throttle_reasons", 8),
            ("recovery_action", 1),
        ):
            machine.add_fault(parse_fault_text(f"gpu=0,set={reading},value={value}", 8))
        assert [heard(child) for _ in range(4)] == [[1, 1], [2, 2], [0x10, 8], [0x8000, 1]]


UUIDS = """
n.nvmlInit()
tell([n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())])
"""


def test_gpus_that_are_renumbered(simulate) -> None:
    """Who initialises from then on meets them in another order; handles of before mean what they meant."""
    simulation = simulate("h100-sxm-80gb")
    before = [gpu["uuid"] for gpu in simulation.show()["gpus"]]
    with (
        simulation.opened() as machine,
        simulation.running(UUIDS + "sys.stdin.readline()" + UUIDS.replace("n.nvmlInit()", "")) as child,
    ):
        assert heard(child) == before
        first = machine.add_fault(parse_fault_text("gpu=6,renumber=1", 8))
        moved = [before[at] for at in (0, 6, 1, 2, 3, 4, 5, 7)]
        assert simulation.ask(UUIDS) == moved
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        assert heard(child) == before
        machine.add_fault(parse_fault_text("gpu=0,vanish", 8))
        assert simulation.ask(UUIDS) == moved[1:]
        machine.clear_fault(first)
        assert simulation.ask(UUIDS) == before[1:]


def test_a_driver_that_is_replaced(simulate) -> None:
    """Programs that had loaded the old library are told that the two no longer fit; new ones meet the new driver."""
    simulation = simulate("t4")
    version = "n.nvmlInit(); tell(n.nvmlSystemGetDriverVersion())"
    with (
        simulation.opened() as machine,
        simulation.running(
            READ
            + """
tell("ready")
sys.stdin.readline()
tell([code(n.nvmlDeviceGetTemperature, h, 0), code(n.nvmlShutdown), code(n.nvmlInit)])
sys.stdin.readline()
tell(code(n.nvmlInit))
"""
        ) as child,
    ):
        assert heard(child) == "ready"
        number = machine.add_fault(parse_fault_text("driver=590.44.01", 1))
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        assert heard(child) == ["error 18", None, "error 18"]
        assert simulation.ask(version) == "590.44.01"
        machine.clear_fault(number)
        assert simulation.ask(version) == "580.65.06"
        child.stdin.write("\n")
        child.stdin.flush()
        assert heard(child) == "error 18"  # it was loaded two drivers ago


def test_a_hang_with_the_drivers_lock_hangs_every_later_call(simulate) -> None:
    """In every process, for other calls and other GPUs too, until the fault is cleared."""
    simulation = simulate("h100-sxm-80gb")
    with simulation.opened() as machine:
        number = machine.add_fault(parse_fault_text("call=nvmlDeviceGetPowerUsage,gpu=2,hang_lock=forever", 8))
        wait = "n.nvmlInit()\ntell(0)\nsys.stdin.readline()\n"
        power = "tell(n.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetHandleByIndex(2)))"
        with (
            simulation.running(wait + power) as first,
            simulation.running(wait + "tell(n.nvmlDeviceGetCount())") as second,
        ):
            assert [heard(first), heard(second)] == [0, 0]
            go_on(first)
            while machine.show()["faults"][0]["hits"] == 0:
                assert first.poll() is None
            go_on(second)
            assert not select.select([first.stdout, second.stdout], [], [], 0.3)[0]
            machine.clear_fault(number)
            assert heard(first) == 70_000
            assert heard(second) == 8


@pytest.mark.parametrize("duration", ["hang_lock=2s", "hang_lock=forever,for=2s"])
def test_a_hang_of_the_lock_ends_in_time_though_its_process_was_killed(simulate, duration: str) -> None:
    simulation = simulate("h100-sxm-80gb")
    with simulation.opened() as machine:
        machine.add_fault(parse_fault_text(f"call=nvmlDeviceGetPowerUsage,count=1,{duration}", 8))
        with (
            simulation.running("n.nvmlInit()\nn.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetHandleByIndex(2))") as first,
            simulation.running("tell(0)\nsys.stdin.readline()\nn.nvmlInit()\ntell(n.nvmlDeviceGetCount())") as second,
        ):
            assert heard(second) == 0
            while machine.show()["faults"][0]["hits"] == 0:
                assert first.poll() is None
            first.kill()
            first.wait()
            go_on(second)
            assert heard(second) == 8
            assert machine.now_ns() >= 2_000_000_000


def go_on(process) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("gpu=0,set=nonsense,value=1", "must be one of throttle_reasons"),
        ("gpu=0,set=link18.active,value=1", "must be one of"),
        ("gpu=0,set=pcie_gen", "the key 'value' is missing"),
        ("set=pcie_gen,value=1", "'set' needs 'gpu'"),
        ("gpu=0,renumber=8", "must be from 0 to 7"),
        ("driver=latest", "must be a driver's version"),
        ("driver=590.1,gpu=0", "happens to the whole machine"),
        ("gpu=0,reset,call=nvmlInit_v2", "happens to a GPU, once, and not to a call"),
        ("gpu=0,value=3", "needs 'call'"),
    ],
)
def test_faults_that_say_what_nothing_can_do(fault: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_fault_text(fault, 8)
