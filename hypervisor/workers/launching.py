"""Starting a shim: as a process of ours that leaves us, or through a launcher that lives elsewhere."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import structlog
import trio

from hypervisor.model import WorkerSpec
from hypervisor.workers.cgroup import MemoryControl, MemoryControlError, enable
from hypervisor.workers.settings import WorkerSettings

log = structlog.get_logger("workers")
START_SECONDS = 10.0
EMPTY_SECONDS = 2.0  # what was killed has ended by then, unless a driver holds it
_LOCKED, _DONE = 75, 0  # exit statuses of the shim; shim/shim.h


class LaunchError(Exception):
    """A shim could not be started; the text says why and what to do."""


async def launch(settings: WorkerSettings, directory: Path) -> bool:
    """Start the shim of a worker's directory; True when its status has been written.

    False: another shim keeps this worker already. Cancelled, it may have been started. Raises LaunchError.
    """
    # Cut short, we would not know whether it runs: the start is awaited also while the daemon stops.
    with trio.CancelScope(shield=True), trio.move_on_after(START_SECONDS):
        if settings.launcher is not None:
            status, words = await _through(settings.launcher, directory)
        else:
            status, words = await _directly(settings.shim, directory)
        if status == _LOCKED:
            return False
        if status != _DONE:
            raise LaunchError(f"the shim did not start: {words or f'it ended with {status}'}")
        return True
    raise LaunchError(f"the shim did not start within {START_SECONDS:g} s; is the machine overloaded?")


def prepare_cgroup(parent: Path, worker_id: str) -> Path:
    """A cgroup of its own for a worker. Raises LaunchError."""
    path = parent / worker_id
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not (path / "cgroup.procs").exists():
            raise LaunchError(f"{path} is no cgroup: {parent} is not in a cgroup-v2 file system; set worker_cgroup")
    except OSError as error:
        raise LaunchError(f"can't make the cgroup {path}: {error.strerror}; set worker_cgroup") from error
    return path


def limit_processes(root: Path, cgroup: Path, most: int) -> None:
    """Bound the number of tasks of a worker, so that one that forks without end starves itself and nobody else; 0: no
    bound. Nothing is done where the kernel has no such control. Raises LaunchError when it is there and refuses."""
    if most:
        enable(root, cgroup, "pids")
    limit = cgroup / "pids.max"
    if not limit.exists():
        return
    try:
        limit.write_text(str(most) if most else "max")
    except OSError as error:
        raise LaunchError(f"{limit} can't be set: {error.strerror}") from error


async def limit_memory(control: MemoryControl | None, cgroup: Path, spec: WorkerSpec) -> None:
    """Have driver or kernel bound the VRAM of a worker's whole cgroup, where they can. Raises LaunchError when they can
    and the limit is not in force: a worker does not run without it. Cancelling only ends the wait."""
    if control is None or spec.memory_limit_bytes is None:
        return
    try:
        if spec.gpu_bus_ids:
            await control.driver_known()
        for bus_id in spec.gpu_bus_ids:
            if control.covers(bus_id):
                await control.limit(cgroup, bus_id, spec.memory_limit_bytes)
    except (MemoryControlError, OSError) as error:
        raise LaunchError(str(error)) from error


async def end_cgroup(parent: Path, worker_id: str) -> None:
    """Kill whatever is left in a worker's cgroup, for it has left the worker's session and nobody keeps it any more;
    returns when it has ended, or after EMPTY_SECONDS. Cancelling only ends the wait."""
    path = parent / worker_id
    try:
        (path / "cgroup.kill").write_text("1")
        with trio.move_on_after(EMPTY_SECONDS):
            while "populated 1" in (path / "cgroup.events").read_text():  # noqa: ASYNC110 - trio has no event for it
                await trio.sleep(0.01)
    except OSError as error:
        # Kernels before 5.14 have no such file, and the cgroup may have gone; what is left is seen in it.
        log.debug("a cgroup is not ended", path=str(path), why=error.strerror)


def remove_cgroup(parent: Path, worker_id: str) -> None:
    """Remove a worker's cgroup, and with the last one those above it; what something is still in stays."""
    for path in (parent / worker_id, parent, parent.parent):
        try:
            path.rmdir()
        except OSError as error:
            if error.errno == errno.ENOENT:
                continue
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                # An empty cgroup harms nobody, and a tree that became read-only must not end what looks after workers.
                log.warning("a cgroup is not removed", path=str(path), why=error.strerror)
            return


async def _directly(shim: Path, directory: Path) -> tuple[int, str]:
    try:
        done = await trio.run_process(
            [str(shim), str(directory)],
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            # What a workload is given is in the start file; what the daemon has is not for it.
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
        )
    except OSError as error:
        raise LaunchError(f"{shim} can't be run: {error.strerror}; was the package installed whole?") from error
    return done.returncode, done.stderr.decode(errors="replace").strip()


async def _through(socket_path: Path, directory: Path) -> tuple[int, str]:
    try:
        async with await trio.open_unix_socket(str(socket_path)) as stream:
            await stream.send_all(f"{directory}\n".encode())
            answer = await stream.receive_some(64)
    except (OSError, trio.BrokenResourceError) as error:
        raise LaunchError(
            f"the launcher at {socket_path} can't be reached ({error}); is its Pod or unit running?"
        ) from error
    if not answer.strip().isdigit():
        raise LaunchError(f"the launcher at {socket_path} gave no answer; its log says more")
    return int(answer), "the launcher refused it; its root must be the daemon's directory of workers"
