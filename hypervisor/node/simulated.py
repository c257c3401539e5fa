"""`--simulate`: a machine with GPUs that aren't there. The daemon's own code is the same on a real driver."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from hypervisor.model import NodeIdentity
from hypervisor.node.failure import StartError, storage_error


def prepare(simulate: str, state_directory: Path, identity: NodeIdentity) -> Path:
    """The machine file to run on: the one that is named, or one made from a profile or a YAML file.

    What is made lies in the state directory and is used again until the next boot, with which a machine's clock
    begins anew. Its GPUs have UUIDs of this node's own. Raises StartError.
    """
    try:
        from hypervisor.simulation.document import DocumentError
        from hypervisor.simulation.machine import MachineError, prepared
    except ImportError as error:
        raise StartError(
            f"this installation has no simulator ({error.name} is missing); install the product from its source tree,"
            " or run without --simulate"
        ) from None
    machines = state_directory / "simulated"
    folder = machines / identity.boot_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for earlier in machines.iterdir():
            if earlier != folder:
                shutil.rmtree(earlier, ignore_errors=True)
    except OSError as error:
        raise storage_error("make the simulated machine in", machines, error) from error
    try:
        return prepared(simulate, folder, seed=identity.uid)
    except (DocumentError, MachineError) as error:
        raise StartError(f"can't run on the simulated machine {simulate}: {error}") from None


def environment(machine: Path, base: Mapping[str, str]) -> dict[str, str]:
    """base, changed so that a program started with it meets the machine's GPUs. Raises StartError."""
    from hypervisor.simulation.environment import SimulatorMissingError
    from hypervisor.simulation.environment import environment as simulated_environment

    try:
        return simulated_environment(machine, base)
    except SimulatorMissingError as error:
        raise StartError(str(error)) from None


def workload_environment(machine: Path) -> dict[str, str]:
    """What a workload needs so that its own CUDA meets the machine's GPUs. Raises StartError."""
    return environment(machine, {})
