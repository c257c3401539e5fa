"""The environment in which a program meets the simulated GPUs instead of real ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import hypervisor
from hypervisor.simulation.machine import MachineError, opened

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


def library_folders(driver_version: str) -> list[Path]:
    """Where the libraries of a driver of this version lie, the first hit counts.

    A library of an earlier branch lacks the functions that came later, as the real ones do. Branches in between are
    served by the one before them, and those before the first by the first.

    Raises:
        SimulatorMissingError: they were not installed.
    """
    newest = library_folder()
    branches = {
        int(folder.name.removeprefix("simulator-r")): folder
        for folder in newest.parent.glob("simulator-r*")
        if (folder / "libnvidia-ml.so.1").is_file()
    }
    wanted = int(driver_version.split(".", 1)[0])
    fitting = [branch for branch in branches if branch <= wanted]
    if not branches or wanted >= _NEWEST_BRANCH:
        return [newest]
    return [branches[max(fitting, default=min(branches))], newest]


_NEWEST_BRANCH = 590  # from here on a driver has all that is known


def _driver_version(machine: Path) -> str | None:
    """None where there is no machine: then there is no driver either, and any library says so."""
    try:
        with opened(machine) as found:
            return found.driver_version
    except MachineError:
        return None


def environment(machine: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables for a program on a machine: `base` (this process's unless given) with two changed.

    Raises:
        SimulatorMissingError: the simulated libraries were not installed.
    """
    changed = dict(os.environ if base is None else base)
    earlier = changed.get("LD_LIBRARY_PATH")
    version = _driver_version(machine)
    folders = library_folders(version) if version is not None else [library_folder()]
    changed["LD_LIBRARY_PATH"] = os.pathsep.join([*map(str, folders), *([earlier] if earlier else [])])
    changed[MACHINE_VARIABLE] = str(machine.absolute())
    return changed
