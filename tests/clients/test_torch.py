"""PyTorch, unchanged, on the runtime for tests: allocator, streams, events, graphs, refusals, Triton.

The wheel's own runtime authenticates the driver and stops on any but NVIDIA's, so ours takes its place; so do cuBLAS
and cuDNN, which have one inside and are not tried here.
"""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buildsupport.native import ROOT
from hypervisor.simulation.environment import environment, library_folder
from tests.clients.environments import Wanted, interpreter
from tests.integration.simulation.conftest import Simulation

TORCH = Wanted("torch", ("torch==2.14.1",), 6)
RUNTIME = ROOT / "hypervisor" / "native" / "runtime" / "libcudart.so.13"
MIB = 1 << 20
PREAMBLE = "import json, warnings\nwarnings.simplefilter('ignore')\nimport torch\n"
REFUSAL = "CUDA out of memory. Tried to allocate 200.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
SECONDS = 600

pytestmark = [pytest.mark.clients, pytest.mark.slow]

Ask = Callable[..., Any]


@pytest.fixture
def ask(simulate: Callable[[str], Simulation], tmp_path: Path) -> Ask:
    """Runs a program on PyTorch that prints one JSON line last; gives it with what the ledger says of the first GPU."""
    simulation = simulate("h100-sxm-80gb")
    python = interpreter(TORCH)

    def run(source: str, **variables: str) -> Any:
        program = tmp_path / "program.py"
        program.write_text(PREAMBLE + textwrap.dedent(source))
        done = subprocess.run(
            [str(python), str(program)],
            env=environment(simulation.path)
            | {
                "LD_PRELOAD": str(RUNTIME),
                "SIM_GROUP": "torch",
                "TRITON_LIBCUDA_PATH": str(library_folder()),
                "TRITON_CACHE_DIR": str(tmp_path / "triton"),
                "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
            }
            | variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        group = next(group["gpus"]["0"] for group in simulation.show()["groups"] if group["name"] == "torch")
        return json.loads(done.stdout.splitlines()[-1]), group

    return run


def test_devices_copies_streams_and_events(ask: Ask) -> None:
    answer, group = ask(
        """
        x = torch.arange(1000).cuda()
        stream = torch.cuda.Stream()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream):
            start.record()
            for _ in range(100):
                y = x + 1
            end.record()
        end.synchronize()
        print(json.dumps({
            "count": torch.cuda.device_count(), "name": torch.cuda.get_device_name(0),
            "back": bool((x.cpu() == torch.arange(1000)).all()), "ms": start.elapsed_time(end),
        }))
        """
    )
    assert (answer["count"], answer["name"], answer["back"]) == (8, "NVIDIA H100 80GB HBM3", True)
    assert answer["ms"] >= 0.8  # a hundred kernels of 8 us
    assert group["launches"] >= 100


@pytest.mark.parametrize("mode", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_the_allocator_takes_and_gives_back(ask: Ask, mode: str) -> None:
    answer, group = ask(
        """
        blocks = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
        held = torch.cuda.memory_allocated()
        del blocks
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        print(json.dumps({"held": held, "left": total - free, "backend": torch.cuda.get_allocator_backend()}))
        """,
        **({"PYTORCH_ALLOC_CONF": mode} if mode else {}),
    )
    assert answer["held"] == 20 * 64 * MIB
    assert answer["backend"] == ("cudaMallocAsync" if "cudaMallocAsync" in mode else "native")
    assert group["peak_bytes"] >= 20 * 64 * MIB
    assert answer["left"] < 700 * MIB  # the context alone


def test_more_than_there_is_is_refused_in_the_usual_words(ask: Ask) -> None:
    answer, group = ask(
        """
        try:
            torch.empty(200 << 30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print(json.dumps(str(error)))
        """
    )
    assert answer.startswith(REFUSAL)
    assert group["peak_bytes"] < 700 * MIB


def test_a_captured_graph_runs_again_and_again(ask: Ask) -> None:
    answer, group = ask(
        """
        x = torch.zeros(100, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            z = y + 1
        for _ in range(50):
            graph.replay()
        torch.cuda.synchronize()
        print(json.dumps(True))
        """
    )
    assert answer is True
    assert group["launches"] >= 100


def test_triton_and_the_compiler(ask: Ask) -> None:
    answer, group = ask(
        """
        compiled = torch.compile(lambda value: (value * 2 + 1).relu())
        x = torch.zeros(10000, device="cuda")
        for _ in range(5):
            compiled(x)
        torch.cuda.synchronize()
        print(json.dumps(True))
        """
    )
    assert answer is True
    assert group["launches"] >= 5
