"""A machine file in use: made, opened, changed, destroyed. The only importer of the compiled module.

Everything here is safe while programs run on the machine; the locks are in the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Self, final

from hypervisor.simulation._machine import ffi, lib
from hypervisor.simulation.profiles import load_description
from hypervisor.simulation.report import report
from hypervisor.simulation.spec import FaultSpec, MachineSpec

_CHECK_BYTES = 16_384
_FEW_PROCESSES = 32  # for whom room is made at first


class MachineError(RuntimeError):
    """The machine file can't be made or used; the text says which, why and what to do."""


class MachineExistsError(MachineError):
    """There is a file of that name already."""


class OtherVersionError(MachineError):
    """The machine was made by another version of the product."""


def _fill(target: Any, spec: Any) -> None:
    """Copy a spec's fields into the structure's members of the same names, links and all."""
    for field in fields(spec):
        value = getattr(spec, field.name)
        if isinstance(value, str):
            setattr(target, field.name, value.encode())
        elif isinstance(value, bytes):
            setattr(target, field.name, list(value))
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for at, element in enumerate(value):
                _fill(getattr(target, field.name)[at], element)
        elif isinstance(value, tuple):
            setattr(target, field.name, list(value))
        else:
            setattr(target, field.name, value)


def _description(spec: MachineSpec) -> Any:
    description = ffi.new("struct sim_description *")
    lib.sim_description_defaults(description)
    _fill(description.system, spec.system)
    count = len(spec.gpus)
    description.gpu_count = count
    for at, gpu in enumerate(spec.gpus):
        _fill(description.gpus[at], gpu)
    for first in range(count):
        for second in range(count):
            description.topology.ancestor[first][second] = spec.topology.ancestor[first][second]
            for capability, matrix in enumerate(spec.topology.p2p_status):
                description.topology.p2p_status[capability][first][second] = matrix[first][second]
    for index, instances in enumerate(spec.instances):
        for at, instance in enumerate(instances):
            request = description.instances[index][at]
            request.wanted = 1
            request.profile = instance.profile
            request.start = instance.start
            request.compute[0 : len(instance.compute)] = list(instance.compute)
    description.rule_count = len(spec.rules)
    for at, rule in enumerate(spec.rules):
        _fill(description.rules[at], rule)
    description.fault_count = len(spec.faults)
    for at, fault in enumerate(spec.faults):
        _fill(description.faults[at], fault)
    return description


def _words(status: int, path: Path) -> str:
    why = ffi.string(lib.sim_status_text(status)).decode()
    if status == lib.SIM_SYSTEM_ERROR:
        why = os.strerror(ffi.errno)
    hints = {
        lib.SIM_EXISTS: f"; remove it with: hypervisor sim destroy --machine {path}",
        lib.SIM_NO_FILE: f"; make it with: hypervisor sim create PROFILE --machine {path}",
        **dict.fromkeys(
            (lib.SIM_WRONG_SIZE, lib.SIM_WRONG_VERSION, lib.SIM_HALF_WRITTEN, lib.SIM_DAMAGED),
            f"; remove it with: hypervisor sim destroy --machine {path}, and make it anew",
        ),
    }
    return f"machine {path}: {why}{hints.get(status, '')}"


def create(path: Path, spec: MachineSpec) -> None:
    """Write a machine file, whole or not at all.

    Raises:
        MachineError: there is a file of that name, or the operating system refused.
    """
    status = lib.sim_machine_create(os.fsencode(path), _description(spec))
    if status == lib.SIM_EXISTS:
        raise MachineExistsError(_words(status, path))
    if status != lib.SIM_OK:
        raise MachineError(_words(status, path))


def prepared(profile_or_machine: str, folder: Path, *, seed: str | None = None) -> Path:
    """The machine that a daemon is told to run on: a machine file that is there, or one made from a description.

    What was made for an earlier daemon is used again, so that its clients keep their GPUs over a restart; what was made
    by another version of the product, which this one can't read, is made anew.

    Args:
        profile_or_machine: a machine file, a profile's name, or a YAML file.
        folder: where a machine is made; it should end with the boot (a tmpfs), as the machine's clock does.
        seed: what UUIDs are made from.

    Raises:
        DocumentError: there is no such profile, or the YAML is wrong.
        MachineError: the machine is damaged or can't be made.
    """
    path = Path(profile_or_machine)
    if path.is_file() and _begins_as_machine(path):
        return _usable(path)
    spec = load_description(profile_or_machine, seed=seed)
    path = folder / f"{spec.system.profile}.machine"
    if not path.is_file():  # else of an earlier daemon, and a full disk has no room to try to make it
        with suppress(MachineExistsError):
            create(path, spec)
    try:
        return _usable(path)
    except OtherVersionError:
        # Programs that run on it keep it, and the limits that they have there, until they end.
        destroy(path)
        create(path, spec)
        return _usable(path)


def _usable(path: Path) -> Path:
    with opened(path):
        return path.absolute()


def _begins_as_machine(path: Path) -> bool:
    """Whether a file is one of ours, perhaps damaged or of another version.

    Raises:
        MachineError: it can't be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(8) == int(lib.SIM_MAGIC).to_bytes(8, "little")
    except OSError as error:
        raise MachineError(f"machine {path}: {error.strerror}") from None


def destroy(path: Path) -> None:
    """Remove a machine file. Programs that run on it keep it until they end.

    Raises:
        MachineError: it is no machine file, or the operating system refused.
    """
    if not _begins_as_machine(path):
        raise MachineError(f"machine {path}: not a machine file; it is left alone")
    try:
        path.unlink()
    except OSError as error:
        raise MachineError(f"machine {path}: {error.strerror}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTimes:
    """Of one process on one GPU: nanoseconds with anything in one of its streams, and with a kernel resident."""

    group: str
    pid: int
    queued_ns: int
    busy_ns: int


@final
class Machine:
    """An open machine. Make one with `opened`; it must not be used after its end."""

    def __init__(self, path: Path, mapping: Any) -> None:
        self.path = path
        self._mapping = mapping

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map a machine file.

        Raises:
            OtherVersionError: it is of another version of the product.
            MachineError: it is missing, damaged, or may not be read.
        """
        out = ffi.new("struct sim_machine **")
        status = lib.sim_machine_attach(os.fsencode(path), out)
        if status == lib.SIM_WRONG_VERSION:
            raise OtherVersionError(_words(status, path))
        if status != lib.SIM_OK:
            raise MachineError(_words(status, path))
        return cls(path, out[0])

    def close(self) -> None:
        """Let go of the file; once is enough, twice is harmless."""
        if self._mapping is not None:
            lib.sim_machine_detach(self._mapping)
            self._mapping = None

    @property
    def gpu_count(self) -> int:
        """GPUs that the machine was made with."""
        return int(self._mapping.gpu_count)

    @property
    def link_counts(self) -> tuple[int, ...]:
        """NVLinks of each GPU's model, whether they are up or not."""
        return tuple(int(self._mapping.gpu[at].info.link_count) for at in range(self.gpu_count))

    @property
    def is_virtual(self) -> bool:
        """True when time moves only by `step`."""
        return bool(self._mapping.system.clock_mode == lib.SIM_CLOCK_VIRTUAL)

    @property
    def driver_version(self) -> str:
        """The version of the driver that is loaded now."""
        return str(ffi.string(self._mapping.system.driver_version).decode())

    def now_ns(self) -> int:
        """Simulated nanoseconds since the machine was made."""
        return int(lib.sim_now(self._mapping))

    @property
    def waiting(self) -> int:
        """Threads that wait for the virtual clock now."""
        return int(lib.sim_machine_waiting(self._mapping, ffi.new("uint64_t *")))

    def group_busy_ns(self, group: str, gpu: int) -> int:
        """Time with at least one kernel of a group resident on a GPU; 0 when it never ran. Part of `show`, at once."""
        reading = ffi.new("struct sim_group_reading *")
        found = lib.sim_read_group(self._mapping, gpu, group.encode(), reading) == lib.SIM_OK
        return int(reading.usage.busy_ns) if found else 0

    def gpu_busy_ns(self, gpu: int) -> int:
        """Time with at least one kernel resident on a GPU. Part of `show`, at once."""
        reading = ffi.new("struct sim_gpu_reading *")
        return int(reading.busy_ns) if lib.sim_read_gpu(self._mapping, gpu, reading) == lib.SIM_OK else 0

    def process_times(self, gpu: int) -> list[ProcessTimes]:
        """Of each process on a GPU. Part of `show`, at once."""
        count = _FEW_PROCESSES
        rows = ffi.new("struct sim_process_reading[]", count)
        if (found := lib.sim_read_processes(self._mapping, gpu, rows, count)) > count:
            count = lib.SIM_MAX_PROCESSES
            rows = ffi.new("struct sim_process_reading[]", count)
            found = min(lib.sim_read_processes(self._mapping, gpu, rows, count), count)
        return [
            ProcessTimes(
                group=self._group_of(row.row),
                pid=int(row.pid),
                queued_ns=int(row.usage.queued_ns),
                busy_ns=int(row.usage.busy_ns),
            )
            for row in (rows[at] for at in range(found))
        ]

    def _group_of(self, row: int) -> str:
        group = self._mapping.processes[row].group
        return str(ffi.string(self._mapping.groups[group].name).decode(errors="replace"))

    def show(self) -> dict[str, Any]:
        """Everything on the machine: see `hypervisor.simulation.report`."""
        return report(ffi, lib, self._mapping, str(self.path))

    def check(self) -> list[str]:
        """Breaches of the machine's invariants, one line each; empty when it is sound."""
        text = ffi.new("char[]", _CHECK_BYTES)
        lib.sim_machine_check(self._mapping, text, _CHECK_BYTES)
        return [line for line in ffi.string(text).decode(errors="replace").splitlines() if line]

    def add_fault(self, fault: FaultSpec) -> int:
        """Switch a fault on; its times count from now. Returns the number that clears it.

        Raises:
            MachineError: there is no room for another fault.
        """
        row = ffi.new("struct sim_fault *")
        _fill(row, fault)
        now = self.now_ns()
        row.at_ns += now
        if row.until_ns:
            row.until_ns += now
        number = ffi.new("uint32_t *")
        status = lib.sim_fault_add(self._mapping, row, number)
        if status != lib.SIM_OK:
            raise MachineError(_words(status, self.path))
        return int(number[0])

    def clear_fault(self, number: int) -> None:
        """Switch a fault off; a lost or vanished GPU comes back.

        Raises:
            MachineError: there is no such fault.
        """
        if not 0 < number < 1 << 32 or lib.sim_fault_clear(self._mapping, number) != lib.SIM_OK:
            raise MachineError(f"machine {self.path}: there is no fault {number}; see: hypervisor sim show")

    def clear_faults(self) -> None:
        """Switch all faults off."""
        lib.sim_fault_clear_all(self._mapping)

    def step(self, nanoseconds: int) -> None:
        """Move the virtual clock on, and with it all that was waiting for it.

        Raises:
            MachineError: this machine runs in real time.
        """
        if not self.is_virtual:
            raise MachineError(f"machine {self.path}: runs in real time; only clock mode virtual can be stepped")
        lib.sim_machine_step(self._mapping, nanoseconds)

    def run_until(self, nanoseconds: int, *, participants: int, real_timeout_seconds: float) -> None:
        """Move the virtual clock from one waiter's deadline to the next, up to a time of the machine, each time when
        so many threads wait for it. Of those whose time has come one goes on at a time; who is due at the end of the
        run, with the next one.

        Raises:
            MachineError: this machine runs in real time, or the threads did not all come to wait in so much real time.
        """
        if not self.is_virtual:
            raise MachineError(f"machine {self.path}: runs in real time; only clock mode virtual can be stepped")
        timeout_ns = round(real_timeout_seconds * 1e9)
        if lib.sim_machine_run_until(self._mapping, nanoseconds, participants, timeout_ns) != lib.SIM_OK:
            raise MachineError(
                f"machine {self.path}: fewer than {participants} threads wait for the virtual clock; the programs "
                "on it have ended, or wait for something else"
            )


@contextmanager
def opened(path: Path) -> Iterator[Machine]:
    """A machine, open for the length of a block.

    Raises:
        MachineError: as for Machine.open.
    """
    machine = Machine.open(path)
    try:
        yield machine
    finally:
        machine.close()
