"""What a client does on a GPU is what nvidia-ml-py reads. On the virtual clock, so figures are exact.

The client here speaks the simulator's core directly; clients of the driver API follow in test_client.py.
"""

from __future__ import annotations

import json
import os
import signal

from tests.integration.simulation.conftest import heard

WINDOW_NS = 167_000_000

VIRTUAL = """\
version: 1
driver: {version: "580.65.06", cuda: 13000}
clock: {mode: virtual}
gpus: [{count: 2, profile: h100-sxm-80gb, context: 100Mi}]
"""

# Each line of its input is a list of [bytes to charge, ns of kernel to launch].
CLIENT = """
from hypervisor.simulation import _machine
ffi, lib = _machine.ffi, _machine.lib
out, item = ffi.new("struct sim_machine **"), ffi.new("struct sim_item *")
row, stream = ffi.new("uint32_t *"), ffi.new("uint32_t *")
assert lib.sim_machine_attach_environment(out) == 0
assert lib.sim_process_register(out[0], row) == 0
assert lib.sim_charge_context(out[0], 0, row[0]) == 0
assert lib.sim_stream_open(out[0], 0, row[0], 0, 0, stream) == 0
tell(os.getpid())
for line in sys.stdin:
    size, nanoseconds = json.loads(line)
    assert lib.sim_charge(out[0], 0, row[0], size) == 0
    item.kind, item.demand_ppm, item.work = lib.SIM_ITEM_KERNEL, 1000000, nanoseconds * 1024
    assert nanoseconds == 0 or lib.sim_stream_push(out[0], stream[0], item) == 0
    tell("done")
"""

READER = """
n.nvmlInit()
def code(function, *arguments):
    try:
        return function(*arguments)
    except n.NVMLError as error:
        return f"error {error.value}"
def processes(h):
    return {str(p.pid): p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(h)}
def shares(h, since):
    found = code(n.nvmlDeviceGetProcessUtilization, h, since)
    return found if isinstance(found, str) else {str(s.pid): [s.smUtil, s.timeStamp] for s in found}
def infos(h, since):
    found = code(n.nvmlDeviceGetProcessesUtilizationInfo, h, since)
    return found if isinstance(found, str) else {str(s.pid): [s.smUtil, s.timeStamp] for s in found}
def samples(h, kind, since):
    found = code(n.nvmlDeviceGetSamples, h, kind, since)
    return found if isinstance(found, str) else [s.sampleValue.uiVal for s in found[1]]
def load(index, since=0):
    h = n.nvmlDeviceGetHandleByIndex(index)
    rates = n.nvmlDeviceGetUtilizationRates(h)
    return {"gpu": rates.gpu, "used": n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).used,
            "processes": processes(h), "shares": shares(h, since), "infos": infos(h, since),
            "samples": samples(h, n.NVML_GPU_UTILIZATION_SAMPLES, since),
            "power": n.nvmlDeviceGetPowerUsage(h), "reasons": n.nvmlDeviceGetCurrentClocksEventReasons(h),
            "names": [n.nvmlSystemGetProcessName(int(pid)) for pid in processes(h)]}
"""


def act(client, size: int, nanoseconds: int) -> None:
    client.stdin.write(json.dumps([size, nanoseconds]) + "\n")
    client.stdin.flush()
    assert heard(client) == "done"


def test_memory_and_time_of_a_process_are_read_exactly(simulate) -> None:
    simulation = simulate(VIRTUAL)
    context, gib = 100 << 20, 1 << 30
    with simulation.opened() as machine, simulation.running(CLIENT) as client:
        pid = str(heard(client))
        act(client, gib, WINDOW_NS // 2)
        machine.step(WINDOW_NS)
        load = simulation.ask(READER + "tell([load(0), load(1)])")
        busy, idle = load
        assert busy["gpu"] == 50
        assert busy["used"] == gib + context
        assert busy["processes"] == {pid: gib + context}
        assert [share for share, _ in busy["shares"].values()] == [50]
        assert busy["shares"] == busy["infos"]
        assert list(busy["shares"]) == [pid]
        assert busy["samples"] == [50]
        assert busy["power"] == (70_000 + 650_000) // 2
        assert busy["reasons"] == 0
        assert len(busy["names"]) == 1
        assert "python" in busy["names"][0]
        assert idle["gpu"] == idle["used"] == 0
        assert idle["processes"] == {}
        assert idle["shares"] == idle["infos"] == "error 6"
        assert idle["reasons"] == 1  # idle

        seen = busy["shares"][pid][1]
        act(client, 0, WINDOW_NS // 4)
        machine.step(WINDOW_NS)
        later = simulation.ask(READER + f"tell(load(0, {seen}))")
        assert later["gpu"] == 25
        assert later["samples"] == [25]
        assert later["shares"][pid][0] == 25
        assert later["shares"][pid][1] - seen == WINDOW_NS // 1000

        seen = later["shares"][pid][1]
        machine.step(WINDOW_NS)
        after = simulation.ask(READER + f"tell(load(0, {seen}))")
        assert (after["gpu"], after["shares"], after["infos"]) == (0, "error 6", "error 6")
        assert after["processes"] == {pid: gib + context}

        shown = machine.show()["gpus"][0]
        assert shown["busy_ns"] == WINDOW_NS // 2 + WINDOW_NS // 4
        assert shown["memory"]["peak_bytes"] == gib + context


def test_a_killed_process_is_gone_from_every_list(simulate) -> None:
    simulation = simulate(VIRTUAL)
    with simulation.running(CLIENT) as client:
        pid = heard(client)
        act(client, 1 << 30, 0)
        assert list(simulation.ask(READER + "tell(load(0))")["processes"]) == [str(pid)]
        os.kill(pid, signal.SIGKILL)
        client.wait(timeout=10)
    gone = simulation.ask(READER + "tell(load(0))")
    assert gone["processes"] == {}
    assert gone["used"] == 0


def test_a_list_that_does_not_fit_says_how_long_it_is(simulate) -> None:
    simulation = simulate(VIRTUAL)
    with simulation.opened() as machine, simulation.running(CLIENT) as one, simulation.running(CLIENT) as two:
        pids = sorted([heard(one), heard(two)])
        act(one, 0, WINDOW_NS // 4)
        act(two, 0, WINDOW_NS // 4)
        machine.step(WINDOW_NS)
        answers = simulation.ask("""
            library = ctypes.CDLL("libnvidia-ml.so.1")
            h = ctypes.c_void_p()
            assert library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(h)) == 0
            out = []
            class Old(ctypes.Structure):
                _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong)]
            for name, kind in (("", Old), ("_v2", n.c_nvmlProcessInfo_v2_t), ("_v3", n.c_nvmlProcessInfo_v3_t)):
                for room in (0, 1, 2, 7):
                    array, count = (kind * max(room, 1))(), ctypes.c_uint(room)
                    function = getattr(library, "nvmlDeviceGetComputeRunningProcesses" + name)
                    code = function(h, ctypes.byref(count), array if room else None)
                    out.append([code, count.value, sorted(entry.pid for entry in array) if code == 0 else []])
                for other in ("Graphics", "MPSCompute"):
                    count = ctypes.c_uint(0)
                    function = getattr(library, f"nvmlDeviceGet{other}RunningProcesses{name}")
                    assert function(h, ctypes.byref(count), None) == 0 and count.value == 0
            count = ctypes.c_uint(1)
            samples = (n.c_nvmlProcessUtilizationSample_t * 1)()
            code = library.nvmlDeviceGetProcessUtilization(h, samples, ctypes.byref(count), ctypes.c_ulonglong(0))
            tell([out, code, count.value, len(n.nvmlDeviceGetProcessUtilization(
                (n.nvmlInit(), n.nvmlDeviceGetHandleByIndex(0))[1], 0))])
        """)
    lists, code, needed, shares = answers
    assert lists == [[7, 2, []], [7, 2, []], [0, 2, pids], [0, 2, [0] * 5 + pids]] * 3
    assert code == 7
    assert needed >= 2
    assert shares == 2


def test_mps_clients_stand_in_a_list_of_their_own(simulate) -> None:
    both = "gpus: [{count: 1, profile: h100-sxm-80gb, mps: true}, {count: 1, profile: h100-sxm-80gb}]\n"
    simulation = simulate(VIRTUAL[: VIRTUAL.index("gpus:")] + both)
    second = CLIENT.replace("tell(os", "assert lib.sim_charge_context(out[0], 1, row[0]) == 0; tell(os")
    with simulation.running(second) as client:
        pid = heard(client)
        lists = simulation.ask(
            READER
            + """
hs = [n.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
tell([[list(processes(h)), [p.pid for p in n.nvmlDeviceGetMPSComputeRunningProcesses(h)]] for h in hs])
"""
        )
    assert lists == [[[], [pid]], [[str(pid)], []]]


def test_a_card_in_mig_mode_has_no_utilisation_of_its_own(simulate) -> None:
    answers = simulate(VIRTUAL + "mig: {gpu1: {mode: on}}\n").ask(
        READER
        + """
h = n.nvmlDeviceGetHandleByIndex(1)
tell([n.nvmlDeviceGetMigMode(h), n.nvmlDeviceGetMaxMigDeviceCount(h), code(n.nvmlDeviceGetUtilizationRates, h),
      code(n.nvmlDeviceGetProcessUtilization, h, 0), code(n.nvmlDeviceGetSamples, h, 1, 0),
      code(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 0)])
"""
    )
    assert answers == [[1, 1], 7, "error 3", "error 3", "error 3", "error 6"]
