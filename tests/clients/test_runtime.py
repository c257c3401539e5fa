"""The runtime for tests: what programs get from it, called directly and by a program that nvcc compiled against it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from buildsupport.native import ROOT
from hypervisor.simulation.environment import environment
from tests.integration.simulation.conftest import Simulation

RUNTIME = ROOT / "hypervisor" / "native" / "runtime" / "libcudart.so.13"
MIB = 1 << 20
INSUFFICIENT_DRIVER = 35

pytestmark = pytest.mark.clients


def test_memory_streams_and_errors(simulate: Callable[[str], Simulation]) -> None:
    answer = simulate("a100-sxm-80gb").ask(
        f"""
        runtime = ctypes.CDLL({str(RUNTIME)!r})
        runtime.cudaGetErrorString.restype = ctypes.c_char_p
        count, pointer, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        properties = ctypes.create_string_buffer(4096)
        back = ctypes.create_string_buffer(16)
        codes = [
            runtime.cudaGetDeviceCount(ctypes.byref(count)),
            runtime.cudaGetDeviceProperties(properties, 0),
            runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t({MIB})),
            runtime.cudaMemcpy(pointer, b"sixteen letters!", ctypes.c_size_t(16), 1),
            runtime.cudaMemcpy(back, pointer, ctypes.c_size_t(16), 2),
            runtime.cudaStreamCreate(ctypes.byref(stream)),
            runtime.cudaMemsetAsync(pointer, 0, ctypes.c_size_t(16), stream),
            runtime.cudaStreamSynchronize(stream),
            runtime.cudaFree(pointer),
        ]
        refused = runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1 << 50))
        last = [runtime.cudaGetLastError(), runtime.cudaGetLastError()]
        tell([count.value, properties.value.decode(), codes, back.raw.decode(), refused, last,
              runtime.cudaGetErrorString(refused).decode()])
        """
    )
    count, name, codes, back, refused, last, words = answer
    assert (count, name, codes) == (8, "NVIDIA A100-SXM4-80GB", [0] * 9)
    assert back == "sixteen letters!"
    assert (refused, last, words) == (2, [2, 0], "out of memory")


@pytest.mark.parametrize(("runtime", "code"), [("12.9", 0), ("13.0", 0), ("13.5", 0), ("11.1", INSUFFICIENT_DRIVER)])
def test_it_asks_the_driver_as_the_runtime_that_is_named(
    simulate: Callable[[str], Simulation], runtime: str, code: int
) -> None:
    """Of the three recorded runtimes; each list has all that this one needs."""
    program = f"""
        runtime, pointer = ctypes.CDLL({str(RUNTIME)!r}), ctypes.c_void_p()
        tell([runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t({MIB})),
              runtime.cudaMemset(pointer, 1, ctypes.c_size_t({MIB})), runtime.cudaFree(pointer)])
        """
    assert simulate("a100-sxm-80gb").ask(program, SIM_RUNTIME=runtime) == [code] * 3


def test_without_a_driver_it_says_so(tmp_path: Path) -> None:
    source = (
        f"import ctypes; runtime = ctypes.CDLL({str(RUNTIME)!r}); version = ctypes.c_int(7)\n"
        "print(runtime.cudaFree(None), runtime.cudaDriverGetVersion(ctypes.byref(version)), version.value)"
    )
    variables = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", source], env=variables, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    if done.stdout.split()[0] != str(INSUFFICIENT_DRIVER):
        pytest.skip("there is a real driver here; this runtime is not for it")
    assert done.stdout.split() == [str(INSUFFICIENT_DRIVER), "0", "0"]


PROGRAM = """
#include <cstdio>
__device__ int table[4];
__global__ void sim_us2000(int *values) { values[threadIdx.x] = table[0]; }
int main()
{
    int *values, four[4] = {1, 2, 3, 4}, back[4] = {0};
    cudaEvent_t start, end;
    float milliseconds;
    if (cudaMalloc(&values, 1 << 20) || cudaMemcpyToSymbol(table, four, sizeof four))
        return 1;
    void *address;
    if (cudaGetSymbolAddress(&address, table) || cudaMemcpy(back, address, sizeof back, cudaMemcpyDeviceToHost))
        return 2;
    cudaEventCreate(&start);
    cudaEventCreate(&end);
    cudaEventRecord(start);
    for (int i = 0; i < 5; i++)
        sim_us2000<<<1, 32>>>(values);
    cudaEventRecord(end);
    if (cudaDeviceSynchronize() || cudaEventElapsedTime(&milliseconds, start, end))
        return 3;
    printf("[%d, %f]\\n", back[3], milliseconds);
    return cudaGetLastError();
}
"""


@pytest.mark.slow
def test_a_program_that_nvcc_compiled(simulate: Callable[[str], Simulation], tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not on this machine")
    source = tmp_path / "program.cu"
    source.write_text(textwrap.dedent(PROGRAM))
    program = tmp_path / "program"
    subprocess.run([nvcc, "--cudart", "shared", str(source), "-o", str(program)], check=True, capture_output=True)
    machine = simulate("h100-sxm-80gb")
    done = subprocess.run(
        [str(program)],
        env=environment(machine.path) | {"LD_PRELOAD": str(RUNTIME), "SIM_GROUP": "nvcc"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    fourth, milliseconds = json.loads(done.stdout)
    assert fourth == 4
    assert milliseconds >= 10
    group = next(group["gpus"]["0"] for group in machine.show()["groups"] if group["name"] == "nvcc")
    assert group["launches"] == 5
    assert group["busy_ns"] == 10_000_000
