"""MIG instances as the devices of a Pod: every form of their names, and what NVML tells of their size."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypervisor.simulation import machine as machines
from hypervisor.simulation.profiles import load_description
from tests.integration.limiter.conftest import MIB, Files, Pod

LAID_OUT = """\
version: 1
driver: {version: "580.65.06", cuda: 13000}
gpus: [{count: 2, profile: a100-sxm-80gb}]
mig: {gpu0: {mode: on, instances: [3g.40gb, 2g.20gb]}}
"""
MIG = 1  # enum hv_device_flags
LIMIT = 256 * MIB
INSTANCES = """
        import pynvml as n
        n.nvmlInit()
        gpu = n.nvmlDeviceGetHandleByIndex(0)
        instances = [n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, at) for at in range(2)]
"""
NAMES = (
    INSTANCES
    + """
        tell([n.nvmlDeviceGetUUID(gpu)] + [[n.nvmlDeviceGetUUID(one), n.nvmlDeviceGetGpuInstanceId(one),
                                            n.nvmlDeviceGetComputeInstanceId(one)] for one in instances])
"""
)
Names = dict[str, str]


@pytest.fixture
def instances(tmp_path: Path, limit_files: Path) -> tuple[Pod, Names]:
    """A Pod that owns the second instance of the first GPU, and every way to name an instance."""
    description = tmp_path / "instances.yaml"
    description.write_text(LAID_OUT)
    machine = tmp_path / "machine"
    machines.create(machine, load_description(str(description)))
    directory = tmp_path / "limits"
    directory.mkdir()
    gpu, first, second = Pod(machine, Files(directory, limit_files, "")).ask(NAMES, limited=False)
    files = Files(directory, limit_files, second[0])
    files.make(LIMIT)
    files.run("flags", MIG)
    return Pod(machine, files), {
        "first": first[0],
        "uuid": second[0],
        "beginning": second[0][: len("MIG-") + 8],
        "small": second[0].replace("MIG-", "mig-"),
        "before 470": f"MIG-{gpu}/{second[1]}/{second[2]}",
    }


HOLD = """
        start()
        tell([memory()[1] // MIB, alloc(200 * MIB)[0], alloc(200 * MIB)[0]])
"""


@pytest.mark.parametrize("form", ["uuid", "beginning", "small", "before 470"])
def test_an_instance_is_limited_however_it_is_named(instances: tuple[Pod, Names], form: str) -> None:
    """HAMi 1014: MIG devices by their own names."""
    pod, names = instances
    assert pod.ask(HOLD, CUDA_VISIBLE_DEVICES=names[form]) == [256, 0, 2]
    total, *results = pod.ask(HOLD, limited=False, CUDA_VISIBLE_DEVICES=names[form])
    assert total > 19_000
    assert results == [0, 0]


def test_another_instance_of_the_same_gpu_is_none_of_the_pod_s(instances: tuple[Pod, Names]) -> None:
    pod, names = instances
    source = """
        must("cuInit", 0)
        count, device, context, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t()
        must("cuDeviceGetCount", ctypes.byref(count))
        tell([count.value, call("cuDeviceGet", ctypes.byref(device), 0),
              call("cuDeviceTotalMem_v2", ctypes.byref(total), 0), total.value,
              call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)])
    """
    assert pod.ask(source, CUDA_VISIBLE_DEVICES=names["first"]) == [0, 101, 0, 0, 2]
    count, device, asked, total, context = pod.ask(source, limited=False, CUDA_VISIBLE_DEVICES=names["first"])
    assert (count, device, asked, context) == (1, 0, 0, 0)
    assert total > 19_000 * MIB


THERE = (
    INSTANCES.partition("        instances")[0]
    + """
        def there(call, *arguments):
            try:
                call(*arguments)
                return True
            except n.NVMLError as error:
                assert error.value == n.NVML_ERROR_NOT_FOUND, error
                return False
        tell([n.nvmlDeviceGetCount(), [there(n.nvmlDeviceGetMigDeviceHandleByIndex, gpu, at) for at in range(3)],
              [there(n.nvmlDeviceGetHandleByUUID, uuid) for uuid in UUIDS],
              [there(n.nvmlDeviceGetHandleByUUIDV, uuid, n.NVML_UUID_TYPE_ASCII) for uuid in UUIDS],
              there(n.nvmlDeviceGetHandleByPciBusId, n.nvmlDeviceGetPciInfo(gpu).busId)])
"""
)


@pytest.mark.parametrize(("own", "seen"), [("first", [True, False]), ("uuid", [True, True])])
def test_nvml_shows_the_pod_s_instances_and_the_gpu_that_they_are_of(
    instances: tuple[Pod, Names], own: str, seen: list[bool]
) -> None:
    """Instances keep their numbers: one before the Pod's is there and has no memory, one behind it is not."""
    pod, names = instances
    pod.files.run("make", names[own], LIMIT, 1_000_000)
    pod.files.run("flags", MIG)
    both = [names["first"], names["uuid"]]
    source = THERE.replace("UUIDS", repr(both))
    known = [one == names[own] for one in both]
    assert pod.ask(source) == [1, [*seen, False], known, known, True]
    assert pod.ask(source, limited=False) == [2, [True, True, False], [True, True], [True, True], True]


def test_the_size_of_an_instance_is_told_as_the_limit(instances: tuple[Pod, Names]) -> None:
    pod, _ = instances
    source = (
        INSTANCES
        + """
        tell([[n.nvmlDeviceGetAttributes(one).memorySizeMB, n.nvmlDeviceGetMemoryInfo(one).total // MIB]
              for one in instances])
    """
    )
    assert pod.ask(source) == [[0, 0], [256, 256]]
    (first, _), (second, memory) = pod.ask(source, limited=False)
    assert first > second > 19_000
    assert memory > 19_000
