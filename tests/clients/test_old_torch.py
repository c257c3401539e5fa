"""PyTorch 1.12 trains with its own CUDA runtime, cuBLAS and cuDNN, all NVIDIA's, on a simulated GPU; also under limits.

Its runtime, 10.2, has no authentication; it takes every function by dlsym, and four private tables besides, which
only the driver of this test has.
"""

from __future__ import annotations

import ctypes
import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hypervisor.simulation import machine as machines
from hypervisor.simulation.environment import library_folder
from tests.clients.environments import Wanted, interpreter
from tests.clients.old_driver import driver_folder
from tests.integration.limiter.conftest import GIB, MIB, Pod

OLD_TORCH = Wanted("torch-1.12", ("torch==1.12.1", "numpy<2"), 2, python=(3, 10))
AUTHENTICATION = bytes.fromhex("d4082055") + bytes(12)
HOOKS = bytes.fromhex("a094798c") + bytes(12)
INVALID_VALUE = 1
LIMIT = GIB + 256 * MIB

pytestmark = [pytest.mark.clients, pytest.mark.slow]

TRAINING = """
import json, time, torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(7200, 10)).cuda()
optimiser = torch.optim.Adam(model.parameters())

def train(steps):
    torch.cuda.synchronize()
    since = time.monotonic()
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(
            model(torch.randn(4, 3, 32, 32, device="cuda")), torch.zeros(4, dtype=torch.long, device="cuda")
        ).backward()
        optimiser.step()
    torch.cuda.synchronize()
    return steps / (time.monotonic() - since)

train(3)
"""

Train = Callable[..., Any]


@pytest.fixture
def train(pod: Pod, tmp_path: Path) -> Train:
    """Runs a program that follows a few steps of training and prints one JSON line; gives it and the ledger's words."""
    python = interpreter(OLD_TORCH)
    folder = driver_folder()

    def run(source: str, *, limited: bool) -> Any:
        program = tmp_path / "program.py"
        program.write_text(TRAINING + textwrap.dedent(source))
        path = os.pathsep.join([str(folder), pod.variables()["LD_LIBRARY_PATH"]])
        done = pod.run([str(python), str(program)], limited=limited, LD_LIBRARY_PATH=path, SIM_GROUP="torch")
        assert (done.returncode, done.stderr) == (0, "")
        with machines.opened(pod.machine) as machine:
            group = next(group["gpus"]["0"] for group in machine.show()["groups"] if group["name"] == "torch")
        return json.loads(done.stdout), group

    return run


def test_it_trains_and_the_ledger_shows_it(train: Train) -> None:
    answer, group = train(
        """
        rate = train(50)
        print(json.dumps({
            "runtime": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "rate": rate,
            "reserved": torch.cuda.max_memory_reserved(),
        }))
        """,
        limited=False,
    )
    assert (answer["runtime"], answer["cudnn"]) == ("10.2", 7605)
    assert answer["rate"] > 0
    assert answer["reserved"] >= 2 * MIB
    assert group["peak_bytes"] >= answer["reserved"]
    assert group["launches"] >= 53 * 20  # forward, backward and Adam of six layers' parameters
    assert group["busy_ns"] >= 53 * 20 * 8_000  # that many kernels of 8 us, one after the other


def test_it_trains_within_limits_and_goes_on_after_a_refusal(train: Train, pod: Pod) -> None:
    pod.files.make(LIMIT, context_bytes=pod.gpu()["memory"]["context_bytes"])
    answer, group = train(
        """
        before = train(10)
        held, words = [], ""
        try:
            while True:
                held.append(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))
        except RuntimeError as error:
            words = str(error)
        count = len(held)
        held.clear()
        torch.cuda.empty_cache()
        print(json.dumps({"before": before, "after": train(10), "words": words, "count": count,
                          "total": torch.cuda.mem_get_info()[1]}))
        """,
        limited=True,
    )
    assert answer["total"] == LIMIT
    assert answer["words"].startswith(
        "CUDA out of memory. Tried to allocate 100.00 MiB (GPU 0; 1.25 GiB total capacity;"
    )
    assert 8 <= answer["count"] <= 12
    assert answer["before"] > 0
    assert answer["after"] > 0
    assert group["peak_bytes"] <= LIMIT


@pytest.mark.parametrize("table", [AUTHENTICATION, HOOKS])
def test_the_driver_that_is_shipped_has_no_private_table(table: bytes) -> None:
    assert ask_for(library_folder(), table) == INVALID_VALUE


def test_the_driver_of_this_test_authenticates_nothing_either() -> None:
    assert ask_for(driver_folder(), HOOKS) == 0
    assert ask_for(driver_folder(), AUTHENTICATION) == INVALID_VALUE


def ask_for(folder: Path, table: bytes) -> int:
    driver = ctypes.CDLL(str(folder / "libcuda.so.1"))
    found = ctypes.c_void_p()
    return int(driver.cuGetExportTable(ctypes.byref(found), table))
