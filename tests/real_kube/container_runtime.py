"""A container runtime for a real kubelet: containers are plain processes of this machine, with what kubelet gives them.

A container has no file system of its own, so paths of its mounts are turned into those of the host, and what its
/etc/ld.so.preload names becomes LD_PRELOAD. One of our own image has them mounted, in a mount namespace of its own, and
a cgroup of its own, where there are cgroups: with its end everything in it ends, as in a real one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_tools import protoc

from hypervisor.workers.placing import tree_root
from tests.daemon_process import wait_until

IMAGE, ENTRYPOINT = "gpu-hypervisor", (sys.executable, "-m", "hypervisor")
READY, NOT_READY = 0, 1
CREATED, RUNNING, EXITED = 0, 1, 2


def generated() -> tuple[Any, Any]:
    """The messages and the services of runtime.proto."""
    here = Path(__file__).parent
    place = tempfile.mkdtemp(prefix="runtime-proto-")
    flags = [f"-I{here}", f"--python_out={place}", f"--grpc_python_out={place}"]
    assert protoc.main(["protoc", *flags, str(here / "runtime.proto")]) == 0
    sys.path.insert(0, place)
    try:
        return importlib.import_module("runtime_pb2"), importlib.import_module("runtime_pb2_grpc")
    finally:
        sys.path.remove(place)


@dataclass
class Sandbox:
    """A Pod's."""

    config: Any
    state: int = READY
    created_at: int = field(default_factory=time.time_ns)


@dataclass
class Container:
    """One container, and its process once it is started."""

    config: Any
    sandbox: str
    created_at: int = field(default_factory=time.time_ns)
    started_at: int = 0
    finished_at: int = 0
    process: subprocess.Popen[bytes] | None = None
    cgroup: Path | None = None

    @property
    def state(self) -> int:
        if self.process is None:
            return CREATED
        if self.process.poll() is None:
            return RUNNING
        self.finished_at = self.finished_at or time.time_ns()
        self.end()
        return EXITED

    def end(self, grace: float = 0.0) -> None:
        """End it, with all that lives in it."""
        if self.process is None:
            return
        if grace:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace)
        self.process.kill()
        if self.cgroup is not None:
            (self.cgroup / "cgroup.kill").write_text("1")
        self.process.wait()


class ContainerRuntime:
    """Serves on a unix socket until close()."""

    kubelet_settings: dict[str, object] = {}  # noqa: RUF012 - never changed

    def __init__(self, socket: Path, kubelet_root: Path) -> None:
        self.socket = socket
        self._api, services = generated()
        self._kubelet_root = kubelet_root
        self._sandboxes: dict[str, Sandbox] = {}
        self._containers: dict[str, Container] = {}
        self._lock = threading.RLock()
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        services.add_RuntimeServiceServicer_to_server(self, self._server)
        services.add_ImageServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def close(self) -> None:
        self._server.stop(0).wait()
        for container in self._containers.values():
            container.end()
            self._remove_cgroup(container)

    # --- itself

    def Version(self, request, context):
        return self._api.VersionResponse(
            version="0.1.0", runtime_name="processes", runtime_version="1", runtime_api_version="v1"
        )

    def Status(self, request, context):
        conditions = [self._api.RuntimeCondition(type=each, status=True) for each in ("RuntimeReady", "NetworkReady")]
        return self._api.StatusResponse(status=self._api.RuntimeStatus(conditions=conditions))

    def RuntimeConfig(self, request, context):
        return self._api.RuntimeConfigResponse(linux=self._api.LinuxRuntimeConfiguration(cgroup_driver=1))

    def _nothing(self, request, context):
        return self._api.Nothing()

    UpdateRuntimeConfig = UpdateContainerResources = ListContainerStats = ListPodSandboxStats = ListImages = _nothing

    # --- sandboxes

    def RunPodSandbox(self, request, context):
        name = uuid.uuid4().hex * 2
        with self._lock:
            self._sandboxes[name] = Sandbox(request.config)
        return self._api.Named(id=name)

    def StopPodSandbox(self, request, context):
        with self._lock:
            if request.id in self._sandboxes:
                self._sandboxes[request.id].state = NOT_READY
        return self._api.Nothing()

    def RemovePodSandbox(self, request, context):
        with self._lock:
            self._sandboxes.pop(request.id, None)
        return self._api.Nothing()

    def PodSandboxStatus(self, request, context):
        found = self._sandboxes.get(request.id)
        if found is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such sandbox")
        return self._api.PodSandboxStatusResponse(
            status=self._api.PodSandboxStatus(
                id=request.id,
                metadata=found.config.metadata,
                state=found.state,
                created_at=found.created_at,
                network=self._api.Network(ip="127.0.0.1"),
                labels=found.config.labels,
                annotations=found.config.annotations,
            )
        )

    def ListPodSandbox(self, request, context):
        with self._lock:
            items = [
                self._api.PodSandbox(
                    id=name,
                    metadata=each.config.metadata,
                    state=each.state,
                    created_at=each.created_at,
                    labels=each.config.labels,
                    annotations=each.config.annotations,
                )
                for name, each in self._sandboxes.items()
            ]
        return self._api.ListPodSandboxResponse(items=[each for each in items if _matches(each, request.filter)])

    # --- containers

    def CreateContainer(self, request, context):
        for mount in request.config.mounts:
            if not self._on_host(mount.host_path).exists():
                context.abort(grpc.StatusCode.INTERNAL, f"{mount.host_path} can't be mounted: it is not there")
        name = uuid.uuid4().hex * 2
        with self._lock:
            self._containers[name] = Container(request.config, request.pod_sandbox_id)
        return self._api.Named(id=name)

    def StartContainer(self, request, context):
        container = self._containers[request.id]
        command = [*container.config.command, *container.config.args]
        if container.config.image.image.startswith(IMAGE):
            command = self._in_its_own(container, request.id, [*ENTRYPOINT, *command])
        container.process = subprocess.Popen(
            command, env=self._environment(container.config), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        container.started_at = time.time_ns()
        return self._api.Nothing()

    def StopContainer(self, request, context):
        container = self._containers.get(request.id)
        if container is not None:
            container.end(grace=min(request.timeout, 5) if container.cgroup is not None else 0)
        return self._api.Nothing()

    def RemoveContainer(self, request, context):
        with self._lock:
            container = self._containers.pop(request.id, None)
        if container is not None:
            container.end()
            self._remove_cgroup(container)
        return self._api.Nothing()

    def ListContainers(self, request, context):
        with self._lock:
            items = [
                self._api.Container(
                    id=name,
                    pod_sandbox_id=each.sandbox,
                    metadata=each.config.metadata,
                    image=each.config.image,
                    image_ref=each.config.image.image,
                    state=each.state,
                    created_at=each.created_at,
                    labels=each.config.labels,
                    annotations=each.config.annotations,
                )
                for name, each in self._containers.items()
            ]
        wanted = request.filter
        return self._api.ListContainersResponse(
            containers=[
                each for each in items if _matches(each, wanted) and wanted.pod_sandbox_id in ("", each.pod_sandbox_id)
            ]
        )

    def ContainerStatus(self, request, context):
        found = self._containers.get(request.id)
        if found is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such container")
        state = found.state
        return self._api.ContainerStatusResponse(
            status=self._api.ContainerStatus(
                id=request.id,
                metadata=found.config.metadata,
                state=state,
                created_at=found.created_at,
                started_at=found.started_at,
                finished_at=found.finished_at,
                exit_code=abs(found.process.returncode) if state == EXITED else 0,
                image=found.config.image,
                image_ref=found.config.image.image,
                labels=found.config.labels,
                annotations=found.config.annotations,
                # Kubelet removes what begins with it, beneath its working directory if it is empty.
                log_path=str(self._kubelet_root / "container-logs" / request.id),
            )
        )

    # --- images

    def ImageStatus(self, request, context):
        name = request.image.image
        return self._api.ImageStatusResponse(image=self._api.Image(id=name, repo_tags=[name], size=1))

    def PullImage(self, request, context):
        return self._api.Named(id=request.image.image)

    def ImageFsInfo(self, request, context):
        usage = self._api.FilesystemUsage(
            timestamp=time.time_ns(),
            fs_id=self._api.FilesystemIdentifier(mountpoint=str(self._kubelet_root)),
            used_bytes=self._api.Amount(value=1),
            inodes_used=self._api.Amount(value=1),
        )
        return self._api.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])

    # --- what a container sees

    def _in_its_own(self, container: Container, name: str, command: list[str]) -> list[str]:
        """The command behind mounts and in a cgroup of its own."""
        steps = [f"mount -t tmpfs none {each}" for each in ("/var/lib", "/var/log", "/run")]
        for mount in sorted(container.config.mounts, key=lambda mount: mount.container_path):
            inside, source = mount.container_path, self._on_host(mount.host_path)
            if inside.startswith(("/dev/", "/etc/hosts")):
                continue
            made = f"mkdir -p {inside}" if source.is_dir() else f"mkdir -p $(dirname {inside}) && touch {inside}"
            steps += [made, f"mount --rbind {source} {inside}"]
        root = tree_root()
        if root is not None:
            container.cgroup = root / f"container-{name[:12]}"
            container.cgroup.mkdir()
            steps.insert(0, f"echo $$ > {container.cgroup}/cgroup.procs")
        return ["unshare", "--mount", "sh", "-c", " && ".join([*steps, 'exec "$@"']), "sh", *command]

    def _remove_cgroup(self, container: Container) -> None:
        if container.cgroup is not None and container.cgroup.exists():
            events = container.cgroup / "cgroup.events"
            wait_until(lambda: "populated 0" in events.read_text(), "the end of a container's processes")
            container.cgroup.rmdir()

    def _on_host(self, path: str) -> Path:
        """Kubelet has its directory at a path of its own."""
        inside = Path("/var/lib/kubelet")
        return self._kubelet_root / Path(path).relative_to(inside) if Path(path).is_relative_to(inside) else Path(path)

    def _environment(self, config: Any) -> dict[str, str]:
        mounted = {each.container_path: str(self._on_host(each.host_path)) for each in config.mounts}
        found = {each.key: mounted.get(each.value.decode(), each.value.decode()) for each in config.envs}
        preload = mounted.get("/etc/ld.so.preload")
        if preload is not None:
            # As the loader reads it in a 64-bit program.
            found["LD_PRELOAD"] = mounted[Path(preload).read_text().strip().replace("$LIB", "lib64")]
        return {"PATH": os.environ["PATH"], **found}


def _matches(item: Any, wanted: Any) -> bool:
    return (
        wanted.id in ("", item.id)
        and (not wanted.HasField("state") or wanted.state.state == item.state)
        and all(item.labels.get(key) == value for key, value in wanted.label_selector.items())
    )
