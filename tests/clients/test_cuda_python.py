"""NVIDIA's Python bindings, cuda-core and numba-cuda with its compiler, unchanged, on the simulated driver."""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hypervisor.simulation.environment import environment
from tests.clients.environments import Wanted, interpreter
from tests.integration.simulation.conftest import Simulation

PACKAGES = Wanted("bindings", ("cuda-bindings==13.5.0", "cuda-core==1.2.2", "numba-cuda[cu13]==0.30.4"), 1.5)
SECONDS = 300

pytestmark = [pytest.mark.clients, pytest.mark.slow]


@pytest.fixture
def ask(simulate: Callable[[str], Simulation], tmp_path: Path) -> Callable[[str], Any]:
    """Runs a program that prints one JSON line last; the machine's ledger is empty again afterwards."""
    simulation = simulate("a100-sxm-80gb")
    python = interpreter(PACKAGES)

    def run(source: str) -> Any:
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(source))
        done = subprocess.run(
            [str(python), str(program)],
            env=environment(simulation.path) | {"SIM_GROUP": "client"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        group = next(group["gpus"]["0"] for group in simulation.show()["groups"] if group["name"] == "client")
        return json.loads(done.stdout.splitlines()[-1]), group

    return run


def test_the_bindings_of_the_driver(ask: Callable[[str], Any]) -> None:
    answer, group = ask(
        """
        import ctypes, json
        from cuda.bindings import driver as d

        def good(result):
            assert result[0] == d.CUresult.CUDA_SUCCESS, result[0]
            return result[1] if len(result) == 2 else result[1:]

        good(d.cuInit(0))
        device = good(d.cuDeviceGet(0))
        context = good(d.cuDevicePrimaryCtxRetain(device))
        good(d.cuCtxSetCurrent(context))
        address = good(d.cuMemAlloc(1 << 20))
        data = bytes(range(256)) * 4096
        good(d.cuMemcpyHtoD(address, data, len(data)))
        back = bytearray(len(data))
        good(d.cuMemcpyDtoH(back, address, len(back)))
        module = good(d.cuModuleLoadData(b".version 8.0\\n.visible .entry sim_us500() { ret; }\\0"))
        kernel = good(d.cuModuleGetFunction(module, b"sim_us500"))
        stream = good(d.cuStreamCreate(0))
        start, end = good(d.cuEventCreate(0)), good(d.cuEventCreate(0))
        good(d.cuEventRecord(start, stream))
        for _ in range(10):
            good(d.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0))
        good(d.cuEventRecord(end, stream))
        good(d.cuStreamSynchronize(stream))
        print(json.dumps({"same": bytes(back) == data, "ms": good(d.cuEventElapsedTime(start, end))}))
        """
    )
    assert answer["same"]
    assert 5.0 <= answer["ms"] < 50.0
    assert group["launches"] == 10
    assert group["peak_bytes"] >= 1 << 20


def test_cuda_core(ask: Callable[[str], Any]) -> None:
    answer, group = ask(
        """
        import json
        from cuda.core import Device, ObjectCode, LaunchConfig, launch

        device = Device(0)
        device.set_current()
        stream = device.create_stream()
        buffer = device.allocate(1 << 20, stream=stream)
        code = ObjectCode.from_ptx(b".version 8.0\\n.target sm_80\\n.visible .entry sim_us100() { ret; }\\n\\0")
        launch(stream, LaunchConfig(grid=1, block=32), code.get_kernel("sim_us100"))
        stream.sync()
        size = buffer.size
        buffer.close(stream)
        print(json.dumps({"name": device.name, "size": size}))
        """
    )
    assert answer == {"name": "NVIDIA A100-SXM4-80GB", "size": 1 << 20}
    assert group["launches"] == 1


def test_numba_compiles_and_launches(ask: Callable[[str], Any]) -> None:
    answer, group = ask(
        """
        import json
        import numpy as np
        from numba import cuda

        @cuda.jit
        def add(x, y):
            i = cuda.grid(1)
            if i < x.size:
                y[i] = x[i] + 1

        x = cuda.to_device(np.arange(1000, dtype=np.float32))
        y = cuda.device_array_like(x)
        for _ in range(3):
            add[8, 128](x, y)
        cuda.synchronize()
        print(json.dumps({"kept": bool((x.copy_to_host() == np.arange(1000)).all())}))
        """
    )
    assert answer == {"kept": True}
    assert group["launches"] == 3
