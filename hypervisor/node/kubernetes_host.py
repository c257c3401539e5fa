"""What the Kubernetes mode reads and writes on the host: the library that Pods are given, CDI files, kubelet's records,
and which Pod a process is of. Each method is short; an error is an answer and never ends the daemon."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import structlog
import trio

from hypervisor.allocations.environment import LIMITER
from hypervisor.config import Settings
from hypervisor.durable import write_atomically
from hypervisor.kube.answers import CONTROL_NODES, NO_MIG_MINORS, HostFiles, Injection, device_nodes, read_mig_minors
from hypervisor.kube.cdi import cdi_files
from hypervisor.kube.cgroups import Residence, residence
from hypervisor.kube.checkpoint import Assignment, CheckpointError, read_checkpoint
from hypervisor.kube.names import CONTAINER_LIMITER
from hypervisor.model import Allocation, GpuIdentity
from hypervisor.node.failure import StartError, storage_error
from hypervisor.preload import copied_whole

log = structlog.get_logger("kubernetes")
LIMITER_32 = LIMITER.with_name("libcuda_limiter_32.so")
_CDI_FILES = ("tensor-fusion.json", "tensor-fusion-allocations.json", "tensor-fusion-limiter.json")


class Host:
    """The host's files, at the paths that the settings name."""

    def __init__(self, settings: Settings, *, proc: Path = Path("/proc")) -> None:
        self._settings = settings
        self._proc = proc
        self._checkpoint: tuple[Assignment, ...] | None = None
        self._checkpoint_state: tuple[int, int, int] | None = None
        self._checkpoint_turn = trio.Lock()
        self.checkpoint_failing = ""
        self.cdi_failing = ""
        self._described: frozenset[str] | None = None  # None: not written yet
        self._described_driver: str | None = None

    def describes(self, cards: Iterable[GpuIdentity]) -> bool:
        """Do the CDI files name these cards, as they were last written?"""
        return self._described is not None and self._described.issuperset(card.uuid for card in cards)

    def provide(self, workload_environment: Mapping[str, str]) -> HostFiles:
        """Put the library and its ld.so.preload where containers are given them from; what runs keeps the file that it
        has. Raises StartError."""
        directory = Path(self._settings.host_dir) / "lib"
        preload = directory / "ld.so.preload"
        try:
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            library = str(copied_whole(LIMITER, directory))
            # Not built for machines without 32-bit programs.
            other = str(copied_whole(LIMITER_32, directory)) if LIMITER_32.exists() else ""
            write_atomically(preload, f"{CONTAINER_LIMITER}\n".encode(), mode=0o644)
            preload.chmod(0o644)
        except OSError as error:
            raise storage_error("provide the library in", directory, error) from error
        return HostFiles(
            limiter=library,
            limiter_32=other,
            preload=str(preload),
            preload_hook=self._settings.preload_hook,
            injection=Injection(self._settings.device_injection),
            workload_environment=tuple(sorted(workload_environment.items())),
        )

    def existing_nodes(self, cards: Iterable[GpuIdentity]) -> tuple[str, ...]:
        """Those of the cards' device nodes that are there."""
        nodes = device_nodes(cards, self.mig_minors)
        return tuple(node for node in nodes if os.path.exists(node))  # noqa: PTH110 - many, and plain text

    @property
    def mig_minors(self) -> Mapping[str, int]:
        """The driver's table of the nodes that give access to MIG instances; empty where it has none."""
        try:
            return read_mig_minors((self._proc / "driver/nvidia-caps/mig-minors").read_text())
        except OSError:
            return NO_MIG_MINORS

    @property
    def mps_shared_memory(self) -> str:
        """What MPS servers have as /dev/shm."""
        return self._settings.mps_shm

    @property
    def pod_resources_socket(self) -> Path:
        return Path(self._settings.kubelet_dir) / "pod-resources" / "kubelet.sock"

    @property
    def plugins_directory(self) -> Path:
        return Path(self._settings.kubelet_dir) / "device-plugins"

    async def checkpoint(self) -> tuple[Assignment, ...] | None:
        """Kubelet's checkpoint, or the last one that was good; None when there never was one.

        Read in a thread: with 128 Pods its checksum takes a tenth of a second, and kubelet waits for answers meanwhile.
        """
        path = self.plugins_directory / "kubelet_internal_checkpoint"
        async with self._checkpoint_turn:
            try:
                found = path.stat()
                state = (found.st_ino, found.st_mtime_ns, found.st_size)
                if state == self._checkpoint_state:
                    return self._checkpoint
                self._checkpoint_state = state
                self._checkpoint = await trio.to_thread.run_sync(_checkpoint_of, path, abandon_on_cancel=True)
            except FileNotFoundError:
                self._set_checkpoint_failing("")  # kubelet makes it with its first grant
            except OSError as error:
                self._set_checkpoint_failing(f"kubelet's checkpoint {path} can't be read: {error.strerror}")
            except CheckpointError as error:
                self._set_checkpoint_failing(f"kubelet's checkpoint {path} is not believed: {error}")
            else:
                self._set_checkpoint_failing("")
            return self._checkpoint

    def living_pods(self) -> frozenset[str] | None:
        """UIDs of Pods with a directory of logs, which kubelet removes with the Pod; None where there are none to see,
        which says nothing."""
        try:
            names = [entry.name for entry in os.scandir(self._settings.pod_logs_dir)]
        except OSError:
            return None
        found = frozenset(name.rsplit("_", 1)[1] for name in names if name.count("_") >= 2)
        return found or None

    def residences(self, pids: Iterable[int]) -> Mapping[int, Residence | None]:
        """Where processes live; None where that can't be seen, and no entry for one that has ended."""
        found: dict[int, Residence | None] = {}
        for pid in pids:
            try:
                found[pid] = residence((self._proc / str(pid) / "cgroup").read_text(errors="replace"))
            except (FileNotFoundError, ProcessLookupError):
                if not self._sees_processes():
                    found[pid] = None
            except OSError:
                found[pid] = None
        return found

    def write_cdi(
        self,
        cards: tuple[GpuIdentity, ...],
        allocations: tuple[Allocation, ...],
        files: HostFiles,
        *,
        driver_version: str,
    ) -> None:
        """Bring the CDI files up to date; what would not change is not written, but for a new driver; what is unused is
        removed."""
        if not self._settings.cdi_dir:
            return
        directory = Path(self._settings.cdi_dir)
        wanted = cdi_files(
            cards,
            allocations,
            files,
            existing_nodes=(*self.existing_nodes(cards), *(node for node in CONTROL_NODES if Path(node).exists())),
            mig_minors=self.mig_minors,
        )
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for name in _CDI_FILES:
                # A new driver makes a new file, so that a runtime that keeps what it has read reads it again.
                _bring_about(directory / name, wanted.get(name), anew=driver_version != self._described_driver)
        except OSError as error:
            self.cdi_failing = f"CDI files can't be written in {directory}: {error.strerror}"
        else:
            self.cdi_failing = ""
            self._described, self._described_driver = frozenset(card.uuid for card in cards), driver_version

    def _sees_processes(self) -> bool:
        """Without the host's PID namespace, processes of the host look as if they had ended: the first process would
        then be one of our own container. A kernel thread is only ever seen from outside."""
        try:
            return (self._proc / "2/stat").read_text(errors="replace").startswith("2 (kthreadd)")
        except OSError:
            return False

    def _set_checkpoint_failing(self, why: str) -> None:
        if why and why != self.checkpoint_failing:
            log.warning("the checkpoint is not used", reason=why)
        self.checkpoint_failing = why


def _checkpoint_of(path: Path) -> tuple[Assignment, ...]:
    if not path.is_file():
        raise CheckpointError("it is no regular file")  # a pipe would be waited for without end
    return read_checkpoint(path.read_bytes())


def check_paths(settings: Settings) -> None:
    """Raises StartError where the settings of the Kubernetes mode can't be used together."""
    for name in ("kubelet_dir", "host_dir"):
        if not Path(getattr(settings, name)).is_absolute():
            raise StartError(f"{name} is {getattr(settings, name)!r}, which is no absolute path; give one")
    if settings.preload_hook and not Path(settings.preload_hook).is_absolute():
        raise StartError(f"preload_hook is {settings.preload_hook!r}, which is no absolute path; give one of the host")
    if not settings.cdi_dir and (settings.preload_hook or settings.device_injection == "cdi"):
        wanting = "preload_hook is set" if settings.preload_hook else "device_injection is cdi"
        raise StartError(f"{wanting}, and there is no directory for CDI files; name one with --cdi-dir /var/run/cdi")


def _bring_about(path: Path, content: str | None, *, anew: bool) -> None:
    if content is None:
        path.unlink(missing_ok=True)
        return
    try:
        if not anew and path.read_text() == content:
            return
    except OSError:
        pass  # not there, or not readable: written anew
    write_atomically(path, content.encode(), mode=0o644)
    path.chmod(0o644)
