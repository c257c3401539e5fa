"""Which devices a CUDA program has: MIG instances, CUDA_VISIBLE_DEVICES, vanished GPUs; and what faults change."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hypervisor.simulation.faults import ACTIONS
from hypervisor.simulation.spec import FaultSpec
from tests.integration.simulation.conftest import Simulation

MIG = """
version: 1
driver: {version: "580.65.06", cuda: 13000}
gpus:
  - {count: 2, profile: a100-sxm-80gb}
mig: {gpu0: {mode: on, instances: [3g.40gb, 2g.20gb]}}
"""

# Tells each device's name, UUID, SMs and memory, or the code of cuInit.
DEVICES = """
cuda = ctypes.CDLL("libcuda.so.1")
code = cuda.cuInit(0)
if code:
    tell(code); sys.exit()
count, found = ctypes.c_int(), []
cuda.cuDeviceGetCount(ctypes.byref(count))
for device in range(count.value):
    name, uuid = ctypes.create_string_buffer(100), (ctypes.c_ubyte * 16)()
    sms, total = ctypes.c_int(), ctypes.c_size_t()
    cuda.cuDeviceGetName(name, 100, device)
    cuda.cuDeviceGetUuid_v2(uuid, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(sms), 16, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    found.append([name.value.decode(), bytes(uuid).hex(), sms.value, total.value >> 30])
tell(found)
"""

INSTANCES = """
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
tell([n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, at)) for at in range(2)])
"""


def plain(uuid: str) -> str:
    return uuid.partition("-")[2].replace("-", "")


def test_a_process_has_the_first_instance_and_nothing_else(simulate: Callable[[str], Simulation]) -> None:
    machine = simulate(MIG)
    first, _ = machine.ask(INSTANCES)
    assert machine.ask(DEVICES) == [["NVIDIA A100-SXM4-80GB MIG 3g.40gb", plain(first), 42, 39]]


def test_an_instance_is_chosen_by_its_uuid(simulate: Callable[[str], Simulation]) -> None:
    machine = simulate(MIG)
    _, second = machine.ask(INSTANCES)
    ((name, uuid, sms, _),) = machine.ask(DEVICES, CUDA_VISIBLE_DEVICES=second)
    assert (name, uuid, sms) == ("NVIDIA A100-SXM4-80GB MIG 2g.20gb", plain(second), 28)


def test_the_other_gpu_is_whole_when_it_alone_is_chosen(simulate: Callable[[str], Simulation]) -> None:
    ((name, _, sms, gibibytes),) = simulate(MIG).ask(DEVICES, CUDA_VISIBLE_DEVICES="1")
    assert (name, sms, gibibytes) == ("NVIDIA A100-SXM4-80GB", 108, 79)


@pytest.mark.parametrize("wrong", ["MIG-00000000-0000-0000-0000-000000000000", "7", "GPU-nonsense", ""])
def test_what_names_no_device_leaves_none(simulate: Callable[[str], Simulation], wrong: str) -> None:
    assert simulate(MIG).ask(DEVICES, CUDA_VISIBLE_DEVICES=wrong) == 100  # CUDA_ERROR_NO_DEVICE


def test_an_instance_holds_its_own_memory_only(simulate: Callable[[str], Simulation]) -> None:
    machine = simulate(MIG)
    first, second = machine.ask(INSTANCES)
    program = """
    cuda = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    tell([cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(gib << 30)) for gib in (30, 30)])
    """
    assert machine.ask(program, CUDA_VISIBLE_DEVICES=first) == [0, 2]
    assert machine.ask(program, CUDA_VISIBLE_DEVICES=second) == [2, 2]


def test_a_vanished_gpu_is_no_device(simulate: Callable[[str], Simulation]) -> None:
    machine = simulate("h100-sxm-80gb")
    before = [device[1] for device in machine.ask(DEVICES)]
    with machine.opened() as opened:
        opened.add_fault(FaultSpec(gpu=0, action=ACTIONS["vanish"]))
    assert [device[1] for device in machine.ask(DEVICES)] == before[1:]


@pytest.mark.parametrize(
    ("action", "value", "seen"), [("zero", 0, 0), ("value", 5 << 30, 5), ("sentinel", 0, (1 << 33) - 1)]
)
def test_a_fault_changes_what_the_driver_says_of_memory(
    simulate: Callable[[str], Simulation], action: str, value: int, seen: int
) -> None:
    machine = simulate("a100-sxm-80gb")
    with machine.opened() as opened:
        opened.add_fault(FaultSpec(call="cuDeviceTotalMem_v2", action=ACTIONS[action], value=value))
    assert machine.ask(DEVICES)[0][3] == seen


MIXED = """
version: 1
driver: {version: "580.65.06", cuda: 13000}
gpus:
  - {count: 1, profile: t4}
  - {count: 2, profile: l40s}
  - {count: 1, profile: h100-sxm-80gb}
"""


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [0, 1, 2, 3]),  # as NVML numbers them
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, None),
        ({}, None),
    ],
)
def test_devices_come_in_the_order_that_is_asked_for(
    simulate: Callable[[str], Simulation], variables: dict[str, str], wanted: list[int] | None
) -> None:
    machine = simulate(MIXED)
    shown = machine.show()["gpus"]
    uuids = [gpu["uuid"].partition("-")[2].replace("-", "") for gpu in shown]
    devices = [device[1] for device in machine.ask(DEVICES, **variables)]
    found = [uuids.index(uuid) for uuid in devices]
    if wanted is None:  # the T4, which comes first on the bus, is the slowest by far; equals keep their order
        assert found[-1] == 0
        assert found.index(1) < found.index(2)
    else:
        assert found == wanted
    (chosen,) = machine.ask(DEVICES, CUDA_VISIBLE_DEVICES="0", **variables)
    assert chosen[1] == devices[0]  # an index is one in this order
