"""PyTorch, numba-cuda and NVIDIA's bindings, unchanged, under the limiter: what they are told, refused, and do next."""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hypervisor.simulation.environment import environment
from tests.clients.environments import Wanted, interpreter
from tests.clients.test_cuda_python import PACKAGES
from tests.clients.test_torch import RUNTIME, TORCH
from tests.integration.limiter.conftest import GIB, LIMITER, MIB, Files, build, limit_files
from tests.integration.simulation.conftest import Simulation

__all__ = ["build", "limit_files"]
LIMIT = 4 * GIB
SECONDS = 600

pytestmark = [pytest.mark.clients, pytest.mark.slow]


@dataclass(frozen=True)
class Limited:
    """A machine's first GPU, limited, and programs of others on it."""

    simulation: Simulation
    files: Files
    folder: Path

    def ask(
        self, wanted: Wanted, source: str, *, limited: bool = True, preload: tuple[Path, ...] = (), **more: str
    ) -> tuple[Any, int]:
        """The JSON line that a program prints last, and the most bytes the simulator ever held for it."""
        program = self.folder / "program.py"
        program.write_text(textwrap.dedent(source))
        libraries = ((LIMITER,) if limited else ()) + preload
        group = "limited" if limited else "free"
        done = subprocess.run(
            [str(interpreter(wanted)), str(program)],
            env=self.variables(libraries, limited) | {"SIM_GROUP": group} | more,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told = next(found["gpus"]["0"] for found in self.simulation.show()["groups"] if found["name"] == group)
        return json.loads(done.stdout.splitlines()[-1]), int(told["peak_bytes"])

    def variables(self, libraries: tuple[Path, ...], limited: bool) -> dict[str, str]:
        variables = environment(self.simulation.path)
        if libraries:
            variables["LD_PRELOAD"] = ":".join(str(library) for library in libraries)
        if limited:
            variables["TF_SHM_PATH"] = str(self.files.directory)
        return variables

    def torch(self, source: str, *, limited: bool = True, **more: str) -> tuple[Any, int]:
        preamble = "import json, warnings\nwarnings.simplefilter('ignore')\nimport torch\n"
        return self.ask(TORCH, preamble + textwrap.dedent(source), limited=limited, preload=(RUNTIME,), **more)


@pytest.fixture
def limited(simulate: Callable[[str], Simulation], tmp_path: Path, limit_files: Path) -> Limited:
    simulation = simulate("h100-sxm-80gb")
    gpu = simulation.show()["gpus"][0]
    directory = tmp_path / "limits"
    directory.mkdir()
    files = Files(directory, limit_files, gpu["uuid"])
    files.make(LIMIT, context_bytes=gpu["memory"]["context_bytes"])
    return Limited(simulation, files, tmp_path)


MODES = ["", "expandable_segments:True", "backend:cudaMallocAsync"]

FILL = """
blocks, words = [], None
try:
    while len(blocks) < 100:
        blocks.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as error:
    words = str(error)
held = len(blocks)
free, total = torch.cuda.mem_get_info()
del blocks
torch.cuda.empty_cache()
after = torch.cuda.mem_get_info()[0]
again = torch.ones(1 << 20, dtype=torch.uint8, device="cuda")
most = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print(json.dumps({"held": held, "words": words, "free": free, "total": total, "after": after,
                  "properties": torch.cuda.get_device_properties(0).total_memory,
                  "backend": torch.cuda.get_allocator_backend()}))
"""


@pytest.mark.parametrize("mode", MODES)
def test_pytorch_is_refused_at_the_limit_and_recovers(limited: Limited, mode: str) -> None:
    answer, peak = limited.torch(FILL, **({"PYTORCH_ALLOC_CONF": mode} if mode else {}))
    assert answer["backend"] == ("cudaMallocAsync" if "cudaMallocAsync" in mode else "native")
    assert answer["total"] == answer["properties"] == LIMIT
    assert 12 <= answer["held"] < 16  # the context takes the rest
    assert answer["free"] < 512 * MIB
    assert answer["after"] >= 3 * GIB
    assert "4.00 GiB" in answer["words"]
    assert 3 * GIB < peak <= LIMIT


@pytest.mark.parametrize("mode", MODES)
def test_pytorch_takes_all_it_asks_for_without_the_limiter(limited: Limited, mode: str) -> None:
    answer, peak = limited.torch(FILL, limited=False, **({"PYTORCH_ALLOC_CONF": mode} if mode else {}))
    assert (answer["held"], answer["words"]) == (100, None)
    assert peak > 100 * 256 * MIB > LIMIT


def test_the_words_of_pytorch_s_refusal_name_the_limit(limited: Limited) -> None:
    answer, peak = limited.torch(
        """
        try:
            torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print(json.dumps(str(error)))
        """
    )
    assert answer.startswith("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 4.00 GiB")
    assert peak < GIB


def test_pytorch_trains_within_its_limit_after_a_refusal(limited: Limited) -> None:
    answer, peak = limited.torch(
        """
        weight = torch.zeros(4 << 20, device="cuda", requires_grad=True)
        optimiser = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        refused = 0
        for step in range(20):
            try:
                torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                refused += 1
            optimiser.zero_grad()
            (weight * 2 + 1).sum().backward()
            optimiser.step()
        torch.cuda.synchronize()
        print(json.dumps(refused))
        """
    )
    assert answer == 20
    assert peak <= LIMIT


BINDINGS = """
import json
from cuda.bindings import driver as d

def good(result):
    assert result[0] == d.CUresult.CUDA_SUCCESS, result[0]
    return result[1] if len(result) == 2 else result[1:]

good(d.cuInit(0))
good(d.cuCtxSetCurrent(good(d.cuDevicePrimaryCtxRetain(good(d.cuDeviceGet(0))))))
held, result = [], None
while len(held) < 100:
    result, address = d.cuMemAlloc(256 << 20)
    if result != d.CUresult.CUDA_SUCCESS:
        break
    held.append(address)
free, total = good(d.cuMemGetInfo())
count = len(held)
for address in held:
    good(d.cuMemFree(address))
data, back = bytes(range(256)) * 4096, bytearray(1 << 20)
address = good(d.cuMemAlloc(3 << 30))
good(d.cuMemcpyHtoD(address, data, len(data)))
good(d.cuMemcpyDtoH(back, address, len(back)))
print(json.dumps({"held": count, "result": result.name, "total": total, "same": bytes(back) == data}))
"""


def test_the_bindings_are_refused_at_the_limit_and_live_on(limited: Limited) -> None:
    answer, peak = limited.ask(PACKAGES, BINDINGS)
    assert 12 <= answer.pop("held") < 16
    assert answer == {"result": "CUDA_ERROR_OUT_OF_MEMORY", "total": LIMIT, "same": True}
    assert 3 * GIB < peak <= LIMIT


def test_the_bindings_are_refused_nothing_without_the_limiter(limited: Limited) -> None:
    answer, peak = limited.ask(PACKAGES, BINDINGS, limited=False)
    assert (answer["held"], answer["result"]) == (100, "CUDA_SUCCESS")
    assert peak > LIMIT


NUMBA = """
import json
import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

@cuda.jit
def add(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] + 1

held, refusal = [], None
try:
    while len(held) < 100:
        held.append(cuda.device_array(256 << 20, dtype=np.uint8))
except CudaAPIError as error:
    refusal = str(error)
count, total = len(held), cuda.current_context().get_memory_info().total
held.clear()
cuda.current_context().deallocations.clear()
x = cuda.to_device(np.arange(1000, dtype=np.float32))
y = cuda.device_array_like(x)
add[8, 128](x, y)
cuda.synchronize()
print(json.dumps({"held": count, "refusal": refusal, "total": total,
                  "kept": bool((x.copy_to_host() == np.arange(1000)).all())}))
"""


def test_numba_is_refused_at_the_limit_and_lives_on(limited: Limited) -> None:
    answer, peak = limited.ask(PACKAGES, NUMBA)
    assert 12 <= answer["held"] < 16
    assert "OUT_OF_MEMORY" in answer["refusal"]
    assert (answer["total"], answer["kept"]) == (LIMIT, True)
    assert 3 * GIB < peak <= LIMIT


def test_numba_is_refused_nothing_without_the_limiter(limited: Limited) -> None:
    answer, peak = limited.ask(PACKAGES, NUMBA, limited=False)
    assert (answer["held"], answer["refusal"]) == (100, None)
    assert peak > LIMIT
