"""What happened between two looks: GPM samples, PCIe and NVLink traffic, accounting."""

from __future__ import annotations

import pytest
from hypervisor.simulation._machine import ffi, lib

from tests.integration.simulation.conftest import heard
from tests.integration.simulation.test_instances import LARGE, NODE, attached

GPM = """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
def sample(instance=None):
    taken = n.nvmlGpmSampleAlloc()
    return n.nvmlGpmSampleGet(h, taken) if instance is None else n.nvmlGpmMigSampleGet(h, instance, taken)
def metrics(first, second, *numbers):
    get = n.c_nvmlGpmMetricsGet_t()
    get.version = n.NVML_GPM_METRICS_GET_VERSION
    get.numMetrics = len(numbers)
    get.sample1, get.sample2 = first, second
    for at, number in enumerate(numbers):
        get.metrics[at].metricId = number
    n.nvmlGpmMetricsGet(get)
    return [[get.metrics[at].nvmlReturn, round(get.metrics[at].value, 1)] for at in range(len(numbers))]
"""
VIRTUAL = NODE.replace("mig: {gpu0: {mode: on, instances: [3g.40gb, {profile: 2g.20gb, compute: [1, 1]}]}}\n", "")


def test_gpm_tells_what_happened_between_two_samples(simulate) -> None:
    simulation = simulate(VIRTUAL + "nvlink: {topology: nvswitch, links_per_gpu: 16}\n")
    with (
        attached(str(simulation.path)) as node,
        simulation.running(
            GPM
            + """
first = sample()
tell(n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice)
sys.stdin.readline()
tell(metrics(first, sample(), 1, 2, 3, 20, 21, 60, 5, 0, 62, 63, 97, 10))
"""
        ) as child,
    ):
        assert heard(child) == 1
        process = lib_process(node)
        bandwidth = 2 * node.machine.gpu[0].info.device_to_device_bytes_per_s
        node.launch(process, 30, 500_000)
        copy(node, process, lib.SIM_ENGINE_H2D, 64 << 20)
        lib.sim_count_peer(node.machine, 0, 0, 32 << 20)
        node.step(100)
        child.stdin.write("\n")
        child.stdin.flush()
        answers = heard(child)
    *answers, memory = answers
    assert answers[:8] == [[0, 30.0], [0, 15.0], [0, 15.0], [0, 0.0], [0, 640.0], [0, 320.0], [3, 0.0], [2, 0.0]]
    assert answers[8:] == [[0, 20.0], [0, 20.0], [0, 0.0]]  # one link of 16, and one that is down
    assert memory == [
        0,
        pytest.approx(100 * (128 << 20) / (bandwidth / 10), abs=0.06),
    ]  # to and from the host and others


def test_gpm_of_a_mig_instance(simulate) -> None:
    simulation = simulate(NODE)
    with (
        attached(str(simulation.path)) as node,
        simulation.running(
            GPM
            + """
firsts = [sample(instance) for instance in (1, 5)]
tell(0)
sys.stdin.readline()
tell([metrics(first, sample(instance), 1, 2) for first, instance in zip(firsts, (1, 5))])
"""
        ) as child,
    ):
        assert heard(child) == 0
        node.launch(node.client(LARGE), 25)
        node.step(100)
        child.stdin.write("\n")
        child.stdin.flush()
        assert heard(child) == [[[0, 25.0], [0, 25.0]], [[0, 0.0], [0, 0.0]]]


def test_gpm_is_for_hopper_and_for_samples_that_are_filled(simulate) -> None:
    program = (
        GPM
        + """
codes = [n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice]
for wanted in (lambda: sample(), lambda: metrics(n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc(), 1)):
    try:
        wanted()
        codes.append(0)
    except n.NVMLError as error:
        codes.append(error.value)
tell(codes)
"""
    )
    assert simulate("a100-sxm-80gb").ask(program) == [0, 3, 2]
    assert simulate("h100-sxm-80gb").ask(program) == [1, 0, 2]


def lib_process(node) -> int:
    row = ffi.new("uint32_t *")
    assert lib.sim_process_register(node.machine, row) == lib.SIM_OK
    return int(row[0])


def copy(node, process: int, engine: int, size: int) -> None:
    stream, item = ffi.new("uint32_t *"), ffi.new("struct sim_item *")
    assert lib.sim_stream_open(node.machine, 0, process, 0, 0, stream) == lib.SIM_OK
    item.kind, item.a, item.bytes = lib.SIM_ITEM_COPY, engine, size
    item.work = lib.sim_copy_cost(node.machine, 0, engine, size) * lib.SIM_WORK_SCALE
    assert lib.sim_stream_push(node.machine, stream[0], item) == lib.SIM_OK


def test_pcie_and_nvlink_traffic(simulate) -> None:
    nvlink = "nvlink: {topology: nvswitch, links_per_gpu: 16, inactive: [{gpu: 0, links: [15]}]}\n"
    simulation = simulate(VIRTUAL + nvlink)
    with attached(str(simulation.path)) as node:
        process = lib_process(node)
        copy(node, process, lib.SIM_ENGINE_H2D, 167_000_000)
        copy(node, process, lib.SIM_ENGINE_D2H, 1_670_000)
        lib.sim_count_peer(node.machine, 0, 0, 15 << 20)
        node.step(167)
        told = simulation.ask("""
            n.nvmlInit()
            h = n.nvmlDeviceGetHandleByIndex(0)
            def field(number, scope=0):
                value = n.nvmlDeviceGetFieldValues(h, [(number, scope)])[0]
                return [value.nvmlReturn, value.value.ullVal]
            tell([n.nvmlDeviceGetPcieThroughput(h, 0), n.nvmlDeviceGetPcieThroughput(h, 1), field(197), field(198),
                  field(138, 0xFFFFFFFF), field(139, 3), field(138, 15), field(138, 18)])
        """)
    assert told == [10_000, 1_000_000, [0, 1_670_000], [0, 167_000_000], [0, 15 << 10], [0, 1 << 10], [0, 0], [2, 0]]


def test_accounting_remembers_who_has_ended(simulate) -> None:
    simulation = simulate(VIRTUAL)
    account = """
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(0)
        found = {}
        for pid in n.nvmlDeviceGetAccountingPids(h):
            stats = n.nvmlDeviceGetAccountingStats(h, pid)
            found[str(pid)] = [stats.gpuUtilization, stats.maxMemoryUsage, stats.time, stats.isRunning]
        tell([n.nvmlDeviceGetAccountingMode(h), found])
    """
    simulation.ask("n.nvmlInit(); n.nvmlDeviceSetAccountingMode(n.nvmlDeviceGetHandleByIndex(0), 1); tell(0)")
    with attached(str(simulation.path)) as node:
        process = lib_process(node)
        pid = str(node.machine.processes[process].pid)
        assert lib.sim_charge(node.machine, 0, process, 1 << 30) == lib.SIM_OK
        node.launch(process, 50)
        node.step(100)
        assert simulation.ask(account) == [1, {pid: [50, 1 << 30, 0, 1]}]
        lib.sim_process_unregister(node.machine, process)
        node.step(100)
        assert simulation.ask(account) == [1, {pid: [50, 1 << 30, 100, 0]}]


def test_accounting_is_off_until_it_is_switched_on(simulate) -> None:
    assert simulate("t4").ask("""
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(0)
        codes = [n.nvmlDeviceGetAccountingMode(h)]
        for wanted in (lambda: n.nvmlDeviceGetAccountingPids(h), lambda: n.nvmlDeviceGetAccountingStats(h, 1)):
            try:
                wanted()
            except n.NVMLError as error:
                codes.append(error.value)
        tell(codes)
    """) == [0, 3, 3]
