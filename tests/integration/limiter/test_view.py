"""What a Pod sees of devices that are not its own, and of figures that are the whole card's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hypervisor.simulation import machine as machines
from hypervisor.simulation.profiles import load_description
from tests.integration.limiter.conftest import GIB, MIB, Files, Pod, heard

NOT_FOUND = 6  # nvmlReturn_t
EXPORT_TABLE = 6  # enum hv_message_code
# The one that nvidia-smi asks for.
TABLE = bytes.fromhex("6c3efec48fc94e6ca327ee696e12f7c4")
SCALE_UTILIZATION = 8  # enum hv_device_flags
NVML = """
        import pynvml as n
        n.nvmlInit()
        def answer(call, *arguments):
            try:
                return call(*arguments)
            except n.NVMLError as error:
                return error.value
"""


@pytest.fixture
def three(tmp_path: Path, limit_files: Path) -> tuple[Pod, list[str]]:
    """A machine with three GPUs, and limit files for none of them yet."""
    description = tmp_path / "three.yaml"
    description.write_text(
        'version: 1\ndriver: {version: "550.163.01", cuda: 12040}\ngpus: [{count: 3, profile: t4}]\n'
    )
    machine = tmp_path / "three-machine"
    machines.create(machine, load_description(str(description)))
    with machines.opened(machine) as opened:
        uuids = [gpu["uuid"] for gpu in opened.show()["gpus"]]
    directory = tmp_path / "three-limits"
    directory.mkdir()
    return Pod(machine, Files(directory, limit_files, uuids[0])), uuids


COUNT = (
    NVML
    + """
        must("cuInit", 0)
        count, device = ctypes.c_int(), ctypes.c_int()
        must("cuDeviceGetCount", ctypes.byref(count))
        tell([count.value, [call("cuDeviceGet", ctypes.byref(device), i) for i in range(3)], n.nvmlDeviceGetCount(),
              [type(answer(n.nvmlDeviceGetHandleByIndex, i)) is not int for i in range(3)]])
"""
)


def test_devices_behind_the_last_of_the_pod_are_not_there(three: tuple[Pod, list[str]]) -> None:
    pod, uuids = three
    for last, uuid in enumerate(uuids):
        pod.files.run("make", uuid, GIB, 1_000_000)
        there = [number <= last for number in range(3)]
        assert pod.ask(COUNT) == [last + 1, [0 if here else 101 for here in there], last + 1, there]
    assert pod.ask(COUNT, limited=False) == [3, [0, 0, 0], 3, [True, True, True]]


def test_a_device_before_the_pod_s_has_no_memory_and_its_name_is_not_found(three: tuple[Pod, list[str]]) -> None:
    pod, uuids = three
    pod.files.run("make", uuids[1], GIB, 1_000_000)
    source = (
        NVML
        + """
        total = ctypes.c_size_t()
        must("cuInit", 0)
        totals = []
        for device in range(2):
            must("cuDeviceTotalMem_v2", ctypes.byref(total), device)
            totals.append(total.value)
        memory = [n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(i)).total for i in range(2)]
        known = [type(answer(n.nvmlDeviceGetHandleByUUID, uuid)) is not int for uuid in UUIDS]
        tell([totals, memory, known])
    """
    )
    assert pod.ask(source.replace("UUIDS", repr(uuids))) == [[0, GIB], [0, GIB], [False, True, False]]


def test_other_names_of_a_device_that_is_not_the_pod_s_are_not_found(three: tuple[Pod, list[str]]) -> None:
    pod, uuids = three
    pod.files.run("make", uuids[1], GIB, 1_000_000)
    told = (
        NVML
        + """
        handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(3)]
        tell([[n.nvmlDeviceGetSerial(one), n.nvmlDeviceGetPciInfo(one).busId] for one in handles])
    """
    )
    source = (
        NVML
        + """
        def there(call, *arguments):
            found = answer(call, *arguments)
            assert found == n.NVML_ERROR_NOT_FOUND or type(found) is not int, found
            return type(found) is not int
        own = n.nvmlDeviceGetHandleByIndex(1)
        library, handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        def by_first_form(bus):
            return library.nvmlDeviceGetHandleByPciBusId(bus.encode(), ctypes.byref(handle)) == 0
        level = n.nvmlDeviceGetTopologyCommonAncestor(own, n.nvmlDeviceGetHandleByIndex(0))
        near = n.nvmlDeviceGetTopologyNearestGpus(own, level)
        tell([[there(n.nvmlDeviceGetHandleBySerial, serial), there(n.nvmlDeviceGetHandleByPciBusId, bus),
               by_first_form(bus)] for serial, bus in NAMES] + [len(near), len(n.nvmlSystemGetTopologyGpuSet(0))])
    """
    )
    source = source.replace("NAMES", repr(pod.ask(told, limited=False)))
    assert pod.ask(source) == [[False] * 3, [True] * 3, [False] * 3, 0, 1]
    *names, near, near_processor = pod.ask(source, limited=False)
    assert names == [[True] * 3] * 3
    assert near > 0
    assert near_processor > 1


def test_a_context_on_a_device_that_is_not_the_pod_s_is_refused(three: tuple[Pod, list[str]]) -> None:
    """It would take some of a card that is not the Pod's; what the driver refuses is refused in its own words."""
    pod, uuids = three
    pod.files.run("make", uuids[1], GIB, 1_000_000)
    source = """
        context, other = ctypes.c_void_p(), ctypes.c_void_p()
        early = call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
        must("cuInit", 0)
        def on(device):
            return [call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device),
                    call("cuCtxCreate_v2", ctypes.byref(other), 0, device)]
        tell([early, *(on(device) for device in (0, 1, 2, 3, -1))])
        sys.stdin.readline()
    """
    for limited, foreign in ((True, [2, 2]), (False, [0, 0])):
        with pod.running(source, limited=limited) as process:
            assert heard(process) == [3, foreign, [0, 0], foreign, [101, 101], [101, 101]]
            with machines.opened(pod.machine) as machine:
                used = [gpu["memory"]["used_bytes"] > 0 for gpu in machine.show()["gpus"]]
            assert used == [not limited, True, not limited]


@pytest.mark.parametrize(
    ("chosen", "granted"),
    [("1", [0]), ("{1}", [0]), ("0,1", [2, 0]), ("1,9,0", [0]), ("{1},GPU-nothing,0", [0])],
)
def test_a_limit_follows_the_uuid_whatever_number_the_device_has(
    three: tuple[Pod, list[str]], chosen: str, granted: list[int]
) -> None:
    """CUDA_VISIBLE_DEVICES has the driver's own meaning: numbers, UUIDs, and the first wrong one ends the list.

    HAMi-core 319: a subset of the devices.
    """
    pod, uuids = three
    pod.files.run("make", uuids[1], 256 * MIB, 1_000_000)
    source = """
        must("cuInit", 0)
        count, context, results = ctypes.c_int(), ctypes.c_void_p(), []
        must("cuDeviceGetCount", ctypes.byref(count))
        for device in range(count.value):
            refused = call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            if refused:
                results += [refused, refused]
                continue
            must("cuCtxSetCurrent", context)
            results.append(alloc(200 * MIB)[0])
            results.append(alloc(200 * MIB)[0])
        tell(results[::2] if all(results[1::2]) else "over the limit")
    """
    assert pod.ask(source, CUDA_VISIBLE_DEVICES=chosen.format(*uuids)) == granted


def test_a_device_named_twice_gives_no_device_as_without_the_limiter(three: tuple[Pod, list[str]]) -> None:
    pod, uuids = three
    pod.files.run("make", uuids[1], 256 * MIB, 1_000_000)
    source = "tell(call('cuInit', 0))"
    variables = {"CUDA_VISIBLE_DEVICES": "1,1"}
    assert pod.ask(source, **variables) == pod.ask(source, limited=False, **variables)


def test_a_device_may_be_counted_from_the_back(three: tuple[Pod, list[str]]) -> None:
    pod, uuids = three
    pod.files.run("make", uuids[2], 256 * MIB, 1_000_000)
    assert pod.ask("start(0); tell(memory()[1] // MIB)", CUDA_VISIBLE_DEVICES="2,0") == 256


WORK = """
        start()
        busy = kernel(2_000)
        def work():
            must("cuLaunchKernel", busy, 1, 1, 1, 32, 1, 1, 0, None, None, None)
            must("cuCtxSynchronize")
"""


def test_time_of_processes_is_told_of_the_pod_s_only(pod: Pod) -> None:
    others = WORK + "\n        tell(os.getpid())\n        while True:\n            work()\n"
    listing = (
        NVML
        + WORK
        + """
        handle, seen, deadline = n.nvmlDeviceGetHandleByIndex(0), set(), time.monotonic() + 20
        while os.getpid() not in seen and time.monotonic() < deadline:
            work()
            samples = answer(n.nvmlDeviceGetProcessUtilization, handle, 0)
            seen |= {sample.pid for sample in samples} if type(samples) is not int else set()
        tell([os.getpid(), sorted(seen)])
    """
    )
    with pod.running(others, limited=False) as theirs:
        outside = heard(theirs)
        itself, seen = pod.ask(listing)
        assert seen == [itself]
        assert outside in pod.ask(listing, limited=False)[1]


def test_utilisation_is_the_pod_s_share_of_its_limit_where_that_is_asked_for(pod: Pod) -> None:
    """Nothing of the Pod's runs while another uses the card: the card says 100 %, the Pod sees 0."""
    others = WORK + "\n        tell(os.getpid())\n        while True:\n            work()\n"
    listing = (
        NVML
        + """
        start()
        handle, deadline = n.nvmlDeviceGetHandleByIndex(0), time.monotonic() + 20
        told = n.nvmlDeviceGetUtilizationRates(handle).gpu
        while not (told WANTED) and time.monotonic() < deadline:
            time.sleep(0.01)
            told = n.nvmlDeviceGetUtilizationRates(handle).gpu
        tell(told)
    """
    )
    with pod.running(others, limited=False) as theirs:
        heard(theirs)
        assert pod.ask(listing.replace("WANTED", ">= 50")) >= 50
        pod.files.run("flags", SCALE_UTILIZATION)
        assert pod.ask(listing.replace("WANTED", "== 0")) == 0


def test_pids_of_the_host_are_told_as_the_pod_has_them(pod: Pod) -> None:
    """The driver lists host pids; the daemon has found which of them is the first process of the Pod."""
    holder = "start(); alloc(100 * MIB); tell(os.getpid()); sys.stdin.readline()"
    listing = (
        NVML
        + """
        start()
        handle = n.nvmlDeviceGetHandleByIndex(0)
        tell([os.getpid(), sorted(p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(handle))])
    """
    )
    with pod.running(holder) as ours, pod.running(holder, limited=False) as on_the_host:
        inside, outside = heard(ours), heard(on_the_host)
        pod.files.run("host-pid", outside)
        itself, seen = pod.ask(listing)
        # Its entry by the host's pid is told; the one that has its pid by chance is not.
        assert seen == sorted([inside, itself])


def test_accounting_tells_of_the_pod_s_processes_only(pod: Pod) -> None:
    """Of those that have ended nobody knows whose they were, so they are not told of either."""
    holder = "start(); alloc(100 * MIB); tell(os.getpid()); sys.stdin.readline()"
    listing = (
        NVML
        + """
        start()
        handle = n.nvmlDeviceGetHandleByIndex(0)
        tell([os.getpid(), sorted(n.nvmlDeviceGetAccountingPids(handle))])
    """
    )
    switch = NVML + "\n        tell(n.nvmlDeviceSetAccountingMode(n.nvmlDeviceGetHandleByIndex(0), 1))\n"
    assert pod.ask(switch, limited=False) is None
    with pod.running(holder) as ours, pod.running(holder, limited=False) as others:
        inside, outside = heard(ours), heard(others)
        ended, _ = pod.ask(listing)
        itself, seen = pod.ask(listing)
        assert seen == sorted([inside, itself])
        assert {inside, outside, ended, itself} <= set(pod.ask(listing, limited=False)[1])


def test_accounts_are_told_of_the_pod_s_processes_and_by_its_pids(pod: Pod) -> None:
    """An account of a process of others is not found; the host's pid of one of the Pod's is the daemon's to know."""
    holder = "start(); alloc(MEGABYTES * MIB); tell(os.getpid()); sys.stdin.readline()"
    asking = (
        NVML
        + """
        start()
        handle = n.nvmlDeviceGetHandleByIndex(0)
        accounts = [answer(n.nvmlDeviceGetAccountingStats, handle, pid) for pid in PIDS]
        tell([one if type(one) is int else one.maxMemoryUsage // MIB for one in accounts])
    """
    )
    pod.ask(NVML + "\n        tell(n.nvmlDeviceSetAccountingMode(n.nvmlDeviceGetHandleByIndex(0), 1))\n", limited=False)
    context = pod.gpu()["memory"]["context_bytes"] // MIB
    few, many = holder.replace("MEGABYTES", "100"), holder.replace("MEGABYTES", "200")
    with pod.running(few) as ours, pod.running(many, limited=False) as others:
        inside, outside = heard(ours), heard(others)
        source = asking.replace("PIDS", repr([inside, outside]))
        assert pod.ask(source) == [context + 100, NOT_FOUND]
        assert pod.ask(source, limited=False) == [context + 100, context + 200]
        pod.files.run("host-pid", outside)
        assert pod.ask(source) == [context + 200, NOT_FOUND]


def test_the_later_form_of_an_account_names_its_process_as_the_pod_does(pod: Pod, build: Callable[..., Path]) -> None:
    nvml = build("nvml/libnvidia-ml.so.1", "fake_nvml.c", flags=("-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"))
    source = """
        start()
        tell(os.getpid())
        nvml = ctypes.CDLL(sys.argv[1])
        sys.stdin.readline()
        def account(pid):
            told = (ctypes.c_uint * 16)(pid)
            return nvml.nvmlDeviceGetAccountingStats_v2(None, told), told[0] == pid, told[1]
        tell([account(os.getpid()), account(os.getpid() + 1)])
    """.replace("sys.argv[1]", repr(str(nvml)))
    with pod.running(source) as process:
        heard(process)
        pod.files.run("host-pid", 4242)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert heard(process) == [[0, True, 4242], [NOT_FOUND, True, 0]]


def test_a_private_table_of_nvml_is_handed_out_and_told(pod: Pod) -> None:
    source = """
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        assert nvml.nvmlInit_v2() == 0
        table, found = ctypes.c_void_p(), []
        for number in range(256):
            found.append(nvml.nvmlInternalGetExportTable(ctypes.byref(table), bytes([number] * 16)))
        tell([nvml.nvmlInternalGetExportTable(ctypes.byref(table), TABLE), bool(table.value), sorted(set(found))])
    """.replace("TABLE", repr(TABLE))
    assert pod.ask(source) == pod.ask(source, limited=False)
    assert pod.ask(source)[:2] == [0, True]
    told = [message["text"] for message in pod.files.show()["messages"] if message["code"] == EXPORT_TABLE]
    assert len(told) == 2  # once a process
    assert "NVML" in told[0]
