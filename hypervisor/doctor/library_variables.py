"""The variables that say where the driver's libraries lie, as a daemon of this machine has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypervisor.doctor.process_files import Process, arguments, environment
from hypervisor.doctor.subject import NodeSubject

VARIABLES = ("TF_ACCELERATOR_LIB_PATH", "TF_NVML_LIB_PATH", "TF_CUDA_LIB_PATH")
_SONAMES = {"TF_NVML_LIB_PATH": "libnvidia-ml.so.1", "TF_CUDA_LIB_PATH": "libcuda.so.1"}


@dataclass(frozen=True, slots=True)
class LibraryVariable:
    """One of them, and what it says: a file, or the folder of one."""

    name: str
    path: str


def daemons(subject: NodeSubject) -> Iterator[Process]:
    """Processes of `hypervisor run`."""
    return (each for each in subject.processes if is_daemon(arguments(subject.root, each)))


def is_daemon(words: tuple[str, ...]) -> bool:
    """Whether a command line is that of the daemon."""
    return "run" in words and any(word.rpartition("/")[2] == "hypervisor" for word in words[:4])


def variables_of(subject: NodeSubject, daemon: Process) -> Iterator[LibraryVariable]:
    """Those that are set for a daemon."""
    variables = environment(subject.root, daemon)
    return (LibraryVariable(name, variables[name]) for name in VARIABLES if variables.get(name))


def files_named(subject: NodeSubject) -> dict[str, str]:
    """Libraries of the driver by their soname, where a variable of a daemon leads to a file of its container."""
    found: dict[str, str] = {}
    for daemon in daemons(subject):
        files = subject.root.container(daemon.pid)
        for variable in variables_of(subject, daemon):
            soname = _SONAMES.get(variable.name, "")
            for path in (variable.path, f"{variable.path}/{soname}"):
                node = files.node(path)
                if soname and node is not None and node.kind != "directory":
                    found.setdefault(soname, path)
    return found
