"""Runs one cell, on the virtual clock or in real time."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from buildsupport.native import ROOT
from hypervisor.limits import (
    Access,
    DeviceFlags,
    DeviceLimits,
    FileIsolation,
    FilePolicy,
    LimitDirectory,
    LimitFiles,
    LimitSet,
)
from hypervisor.simulation import machine as machines
from hypervisor.simulation.description import parse_machine
from hypervisor.simulation.environment import environment
from hypervisor.simulation.machine import Machine, ProcessTimes
from tests.pacing.build import client, limiter
from tests.pacing.cell import Cell, Load
from tests.pacing.daemon import CLOCK_BEGAN_SECONDS, Daemon
from tests.pacing.processor import one_processor
from tests.pacing.result import Result

SHIPPED = ROOT / "hypervisor" / "native" / "libcuda_limiter.so"
WINDOW_NS = 167_000_000  # of the driver's samples
# How much later neighbours begin on each device than on the one before. No two cards give turns at the same moments;
# where all began at once an exchange would have its turn on all of them together, for ever.
SKEW_US = 300
REAL_SECONDS = 60.0  # that one step may take
_WORDS = struct.Struct("<5Q")

_MACHINE = """\
version: 1
driver: {{version: "580.65.06", cuda: 13000}}
clock: {{mode: {clock}}}
gpus: [{{count: {count}, profile: a100-sxm-80gb}}]
"""


@dataclass(slots=True)
class Running:
    """A Pod of the cell with its processes and files."""

    load: Load
    group: str
    files: LimitFiles | None
    outs: tuple[Path, ...]


def run(cell: Cell, folder: Path, *, limited: bool = True, real: bool = False) -> Result:
    """Run a cell in an empty folder; without the limiter where limited is False, as a control.

    real: in real time, with the library that is shipped.
    """
    devices = max(load.devices for load in cell.pods)
    path = folder / "machine"
    text = _MACHINE.format(count=devices, clock="real" if real else "virtual")
    machines.create(path, parse_machine(text, "pacing", profile="pacing", seed="pacing"))
    directory = LimitDirectory(folder / "limits", boot_id="virtual", node_epoch=1)
    directory.prepare()
    with ExitStack() as stack:
        if not real:
            stack.enter_context(one_processor())
        machine = stack.enter_context(machines.opened(path))
        uuids = [str(gpu["uuid"]) for gpu in machine.show()["gpus"]]
        pods = []
        started = 0
        for number, load in enumerate(cell.pods):
            group = f"pod{number}"
            files = None
            if limited and load.percent is not None:
                files = directory.create(
                    group,
                    group,
                    limits_of(load, uuids),
                    access=Access(owner_uid=os.getuid()),
                    context_bytes=(0,) * load.devices,
                )
                files.shm.arm()
                stack.callback(files.close)
            outs = tuple(folder / f"{group}.{process}" for process in range(load.process_count))
            pods.append(Running(load, group, files, outs))
            library = SHIPPED if real else limiter()
            skew_us = SKEW_US if devices > 1 and number > 0 else 0
            ready = []
            for n, out in enumerate(outs):
                process = stack.enter_context(_started(load, files, path, group, out, library, n, skew_us))
                ready.append((process, out))
                if not real:  # one after the other, so that each has the same place each time
                    started += 1
                    _await_ready(process, out, lambda count=started: machine.waiting >= count)
            for process, out in ready if real else ():
                _await_ready(process, out)
        threads = sum(load.process_count for load in cell.pods)
        marks, busy, queued, daemon = _measure(cell, machine, pods, threads)
        seen = [_WORDS.unpack(out.read_bytes()) for out in pods[0].outs]
        return Result(
            cell=cell,
            marks=tuple(marks),
            busy=tuple(tuple(tuple(series) for series in devices_of) for devices_of in busy),
            queued=tuple(tuple(tuple(series) for series in of_processes.values()) for of_processes in queued),
            longest_stall_ms=max(words[2] for words in seen) / 1e6,
            longest_later_stall_ms=max(words[4] for words in seen) / 1e6,
            launches=tuple(words[1] for words in seen),
            correction=daemon.correction(0),
            told_launches=_told_launches(pods[0]),
        )


def _told_launches(pod: Running) -> int:
    if pod.files is None or pod.files.usage is None:
        return 0
    devices = range(pod.load.devices)
    return sum(cost.launches for device in devices for cost in pod.files.usage.top_costs(device, 1024))


def limits_of(load: Load, uuids: Sequence[str]) -> LimitSet:
    """The limits of a Pod on the first of these devices."""
    share = round(load.share * 1_000_000)
    return LimitSet(
        isolation=FileIsolation.SOFT,
        devices=tuple(
            DeviceLimits(
                uuid=uuid,
                host_index=index,
                vram_limit_bytes=None,
                vram_request_bytes=0,
                limit_share_ppm=share,
                request_share_ppm=share,
                weight=2,
                policy=FilePolicy.WORK_CONSERVING if load.work_conserving else FilePolicy.HARD_CAP,
                burst_ns=round(load.burst_ms * 1e6),
                debt_limit_ns=10_000_000_000,
                flags=DeviceFlags.CHARGE_COPIES if load.charge_copies else DeviceFlags.NONE,
            )
            for index, uuid in enumerate(uuids[: load.devices])
        ),
        host_memory_limit_bytes=None,
        revision=1,
    )


def _measure(
    cell: Cell, machine: Machine, pods: list[Running], threads: int
) -> tuple[list[float], list[list[list[float]]], list[dict[int, list[float]]], Daemon]:
    """Go from window to window; at each mark the busy seconds by Pod and device, and those in which something was in a
    stream by device and process of the first Pod."""
    began_ns = 0 if machine.is_virtual else machine.now_ns()
    end_ns = round((1.0 + cell.window_seconds) * 1e9)
    daemon = Daemon(
        [(pod.load, pod.files) for pod in pods],
        clock_ahead=CLOCK_BEGAN_SECONDS if machine.is_virtual else time.monotonic(),
    )
    marks: list[float] = []
    busy: list[list[list[float]]] = [[[] for _ in range(pod.load.devices)] for pod in pods]
    queued: list[dict[int, list[float]]] = [{} for _ in range(pods[0].load.devices)]
    window = 0
    while True:
        now_ns = window * WINDOW_NS
        if machine.is_virtual:
            machine.run_until(now_ns, participants=threads, real_timeout_seconds=REAL_SECONDS)
        else:
            while (left := began_ns + now_ns - machine.now_ns()) > 0:
                time.sleep(left / 1e9)
            now_ns = machine.now_ns() - began_ns  # late by what this process had to wait for a processor
        marks.append(now_ns / 1e9)
        for number, pod in enumerate(pods):
            for device, series in enumerate(busy[number]):
                series.append(machine.group_busy_ns(pod.group, device) / 1e9)
        times = [machine.process_times(device) for device in range(len(busy[0]))]
        for of_processes, of_device in zip(queued, times, strict=True):
            for each in of_device:
                if each.group == pods[0].group:
                    series = of_processes.setdefault(each.pid, [0.0] * window)
                    series.append(each.queued_ns / 1e9)
        if cell.daemon_seconds is None or now_ns < cell.daemon_seconds * 1e9:
            cards = [machine.gpu_busy_ns(device) / 1e9 for device in range(machine.gpu_count)]
            daemon.window_ended(now_ns / 1e9, _busy_by_process(times, pods), cards)
        if now_ns >= end_ns:
            return marks, busy, queued, daemon
        window += 1


def _busy_by_process(times: Sequence[Sequence[ProcessTimes]], pods: list[Running]) -> list[list[dict[int, float]]]:
    """Busy seconds by Pod, device and process: what a driver tells is of processes."""
    return [
        [
            {each.pid: each.busy_ns / 1e9 for each in times[device] if each.group == pod.group}
            for device in range(pod.load.devices)
        ]
        for pod in pods
    ]


@contextmanager
def _started(
    load: Load,
    files: LimitFiles | None,
    machine: Path,
    group: str,
    out: Path,
    library: Path,
    number: int,
    skew_us: int,
) -> Iterator[subprocess.Popen[str]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "SIM_"))}
    variables = environment(machine, clean) | {"SIM_GROUP": group}
    if files is not None:
        variables |= {"LD_PRELOAD": str(library), "TF_SHM_PATH": str(files.directory)}
    command = [
        str(client()),
        f"--out={out}",
        f"--kernels={','.join(map(str, load.kernels_each[number] if load.kernels_each else load.kernels))}",
        f"--grid={load.grid}",
        f"--streams={load.streams}",
        f"--devices={load.own_devices}",
        f"--form={load.form}",
    ]
    if load.job > 1:
        job, rank = divmod(number, load.job)
        command += [f"--rank={rank}", f"--ranks={load.job}", f"--meet={out.parent / group}.meet{job}"]
        command += [f"--first={rank * load.own_devices}", *(() if load.ranks else ("--ahead",))]
    if load.later:
        command += [f"--later={','.join(map(str, load.later))}", f"--change-ms={load.change_ms}"]
    if skew_us:
        command.append(f"--skew-us={skew_us}")
    if load.stop_ms is not None:
        command.append(f"--stop-ms={load.stop_ms}")
    if load.same:
        command.append("--same")
    if load.wait:
        command.append("--wait")
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
            assert process.poll() is None, f"{command} ended early: {process.communicate()[1]}"
        finally:
            process.kill()


def _await_ready(process: subprocess.Popen[str], out: Path, waits: Callable[[], bool] = lambda: True) -> None:
    """Until it launches, and waits for the virtual clock, which stands still meanwhile."""
    deadline = time.monotonic() + REAL_SECONDS
    while not (_launches(out) and waits()):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "the client does not begin"
        time.sleep(0.001)


def _launches(out: Path) -> bool:
    return out.exists() and out.stat().st_size == _WORDS.size and _WORDS.unpack(out.read_bytes())[0] == 1
