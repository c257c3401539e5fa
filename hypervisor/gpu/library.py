"""Which libnvidia-ml.so.1 is used, and whether a real driver is behind it. No function of NVML is called here."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SONAME = "libnvidia-ml.so.1"
PATH_VARIABLE = "TF_NVML_LIB_PATH"

# Where drivers put the library when the loader's own search does not find it.
KNOWN_DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/opt/nvidia/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
)

# A real NVML talks to one of these; without any of them there is no driver, whatever a library says.
DRIVER_TRACES = (
    "/dev/nvidiactl",
    "/dev/dxg",  # WSL 2
    "/dev/nvmap",  # Jetson
    "/dev/nvgpu",
    "/dev/nvhost-ctrl",
    "/proc/driver/nvidia/version",
    "/sys/module/nvidia",
)
# What opening a device node gives when no driver stands behind it: NVIDIA's programs make nodes without one.
NOBODY_THERE = frozenset({errno.ENXIO, errno.ENODEV, errno.ENOENT})

SIMULATED_MACHINE = b"_GPUSIM1"  # the first bytes of a simulated machine, mapped by whoever runs on it


@dataclass(frozen=True)
class LibraryNotFoundError(Exception):
    """No library could be loaded; tried is what and why, one text for each attempt."""

    tried: tuple[str, ...]


def load(environment: Mapping[str, str]) -> str:
    """Load the library under its soname, so that all later users get the same one; the name that worked.

    TF_NVML_LIB_PATH, a file or a folder, is the only candidate where it is set. Raises LibraryNotFoundError.
    """
    tried: list[str] = []
    for candidate in candidates(environment):
        try:
            ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
            # Another soname would let nvidia-ml-py load a second library.
            ctypes.CDLL(SONAME)
        except OSError as error:
            tried.append(str(error) if candidate in str(error) else f"{candidate}: {error}")
        else:
            return candidate
    raise LibraryNotFoundError(tuple(tried))


def candidates(environment: Mapping[str, str]) -> Sequence[str]:
    """Names to try, in order; files that do not exist are left out unless they were asked for."""
    wanted = environment.get(PATH_VARIABLE)
    if wanted:
        return (str(Path(wanted) / SONAME) if Path(wanted).is_dir() else wanted,)
    known = (Path(directory) / SONAME for directory in KNOWN_DIRECTORIES)
    return (SONAME, *(str(path) for path in known if path.exists()))


def loaded_path(maps: str) -> str:
    """The file of the library, from the text of /proc/self/maps; "" when it is not mapped."""
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and Path(fields[5]).name.startswith("libnvidia-ml.so"):
            return fields[5]
    return ""


def is_simulated() -> bool:
    """Whether the library of this process is no real driver; ask after nvmlInit.

    True when a simulated machine is mapped into this process, which no setting can hide, or when the kernel shows no
    trace of a driver that NVML could talk to.
    """
    if not driver_present():
        return True
    starts = shared_mappings(Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"))
    return any(_begins_with_machine(start) for start in starts)


def driver_present() -> bool:
    """Is a driver's kernel part loaded? A device node alone does not count; one that we may not open does."""
    return any(_answers(trace) for trace in DRIVER_TRACES)


def _answers(trace: str) -> bool:
    if not trace.startswith("/dev/"):
        return Path(trace).exists()
    try:
        os.close(os.open(trace, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in NOBODY_THERE
    return True


def shared_mappings(maps: str) -> list[int]:
    """Start addresses of readable shared mappings of files, from their first byte on, the driver's devices left out."""
    found = []
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or fields[1][0] != "r" or fields[1][3] != "s" or int(fields[2], 16) != 0:
            continue
        if fields[5].startswith(("/dev/nv", "/dev/dxg", "/dev/dri")):
            continue
        found.append(int(fields[0].partition("-")[0], 16))
    return found


def _begins_with_machine(address: int) -> bool:
    # Through the kernel and not by the pointer: a truncated file is an error here, and a signal there.
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.pread(memory, len(SIMULATED_MACHINE), address) == SIMULATED_MACHINE
    except OSError:
        return False
    finally:
        os.close(memory)
