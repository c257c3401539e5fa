"""Bugs that users of other limiters reported, of GPU time, devices and builds. The names say which."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from buildsupport.native import ROOT, compiler
from hypervisor.simulation import machine as machines
from hypervisor.simulation.profiles import load_description
from tests.integration.limiter.conftest import GIB, MIB, Files, Pod, heard

pytestmark = pytest.mark.slow  # loads that run for seconds, and builds with other compilers
NVML = """
        import pynvml as n
        def answer(function, *arguments):
            try:
                return function(*arguments)
            except n.NVMLError as error:
                return error.value
        n.nvmlInit()
        handle = n.nvmlDeviceGetHandleByIndex(0)
"""


@pytest.fixture
def two(tmp_path: Path, limit_files: Path) -> tuple[Pod, list[str]]:
    """A Pod of a machine with several GPUs, limited on the first two: to 1 GiB and 256 MiB, 80 and 20 %."""
    machine = tmp_path / "machine"
    machines.create(machine, load_description("a100-sxm-80gb"))
    with machines.opened(machine) as opened:
        uuids = [gpu["uuid"] for gpu in opened.show()["gpus"][:2]]
    directory = tmp_path / "limits"
    directory.mkdir()
    files = Files(directory, limit_files, uuids[0])
    files.make(GIB, 800_000)
    files.run("also", uuids[1], 256 * MIB, 200_000)
    return Pod(machine, files), uuids


def test_a_launch_on_two_devices_is_charged_on_each(two: tuple[Pod, list[str]]) -> None:
    """By the smaller share of the two, 20 %: the kernels go together."""
    pod, _ = two
    source = """
        class Parameters(ctypes.Structure):
            _fields_ = [("function", ctypes.c_void_p)]
            _fields_ += [(name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")]
            _fields_ += [("stream", ctypes.c_void_p), ("parameters", ctypes.c_void_p)]
        must("cuInit", 0)
        both = (Parameters * 2)()
        for device in (1, 0):
            start(device)
            stream = ctypes.c_void_p()
            must("cuStreamCreate", ctypes.byref(stream), 1)
            both[device] = Parameters(kernel(2000), 1, 1, 1, 32, 1, 1, 0, stream)
        tell("ready")
        while True:
            must("cuLaunchCooperativeKernelMultiDevice", both, 2, 0)
    """

    def busy() -> list[int]:
        with machines.opened(pod.machine) as opened:
            return [int(gpu["busy_ns"]) for gpu in opened.show()["gpus"][:2]]

    with pod.running(source) as process:
        heard(process)
        time.sleep(0.5)
        before, began = busy(), time.monotonic()
        time.sleep(1.5)
        passed = time.monotonic() - began
        shares = [(after - earlier) / 1e9 / passed for after, earlier in zip(busy(), before, strict=True)]
    assert all(0.05 < share < 0.24 for share in shares), shares  # less where others keep the processors busy


def test_hami_core_104_each_device_has_its_own_limits(two: tuple[Pod, list[str]]) -> None:
    """Its second GPU was not limited: neither memory nor time of the first stands for another's."""
    pod, _ = two
    source = """
        must("cuInit", 0)
        contexts = []
        for device in range(2):
            context = ctypes.c_void_p()
            must("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            contexts.append(context)
        def on(device):
            must("cuCtxSetCurrent", contexts[device])
        granted = []
        for device in range(2):
            on(device)
            granted.append([alloc(200 * MIB)[0], alloc(200 * MIB)[0], alloc(900 * MIB)[0]])
        functions = []
        for device in range(2):
            on(device)
            functions.append(kernel(1000))
        def seconds(device, count):
            on(device)
            began = time.monotonic()
            for _ in range(count):
                assert launch(functions[device]) == 0
            must("cuCtxSynchronize")
            return time.monotonic() - began
        for device in range(2):
            seconds(device, 100)  # what may be used ahead of the clock, and the measuring
        tell([granted, seconds(1, 100) / seconds(0, 100)])
    """
    granted, ratio = pod.ask(source)
    assert granted == [[0, 0, 2], [0, 2, 2]]
    assert ratio == pytest.approx(4, rel=0.25)


def test_hami_core_225_no_context_on_a_device_that_is_not_asked_for(two: tuple[Pod, list[str]]) -> None:
    """It looked for its host pid with a context on the first device, and left that there."""
    pod, _ = two
    with pod.running(
        "start(); tell(alloc(100 * MIB)[0]); sys.stdin.readline()", variables={"CUDA_VISIBLE_DEVICES": "1"}
    ) as process:
        assert heard(process) == 0
        with machines.opened(pod.machine) as machine:
            gpus = machine.show()["gpus"]
    used = [gpu["memory"]["used_bytes"] for gpu in gpus[:2]]
    assert used == [0, 100 * MIB + gpus[1]["memory"]["context_bytes"]]


def test_hami_core_61_structures_of_other_versions_are_for_the_driver_to_refuse(pod: Pod) -> None:
    source = (
        NVML
        + """
        def info(version):
            memory = n.c_nvmlMemory_v2_t()
            memory.version = version
            function = n._nvmlGetFunctionPointer("nvmlDeviceGetMemoryInfo_v2")
            return [function(handle, ctypes.byref(memory)), memory.version == version]
        tell([info(0), info(n.nvmlMemory_v2 + 1), info(n.nvmlMemory_v2)])
    """
    )
    limited = pod.ask(source)
    assert limited == pod.ask(source, limited=False)
    assert limited[2] == [0, True]
    assert limited[0][0] != 0


def test_hami_core_29_the_first_launch_waits_for_no_reading(pod: Pod) -> None:
    """Its first launch waited for ever where the driver had no samples: here nobody ever read any."""
    pod.files.make(GIB, 300_000)
    source = """
        start()
        function = kernel(100)
        began = time.monotonic()
        result = launch(function)
        tell([result, time.monotonic() - began])
    """
    result, seconds = pod.ask(source)
    assert result == 0
    assert seconds < 1


def charge(pod: Pod, source: str) -> int:
    pod.files.make(GIB, 900_000)
    assert pod.ask(source) == 0
    return int(pod.files.show()["charged_ns"])


def test_hami_core_pr_144_a_launch_costs_its_time_and_not_its_blocks(pod: Pod) -> None:
    """vcuda 14 too: one block of 1024 threads, and 1024 blocks of one. Here both take a millisecond."""
    source = """
        start()
        function = kernel(1000)
        for _ in range(40):
            result = call("cuLaunchKernel", function, {grid}, 1, 1, {block}, 1, 1, 0, None, None, None)
            assert result == 0
            must("cuCtxSynchronize")
        tell(0)
    """
    few, many = (charge(pod, source.format(grid=grid, block=block)) for grid, block in [(1, 1024), (1024, 1)])
    assert few == pytest.approx(many, rel=0.15)
    assert few == pytest.approx(40e6, rel=0.3)


def test_hami_core_pr_282_limits_that_were_not_published_to_the_end_are_not_read(pod: Pod) -> None:
    """The daemon was killed while it wrote: no reader waits for it, and what was in force holds."""
    shm = pod.files.directory / "shm"
    limits_offset, slot_bytes, generation_offset = 8192, 64 + 16 * 256, 4096
    content = shm.read_bytes()
    in_force = int.from_bytes(content[generation_offset : generation_offset + 8], "little") & 1
    with pod.running(
        "start(); tell(0); sys.stdin.readline(); tell([alloc(600 * MIB)[0] for _ in range(2)])"
    ) as process:
        assert heard(process) == 0
        with shm.open("r+b") as file:
            file.seek(limits_offset + (1 - in_force) * slot_bytes)
            file.write(b"\xff" * (slot_bytes // 2))
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert heard(process) == [0, 2]


@pytest.mark.slow
def test_hami_core_262_the_sources_are_of_the_next_language_too(tmp_path: Path) -> None:
    """It no longer compiled where empty parentheses mean no parameters: C23, as of GCC 15."""
    includes = [f"-I{ROOT / part}" for part in ("limiter/include", "limiter/src")]
    for source in sorted((ROOT / "limiter" / "src").glob("*.c")):
        command = [*compiler(), "-std=c2x", "-Wall", "-Wextra", "-Wstrict-prototypes", "-Werror", *includes]
        subprocess.run([*command, "-fsyntax-only", str(source)], check=True)
