"""Programs under the limiter on a simulated machine, with limit files made by the header alone: no daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from buildsupport.native import ROOT, WARNINGS, compiler
from hypervisor.simulation import machine as machines
from hypervisor.simulation.environment import environment
from hypervisor.simulation.profiles import load_description

SECONDS = 60
MIB = 1 << 20
GIB = 1 << 30
LIMITER = ROOT / "hypervisor" / "native" / "libcuda_limiter.so"
TESTS = ROOT / "limiter" / "tests"

PREAMBLE = """
import ctypes, json, os, sys, threading, time
MIB, GIB = 1 << 20, 1 << 30
def tell(value):
    print(json.dumps(value), flush=True)
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    return getattr(cuda, name)(*arguments)
def must(name, *arguments):
    result = call(name, *arguments)
    assert result == 0, (name, result)
def start(device=0):
    must("cuInit", 0)
    context = ctypes.c_void_p()
    must("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    must("cuCtxSetCurrent", context)
    return context
def alloc(size, name="cuMemAlloc_v2", *more):
    pointer = ctypes.c_uint64()
    result = call(name, ctypes.byref(pointer), ctypes.c_size_t(size), *more)
    return result, pointer
def free(pointer):
    return call("cuMemFree_v2", pointer)
def memory():
    left, total = ctypes.c_size_t(), ctypes.c_size_t()
    must("cuMemGetInfo_v2", ctypes.byref(left), ctypes.byref(total))
    return left.value, total.value
def kernel(microseconds):
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    must("cuModuleLoadData", ctypes.byref(module), b".version 7.0\\n.target sm_70\\n.address_size 64\\n")
    must("cuModuleGetFunction", ctypes.byref(function), module, b"sim_us%d" % microseconds)
    return function
def launch(function, grid=1, name="cuLaunchKernel", stream=None):
    return call(name, function, grid, 1, 1, 32, 1, 1, 0, stream, None, None)
"""


@dataclass(frozen=True)
class Files:
    """Limit files of one allocation, and the tool that stands for the daemon."""

    directory: Path
    tool: Path
    uuid: str

    def run(self, command: str, *arguments: object) -> str:
        done = subprocess.run(
            [str(self.tool), command, str(self.directory), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        return done.stdout

    def make(self, vram: int, share_ppm: int = 1_000_000, context_bytes: int = 0) -> None:
        self.run("make", self.uuid, vram, share_ppm, context_bytes)

    def set(self, vram: int, share_ppm: int = 1_000_000) -> None:
        self.run("set", self.uuid, vram, share_ppm)

    def freeze(self, frozen: bool) -> None:
        self.run("freeze", int(frozen))

    def show(self) -> dict[str, Any]:
        return dict(json.loads(self.run("show")))


@dataclass(frozen=True)
class Pod:
    """A machine, limit files, and how programs are run under them."""

    machine: Path
    files: Files
    limiter: Path = LIMITER

    def variables(self, *, limited: bool = True, **more: str) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "SIM_"))}
        variables = environment(self.machine, clean)
        if limited:
            variables |= {"LD_PRELOAD": str(self.limiter), "TF_SHM_PATH": str(self.files.directory)}
        return variables | more

    def run(
        self, command: list[str], *, limited: bool = True, stdin: str | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.variables(limited=limited, **more),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def program(self, source: str) -> list[str]:
        return [sys.executable, "-c", PREAMBLE + textwrap.dedent(source)]

    def ask(self, source: str, *, limited: bool = True, **more: str) -> Any:
        """Run a program that `tell`s one value, and return the value."""
        done = self.run(self.program(source), limited=limited, **more)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return json.loads(done.stdout)

    @contextmanager
    def running(
        self, source: str, *, limited: bool = True, variables: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """A program that tells line by line and may wait on its stdin; it is ended with the block."""
        with subprocess.Popen(
            self.program(source),
            env=self.variables(limited=limited) | dict(variables or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def gpu(self) -> dict[str, Any]:
        """The simulator's own view of the first GPU."""
        with machines.opened(self.machine) as machine:
            return dict(machine.show()["gpus"][0])


def heard(process: subprocess.Popen[str]) -> Any:
    """The next value that a running program tells."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the program ended without a word"
    return json.loads(line)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles a C source of limiter/tests: build("name", "source.c", ..., flags=(...))."""
    folder = tmp_path_factory.mktemp("limiter-programs")

    def compile_(output: str, *sources: str, flags: tuple[str, ...] = ()) -> Path:
        target = folder / output
        target.parent.mkdir(exist_ok=True)
        includes = [f"-I{ROOT / part}" for part in ("limiter/include", "limiter/src", "limiter/tests")]
        command = [*compiler(), "-std=c11", "-O1", *WARNINGS, *includes]
        command += [str(TESTS / source) for source in sources]
        subprocess.run([*command, "-o", str(target), *flags], check=True)
        return target

    return compile_


@pytest.fixture(scope="session")
def limit_files(build: Callable[..., Path]) -> Path:
    return build("limit_files", "limit_files.c", "file_maker.c")


@pytest.fixture
def pod(tmp_path: Path, limit_files: Path) -> Pod:
    """A Pod with one of the first GPU's UUIDs, limited to 1 GiB and all of its time."""
    machine = tmp_path / "machine"
    machines.create(machine, load_description("t4"))
    with machines.opened(machine) as opened:
        uuid = opened.show()["gpus"][0]["uuid"]
    directory = tmp_path / "limits"
    directory.mkdir()
    files = Files(directory, limit_files, uuid)
    files.make(GIB)
    return Pod(machine, files)
