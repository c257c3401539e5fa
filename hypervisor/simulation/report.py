"""What is on a machine, as plain data for JSON: the ground truth that tests of limits are judged by.

Bytes are bytes, times simulated nanoseconds. `busy_ns` is time with at least one kernel resident, `queued_ns`
time with anything in a stream; `sm_ns` the integral of the share of SMs in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypervisor.simulation.faults import ACTION_NAMES

_USAGE = (
    "bytes",
    "peak_bytes",
    "context_bytes",
    "queued_ns",
    "busy_ns",
    "sm_ns",
    "launches",
    "copied_bytes",
    "contexts",
)
_NOTICES = {
    1: "xid",
    2: "ecc-single",
    3: "ecc-double",
    4: "mig",
    5: "clock",
    6: "lost",
    7: "vanished",
    8: "reset",
    9: "recovery",
}
_LAST_NOTICES = 20


def report(ffi: Any, lib: Any, machine: Any, path: str) -> dict[str, Any]:
    """Read a whole machine through its compiled module. Each GPU is consistent in itself."""
    text = _texts(ffi)
    gpus = [_gpu(ffi, lib, machine, index, text) for index in range(machine.gpu_count)]
    system = machine.system
    earliest = ffi.new("uint64_t *")
    virtual = system.clock_mode == lib.SIM_CLOCK_VIRTUAL
    return {
        "machine": path,
        "profile": text(system.profile),
        "driver_version": text(system.driver_version),
        "cuda_version": system.cuda_version,
        "clock": {
            "mode": "virtual" if virtual else "real",
            "scale": system.clock_scale_ppm / 1_000_000,
            "now_ns": lib.sim_now(machine),
            "waiting": lib.sim_machine_waiting(machine, earliest) if virtual else 0,
        },
        "window_ns": system.window_ns,
        "dead_lock_owners": machine.owner_deaths,
        "reaped_processes": machine.reaped,
        "gpus": gpus,
        "processes": _processes(ffi, lib, machine, text),
        "groups": _groups(ffi, lib, machine, text),
        "streams": {
            "open": sum(
                machine.processes[row].stream_count
                for row in range(lib.SIM_MAX_PROCESSES)
                if machine.processes[row].state
            ),
            "active": sum(gpu["active_streams"] for gpu in gpus),
        },
        "faults": _faults(ffi, lib, machine, text),
        "notices": list(_notices(ffi, lib, machine)),
    }


def _texts(ffi: Any) -> Any:
    """How a fixed array of characters becomes text."""

    def text(array: Any) -> str:
        return str(ffi.string(array).decode(errors="replace"))

    return text


def _usage(usage: Any) -> dict[str, int]:
    return {name: int(getattr(usage, name)) for name in _USAGE}


def _instances(gpu: Any, text: Any) -> list[dict[str, Any]]:
    """GPU instances in order of their memory slices, each with its compute instances."""
    found = [
        {
            "id": row.id,
            "profile": text(gpu.info.mig_profiles[row.profile].name),
            "start": row.start,
            "slices": gpu.info.mig_profiles[row.profile].memory_slices,
            "memory_bytes": gpu.info.mig_profiles[row.profile].memory_bytes,
            "used_bytes": row.used_bytes,
            "busy_ns": row.busy_ns,
            "compute": [
                {"id": part.id, "uuid": text(part.uuid), "slices": part.slices, "sm_count": part.sm_count}
                for part in gpu.compute
                if part.state and part.instance == at
            ],
        }
        for at, row in enumerate(gpu.instances)
        if row.state
    ]
    return sorted(found, key=lambda instance: int(instance["start"]))


def _gpu(ffi: Any, lib: Any, machine: Any, index: int, text: Any) -> dict[str, Any]:
    reading = ffi.new("struct sim_gpu_reading *")
    lib.sim_read_gpu(machine, index, reading)
    info = reading.info
    links = [info.links[at] for at in range(info.link_count)]
    return {
        "index": index,
        "uuid": text(info.uuid),
        "name": text(info.name),
        "bus_id": f"{info.pci_domain:08X}:{info.pci_bus:02X}:{info.pci_device:02X}.0",
        "numa_node": info.numa_node,
        "lost": bool(reading.lost),
        "vanished": bool(reading.vanished),
        "mps": bool(info.mps),
        "mig": {"mode": bool(info.mig_mode), "instances": _instances(machine.gpu[index], text)},
        "memory": {
            "total_bytes": info.memory_total_bytes,
            "reserved_bytes": info.memory_reserved_bytes,
            "used_bytes": reading.used_bytes,
            "peak_bytes": reading.peak_bytes,
            "free_bytes": reading.free_bytes,
            "context_bytes": info.context_bytes,
        },
        "busy_ns": reading.busy_ns,
        "sm_ns": reading.sm_ns,
        "copy_ns": reading.copy_ns,
        "launches": reading.launches,
        "utilization_percent": reading.utilization_percent,
        "power_mw": reading.power_mw,
        "temperature_c": reading.temperature_c,
        "energy_mj": reading.energy_mj,
        "active_streams": reading.active_streams,
        "links_active": sum(1 for link in links if link.active),
        "links": len(links),
    }


def _processes(ffi: Any, lib: Any, machine: Any, text: Any) -> list[dict[str, Any]]:
    room = lib.SIM_MAX_PROCESSES
    rows = ffi.new("struct sim_process_reading[]", room)
    found: dict[int, dict[str, Any]] = {}
    for at in range(min(lib.sim_read_processes(machine, lib.SIM_NONE, rows, room), room)):
        row = rows[at]
        found[row.row] = {
            "pid": row.pid,
            "name": text(row.name),
            "group": text(machine.groups[machine.processes[row.row].group].name),
            "start_time": row.start_time,
            "pid_namespace": row.pid_namespace,
            "mps_client": bool(row.mps_client),
            "gpus": {},
        }
    for gpu in range(machine.gpu_count):
        for at in range(min(lib.sim_read_processes(machine, gpu, rows, room), room)):
            row = rows[at]
            if row.row in found and found[row.row]["pid"] == row.pid:
                found[row.row]["gpus"][str(gpu)] = _usage(row.usage) | {"window_busy_ns": int(row.window_busy_ns)}
    return list(found.values())


def _groups(ffi: Any, lib: Any, machine: Any, text: Any) -> list[dict[str, Any]]:
    room = lib.SIM_MAX_GROUPS
    rows = ffi.new("struct sim_group_reading[]", room)
    found: dict[int, dict[str, Any]] = {}
    for gpu in range(machine.gpu_count):
        for at in range(min(lib.sim_read_groups(machine, gpu, rows, room), room)):
            row = rows[at]
            group = found.setdefault(
                int(row.key), {"name": text(row.name), "key": f"{row.key:016x}", "processes": row.processes, "gpus": {}}
            )
            usage = _usage(row.usage)
            if any(usage.values()):
                group["gpus"][str(gpu)] = usage
    return list(found.values())


def _faults(ffi: Any, lib: Any, machine: Any, text: Any) -> list[dict[str, Any]]:
    room = lib.SIM_MAX_FAULTS
    rows = ffi.new("struct sim_fault[]", room)
    return [
        {
            "id": row.id,
            "action": ACTION_NAMES.get(row.action, str(row.action)),
            "gpu": row.gpu if row.gpu >= 0 else None,
            "pid": row.pid or None,
            "call": text(row.call) or None,
            "value": row.value,
            "at_ns": row.at_ns,
            "until_ns": row.until_ns or None,
            "every": row.every or None,
            "count": row.count or None,
            "seen": row.seen,
            "hits": row.hits,
            "applied": row.applied == 1,  # of a driver, `call` is then the version that comes back
        }
        for row in (rows[at] for at in range(min(lib.sim_read_faults(machine, rows, room), room)))
    ]


def _notices(ffi: Any, lib: Any, machine: Any) -> Iterator[dict[str, Any]]:
    """The last few things that the GPUs reported."""
    notice = ffi.new("struct sim_notice *")
    last = lib.sim_notice_last(machine)
    after = max(last - _LAST_NOTICES, 0)
    while after < last and lib.sim_notice_next(machine, after, notice):
        after = notice.sequence
        yield {
            "sequence": notice.sequence,
            "time_ns": notice.time_ns,
            "gpu": notice.gpu,
            "kind": _NOTICES.get(notice.kind, str(notice.kind)),
            "value": notice.value,
        }
