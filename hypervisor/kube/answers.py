"""What a container is given by Allocate: environment, mounts, device nodes or CDI names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from hypervisor.kube.names import (
    CONTAINER_LIMITER,
    CONTAINER_PRELOAD,
    CONTAINER_SHM,
    CONTAINER_USAGE,
    DOMAIN,
    LIBRARY_FOLDERS,
    LIBRARY_FOLDERS_32,
)
from hypervisor.model import GpuIdentity, IsolationMode


class Injection(Enum):
    """How the cards get into a container.

    environment: NVIDIA_VISIBLE_DEVICES for NVIDIA's runtime, and the device nodes by name, so that a reload of
    systemd does not take them away. nodes: device nodes only. cdi: names of devices in our CDI file.
    """

    ENVIRONMENT = "environment"
    NODES = "nodes"
    CDI = "cdi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A bind mount of a file of the host."""

    container_path: str
    host_path: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAnswer:
    """All that a container is given. nodes are paths below /dev, the same inside and outside."""

    environment: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFiles:
    """Paths on the host of what every container is given: the limiter's library and the ld.so.preload that names it.

    limiter_32: the library with nothing in it that 32-bit programs get; "" where there is none.
    preload_hook: the program that puts the library into the image's own ld.so.preload instead; "" where there is none.
    """

    limiter: str
    preload: str
    limiter_32: str = ""
    preload_hook: str = ""
    injection: Injection = Injection.ENVIRONMENT
    workload_environment: tuple[tuple[str, str], ...] = field(default=())


def library_places(host: HostFiles) -> tuple[tuple[str, str], ...]:
    """Where the limiter lies in a container, and what lies there, for programs of either class."""
    found = [(folder, host.limiter) for folder in LIBRARY_FOLDERS]
    found += [(folder, host.limiter_32) for folder in LIBRARY_FOLDERS_32 if host.limiter_32]
    return tuple((CONTAINER_LIMITER.replace("$LIB", folder), library) for folder, library in found)


# The CDI device that loads the limiter by a hook.
PRELOAD_DEVICE = f"{DOMAIN}/limiter=preload"

# Where a client looks for its control daemon when its environment names no other place: also one that drops it.
CONTAINER_MPS_PIPE = "/tmp/nvidia-mps"  # noqa: S108 - MPS's own default
CONTAINER_SHARED_MEMORY = "/dev/shm"  # noqa: S108


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsShare:
    """What a client of an MPS server is given: its environment, and on the host the pipe directory and what the
    server has as /dev/shm, for both must share it."""

    environment: tuple[tuple[str, str], ...]
    pipe_directory: str
    shared_memory: str


CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


NO_MIG_MINORS: Mapping[str, int] = MappingProxyType({})


def device_nodes(cards: Iterable[GpuIdentity], mig_minors: Mapping[str, int] = NO_MIG_MINORS) -> tuple[str, ...]:
    """The device nodes of these cards and of the driver; the caller leaves out those that are not there."""
    found = sorted({node for card in cards for node in nodes_of(card, mig_minors)})
    return (*found, *CONTROL_NODES)


def nodes_of(card: GpuIdentity, mig_minors: Mapping[str, int]) -> tuple[str, ...]:
    """A card's own nodes: for a MIG instance its card's, and those by which the driver lets a process use it.
    mig_minors: the driver's table, as read_mig_minors() gives it."""
    if card.minor is None:
        return ()
    nodes, part = [f"/dev/nvidia{card.minor}"], card.partition
    if part is not None:
        place = f"gpu{card.minor}/gi{part.gpu_instance_id}"
        keys = (f"{place}/access", f"{place}/ci{part.compute_instance_id}/access")
        nodes += [f"/dev/nvidia-caps/nvidia-cap{mig_minors[key]}" for key in keys if key in mig_minors]
    return tuple(nodes)


def read_mig_minors(table: str) -> Mapping[str, int]:
    """/proc/driver/nvidia-caps/mig-minors: minor numbers by what they give access to, as in "gpu0/gi1/access 12"."""
    rows = (line.split() for line in table.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


def answer(
    directory: str,
    host: HostFiles,
    *,
    cards: Sequence[GpuIdentity],
    isolation: IsolationMode | None,
    chosen: bool,
    existing_nodes: Iterable[str],
    mig_minors: Mapping[str, int] = NO_MIG_MINORS,
    mps: MpsShare | None = None,
) -> ContainerAnswer:
    """The answer for a container whose limit files lie in a directory of the host.

    cards: those that the container gets; chosen False: it is not known yet which, so they are all.
    mps: of a card that is shared by MPS.
    isolation None: not known yet; the limiter is then loaded, waits until the file is armed, and does what it says.
    """
    limited = isolation in (None, IsolationMode.SOFT)
    environment = {
        **dict(host.workload_environment),
        "TF_ISOLATION_MODE": (isolation or IsolationMode.SOFT).value,
        "TF_SHM_PATH": CONTAINER_SHM,
    }
    if chosen:
        # Device 0 is then the first card of the grant, whatever else the image makes visible.
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(card.uuid for card in cards)
    mounts = [
        Mount(container_path=CONTAINER_SHM, host_path=f"{directory}/shm", read_only=True),
        Mount(container_path=CONTAINER_USAGE, host_path=f"{directory}/usage", read_only=False),
    ]
    if limited:
        mounts += [
            Mount(container_path=path, host_path=library, read_only=True) for path, library in library_places(host)
        ]
        if not host.preload_hook:
            mounts.append(Mount(container_path=CONTAINER_PRELOAD, host_path=host.preload, read_only=True))
    if mps is not None:
        environment |= {**dict(mps.environment), "CUDA_MPS_PIPE_DIRECTORY": CONTAINER_MPS_PIPE}
        environment.pop("CUDA_MPS_LOG_DIRECTORY", None)  # the daemon's, which stays on the host
        for container_path, host_path in (
            (CONTAINER_MPS_PIPE, mps.pipe_directory),
            (CONTAINER_SHARED_MEMORY, mps.shared_memory),
        ):
            mounts.append(Mount(container_path=container_path, host_path=host_path, read_only=False))
    nodes: tuple[str, ...] = ()
    cdi_devices = (PRELOAD_DEVICE,) if limited and host.preload_hook else ()
    if host.injection is Injection.CDI:
        cdi_devices = (*(f"{DOMAIN}/gpu={card.uuid}" for card in cards), *cdi_devices)
    else:
        there = set(existing_nodes)
        nodes = tuple(node for node in device_nodes(cards, mig_minors) if node in there)
    if host.injection is Injection.ENVIRONMENT:
        environment["NVIDIA_VISIBLE_DEVICES"] = ",".join(card.uuid for card in cards) or "void"
    return ContainerAnswer(
        environment=tuple(sorted(environment.items())), mounts=tuple(mounts), nodes=nodes, cdi_devices=cdi_devices
    )


def preferred(available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
    """A preference among ids that are all alike: those that must be there, then the first. Total for any input."""
    chosen = list(dict.fromkeys(must_include))
    chosen += [each for each in dict.fromkeys(available) if each not in set(chosen)]
    return tuple(chosen[: max(size, 0)])
