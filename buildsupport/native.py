"""The table of C libraries and programs, and the one way to compile them.

Adding one is one row in LIBRARIES. It is compiled anew when one of its inputs is newer.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from buildsupport.objects import CompileError, objects

ROOT = Path(__file__).resolve().parent.parent
OBJECTS = ROOT / "build" / "objects"

WARNINGS = ("-Wall", "-Wextra", "-Werror")
BASE_FLAGS = ("-std=c11", "-fPIC", "-fvisibility=hidden", "-pthread", *WARNINGS)
RELEASE_FLAGS = ("-O2", "-g1")

# cffi modules: "file:variable". A module is built only when its builder exists in the tree.
CFFI_MODULES = tuple(
    entry
    for entry in (
        "limiter/abi_builder.py:builder",
        "simulator/machine_builder.py:builder",
    )
    if (ROOT / entry.partition(":")[0]).exists()
)


@dataclass(frozen=True, kw_only=True)
class Library:
    """A shared library or a program: globs of sources and headers, relative to the source root."""

    output: str  # below hypervisor/native/
    sources: tuple[str, ...]
    include: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    soname: str | None = None
    version_script: str | None = None
    flags: tuple[str, ...] = ()
    program: bool = False  # an executable instead of a shared library
    link: tuple[str, ...] = field(default=("-Wl,-z,defs", "-Wl,-z,relro,-z,now"))

    def source_files(self) -> list[Path]:
        return [path for pattern in self.sources for path in sorted(ROOT.glob(pattern))]

    def present(self) -> bool:
        """True when each source pattern finds a file and the version script is there."""
        wanted = (*self.sources, self.version_script) if self.version_script else self.sources
        return all(any(ROOT.glob(pattern)) for pattern in wanted)

    def inputs(self) -> list[Path]:
        found = self.source_files()
        found += [path for pattern in self.depends for path in sorted(ROOT.glob(pattern))]
        if self.version_script:
            found.append(ROOT / self.version_script)
        return [*found, Path(__file__)]


LIBRARIES = (
    Library(
        output="libcuda_limiter.so",
        sources=("limiter/src/*.c",),
        include=("limiter/include", "limiter/src"),
        depends=("limiter/include/*.h", "limiter/src/*.h", "limiter/src/*.def"),
        soname="libcuda_limiter.so",
        version_script="limiter/limiter.map",
    ),
    # For the 32-bit programs of 64-bit machines; those of arm64 get none.
    *(
        Library(
            output="libcuda_limiter_32.so",
            sources=("limiter/other_class/nothing.c",),
            soname="libcuda_limiter.so",
            flags=("-m32", "-nostdlib"),
        )
        for machine in ("x86_64",)
        if platform.machine() == machine
    ),
    Library(
        output="simulator/libcuda.so.1",
        sources=("simulator/core/*.c", "simulator/cuda/*.c"),
        include=("simulator/include", "simulator/core", "simulator/cuda"),
        depends=("simulator/*/*.h", "simulator/*/*.def", "simulator/*/*.csv"),
        soname="libcuda.so.1",
        version_script="simulator/cuda/libcuda.map",
    ),
    Library(
        output="simulator/libnvidia-ml.so.1",
        sources=("simulator/core/*.c", "simulator/nvml/*.c"),
        include=("simulator/include", "simulator/core", "simulator/nvml"),
        depends=("simulator/*/*.h", "simulator/*/*.def", "simulator/*/*.csv"),
        soname="libnvidia-ml.so.1",
        version_script="simulator/nvml/libnvidia-ml.map",
    ),
    # As drivers of earlier branches had them: without the functions that came later.
    *(
        Library(
            output=f"simulator-r{branch}/libcuda.so.1",
            sources=("simulator/core/*.c", "simulator/cuda/*.c"),
            include=("simulator/include", "simulator/core", "simulator/cuda"),
            depends=("simulator/*/*.h", "simulator/*/*.def", "simulator/*/*.csv"),
            soname="libcuda.so.1",
            version_script=f"simulator/cuda/libcuda-r{branch}.map",
        )
        for branch in (535, 550)
    ),
    # As drivers of earlier branches had them: without the functions that came later.
    *(
        Library(
            output=f"simulator-r{branch}/libnvidia-ml.so.1",
            sources=("simulator/core/*.c", "simulator/nvml/*.c"),
            include=("simulator/include", "simulator/core", "simulator/nvml"),
            depends=("simulator/*/*.h", "simulator/*/*.def", "simulator/*/*.csv"),
            soname="libnvidia-ml.so.1",
            version_script=f"simulator/nvml/libnvidia-ml-r{branch}.map",
        )
        for branch in (535, 550, 580)
    ),
    # A runtime for tests, in a folder of its own: no program meets it unless a test names it.
    Library(
        output="runtime/libcudart.so.13",
        sources=("simulator/cudart/*.c",),
        include=("simulator/cudart", "simulator/cudart/queries", "simulator/cuda"),
        depends=("simulator/cudart/*.h", "simulator/cudart/queries/*.def", "simulator/cuda/cuda_abi.h"),
        soname="libcudart.so.13",
        version_script="simulator/cudart/cudart.map",
        link=("-Wl,-z,defs", "-ldl"),
    ),
    Library(
        output="noop/libcuda.so.1",
        sources=("simulator/noop/*.c",),
        include=("simulator/include", "simulator/cuda", "simulator/noop"),
        depends=("simulator/*/*.h", "simulator/*/*.def", "simulator/*/*.csv"),
        soname="libcuda.so.1",
        version_script="simulator/noop/noop.map",
    ),
    # The parent of each supervised worker, which outlives the daemon.
    Library(
        output="worker-shim",
        sources=("hypervisor/workers/shim/*.c",),
        include=("hypervisor/workers/shim",),
        depends=("hypervisor/workers/shim/*.h",),
        program=True,
        link=("-Wl,-z,relro,-z,now",),
    ),
    Library(
        output="clients/load",
        sources=("simulator/clients/load.c",),
        program=True,
        link=("-ldl",),
    ),
)


def compiler() -> list[str]:
    """The C compiler, from CC as everywhere else."""
    return shlex.split(os.environ.get("CC", "gcc"))


def build_library(library: Library, native: Path) -> Path | None:
    """Compile one library into `native` when an input is newer; None when its sources are not in the tree."""
    if not library.present():
        return None
    sources = library.source_files()
    target = native / library.output
    if target.exists():
        since = target.stat().st_mtime_ns
        if all(path.stat().st_mtime_ns <= since for path in library.inputs()):
            return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Linked under another name and renamed: a process that has the old library mapped keeps it whole.
    unfinished = target.with_name(target.name + ".unfinished")
    flags = [*BASE_FLAGS, *RELEASE_FLAGS, *library.flags, *(["-fPIE"] if library.program else [])]
    include = [ROOT / folder for folder in library.include]
    try:
        made = objects(compiler(), flags, include, sources, OBJECTS)
    except CompileError as error:
        raise SystemExit(f"{library.output} could not be compiled:\n{error}") from None
    command = [*compiler(), *flags, "-pie" if library.program else "-shared", *map(str, made)]
    command += ["-o", str(unfinished), *library.link]
    if library.soname:
        command.append(f"-Wl,-soname,{library.soname}")
    if library.version_script:
        command.append(f"-Wl,--version-script={ROOT / library.version_script}")
    subprocess.run(command, check=True)
    unfinished.replace(target)
    return target


# Folders of what stands in for a driver, and of the programs that tests run on it.
SIMULATION = ("simulator", "noop/", "runtime/", "clients/")


def build_libraries(native: Path) -> list[Path]:
    """Compile all libraries of the table into the folder `native`.

    With PRODUCT_ONLY in the environment without the simulated driver, which has no place in a production image.
    """
    wanted = LIBRARIES
    if os.environ.get("PRODUCT_ONLY"):
        wanted = tuple(library for library in LIBRARIES if not library.output.startswith(SIMULATION))
    return [made for library in wanted if (made := build_library(library, native))]
