"""The environment in which a program meets the simulated GPUs instead of real ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import hypervisor

MACHINE_VARIABLE = "SIM_MACHINE"
_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


class SimulatorMissingError(RuntimeError):
    """This installation has no simulated libraries."""


def library_folder() -> Path:
    """The folder of the simulated libraries, which is in no search path.

    Raises:
        SimulatorMissingError: they were not installed.
    """
    folder = Path(hypervisor.__file__).resolve().parent / "native" / "simulator"
    missing = [name for name in _LIBRARIES if not (folder / name).is_file()]
    if missing:
        raise SimulatorMissingError(
            f"this installation has no simulator ({folder / missing[0]} is missing); "
            "install the product from its source tree, or run on a real driver"
        )
    return folder


def environment(machine: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables for a program on a machine: `base` (this process's unless given) with two changed.

    Raises:
        SimulatorMissingError: the simulated libraries were not installed.
    """
    changed = dict(os.environ if base is None else base)
    earlier = changed.get("LD_LIBRARY_PATH")
    folder = str(library_folder())
    changed["LD_LIBRARY_PATH"] = f"{folder}:{earlier}" if earlier else folder
    changed[MACHINE_VARIABLE] = str(machine.absolute())
    return changed
