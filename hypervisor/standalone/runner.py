"""Runs one command with a share of a GPU and passes its status on."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import msgspec
import trio

from hypervisor.allocations import Allocations
from hypervisor.allocations.processes import ProcessTable
from hypervisor.config import Settings
from hypervisor.gpu import GpuReader, open_gpu_reader
from hypervisor.model import (
    AllocationSpec,
    ConditionStatus,
    EventType,
    HealthCode,
    Inventory,
    NodeIdentity,
    ObjectReference,
    Refusal,
    RefusalReason,
    Revision,
)
from hypervisor.standalone.environment import merged

STEP_SECONDS = 0.5
FIRST_READING_SECONDS = 20.0
# Reasons that waiting does not mend.
HOPELESS = frozenset({HealthCode.NVML_NOT_FOUND, HealthCode.DRIVER_NOT_LOADED, HealthCode.NO_GPUS})
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGCONT)
# A terminal sends these to the whole foreground group, the command included.
IGNORED = (signal.SIGINT, signal.SIGQUIT)


def run_standalone(settings: Settings, spec: AllocationSpec, command: Sequence[str]) -> int:
    """Run the command under the limits of spec; returns its exit status, 128 + N when signal N ended it.

    Raises Refusal when the share can't be given.
    """
    refusals: list[Refusal] = []
    with _own_directories(settings) as own:
        try:
            return trio.run(_run, own, spec, tuple(command))
        except* Refusal as group:
            refusals += _flat(group)
    raise refusals[0]


def _flat(group: BaseExceptionGroup[Refusal]) -> list[Refusal]:
    return [
        found
        for error in group.exceptions
        for found in (_flat(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


@contextmanager
def _own_directories(settings: Settings) -> Iterator[Settings]:
    """Limit files and state in a directory of our own, on tmpfs where there is one, gone at the end."""
    parent = Path(settings.base_dir) if settings.base_dir else Path("/dev/shm")  # noqa: S108
    try:
        top = Path(tempfile.mkdtemp(prefix="hypervisor-exec-", dir=parent if parent.is_dir() else None))
    except OSError as error:
        raise Refusal(
            RefusalReason.STORAGE_FAILED,
            f"can't make the limit files below {parent}: {error.strerror}",
            remedy="name a directory that can be written with --base-dir",
        ) from error
    try:
        yield msgspec.structs.replace(settings, base_dir=str(top / "shm"), state_dir=str(top / "state"))
    finally:
        shutil.rmtree(top, ignore_errors=True)


async def _run(settings: Settings, spec: AllocationSpec, command: tuple[str, ...]) -> int:
    async with open_gpu_reader(settings, environment=os.environ) as reader:
        inventory = await _first_inventory(reader)
        allocations = _open_allocations(settings)
        owner = replace(
            spec.owner,
            pid=os.getpid(),
            start_time_ticks=_own_start_time(),
            uid=os.geteuid(),
            boot_id=_boot_id(),
        )
        allocation, _ = allocations.allocate(replace(spec, owner=owner), inventory)
        environment = allocations.environment(allocation)
        try:
            with trio.open_signal_receiver(*FORWARDED, *IGNORED) as signals:
                process = await trio.lowlevel.open_process(list(command), env=merged(os.environ, environment))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_forward, signals, process)
                    nursery.start_soon(_keep, reader, allocations)
                    status = await process.wait()
                    nursery.cancel_scope.cancel()
        finally:
            allocations.release(spec.allocation_id)
    return 128 - status if status < 0 else status


async def _first_inventory(reader: GpuReader) -> Inventory:
    """The first reading with devices; Refusal with the reader's own words when none comes in time."""
    inventory = reader.inventory
    with trio.move_on_after(FIRST_READING_SECONDS):
        while not inventory.devices and not any(c.code in HOPELESS for c in inventory.conditions):
            inventory = await reader.next_inventory(inventory.sequence)
    if inventory.devices:
        return inventory
    causes = [c.message for c in inventory.conditions if c.status is not ConditionStatus.TRUE or c.message]
    raise Refusal(
        RefusalReason.NOT_READY,
        f"no GPU could be read: {'; '.join(causes) or 'the driver gave no answer'}",
        remedy="check the driver with nvidia-smi",
    )


def _open_allocations(settings: Settings) -> Allocations:
    revisions = iter(range(1, 2**62))
    settings.base_path.mkdir(parents=True)
    settings.state_path.mkdir(parents=True)
    return Allocations.open(
        settings=settings,
        identity=NodeIdentity(name=socket.gethostname(), uid="standalone", boot_id=_boot_id()),
        epoch=1,
        next_revision=lambda: Revision(1, next(revisions)),
        emit=_ignore_event,
    )


def _ignore_event(
    severity: EventType,
    reason: str,
    regarding: ObjectReference,
    message: str,
    **fields: str,
) -> None:
    """Without a daemon there is no journal: what concerns the command it sees as its own errors."""


async def _keep(reader: GpuReader, allocations: Allocations) -> None:
    while True:
        await trio.to_thread.run_sync(allocations.step, reader.inventory)
        await trio.sleep(STEP_SECONDS)


async def _forward(signals: AsyncIterator[int], process: Popen[bytes] | Any) -> None:
    async for number in signals:
        if number not in IGNORED:
            process.send_signal(number)


def _own_start_time() -> int:
    found = ProcessTable().stat(os.getpid())
    if found is None:
        raise Refusal(RefusalReason.NOT_READY, "/proc can't be read, so processes can't be told apart")
    return found.start_time_ticks


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
