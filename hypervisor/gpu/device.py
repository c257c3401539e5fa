"""What is known of one device (a GPU or a MIG instance), kept over rounds and over readers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypervisor.gpu import addresses, formula, judge, processes, unified
from hypervisor.gpu.catalogue import Card
from hypervisor.gpu.codes import GPU_IS_LOST, VGPU_GUEST, ErrorClass, classify, words
from hypervisor.gpu.health.circuit import Circuit, Panel
from hypervisor.gpu.judge import Capacity, MemoryUse, Number
from hypervisor.gpu.wire import Answer, DeviceFacts, DeviceReadings, Memory
from hypervisor.model.figure import Figure, FigureSource
from hypervisor.model.gpu import GpuIdentity, GpuReadings, Partition
from hypervisor.model.health import HealthState

ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
# NVML's reasons: hardware slowdown, thermal slowdown, power brake. The driver's own power cap is everyday life.
CLOCKS_HELD_DOWN = 0x8 | 0x40 | 0x80

ABSENT: Figure[float] = Figure.absent("not read yet")


@dataclass(frozen=True, slots=True)
class Sensors:
    """Readings that are one number each."""

    utilization: Figure[float] = ABSENT
    memory_utilization: Figure[float] = ABSENT
    temperature: Figure[float] = ABSENT
    power: Figure[float] = ABSENT
    power_limit: Figure[float] = ABSENT
    energy: Figure[float] = ABSENT
    sm_clock: Figure[float] = ABSENT
    memory_clock: Figure[float] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """The last good figures of a device, what is wrong with newer ones, and its health as read."""

    identity: GpuIdentity
    facts: DeviceFacts
    capacity: Capacity = judge.NO_CAPACITY
    memory: MemoryUse = judge.NO_MEMORY_USE
    sensors: Sensors = field(default_factory=Sensors)
    activity: processes.Activity = field(default_factory=processes.Activity)
    health: HealthState = HealthState.UNKNOWN
    code: int = 0  # why the device could not be read, 0 when it could
    problems: tuple[str, ...] = ()
    rejections: tuple[tuple[str, str], ...] = ()  # which readings were not believed, and why
    circuits: Mapping[str, Circuit] = field(default_factory=dict)
    slow_rounds: int = 0  # rounds in a row with clocks held down by heat or power
    read_at: float = 0.0  # CLOCK_MONOTONIC of the last round in which it answered


def identify(
    facts: DeviceFacts, *, index: int, parent: GpuIdentity | None, simulated: bool, last: GpuIdentity | None
) -> GpuIdentity:
    """Identity out of facts; what could not be read this time stays as it was. Raises ValueError without a UUID."""
    if not facts.uuid.value:
        raise ValueError("a device without a UUID has no identity")
    capability = facts.compute_capability.value
    instance = facts.instance
    sm_count = instance.multiprocessors.value if instance else formula.sm_count(facts.cores.value, capability)
    partition = None
    name = facts.name.value
    if instance is not None and parent is not None:
        partition = Partition(
            parent_uuid=parent.uuid,
            gpu_instance_id=instance.gpu_instance,
            compute_instance_id=instance.compute_instance,
            profile=(name or "").rpartition(" MIG ")[2],
        )
    return GpuIdentity(
        uuid=facts.uuid.value,
        index=index,
        minor=facts.minor.value if facts.minor.value is not None or last is None else last.minor,
        pci_bus_id=facts.bus_id.value or (last.pci_bus_id if last else ""),
        pci_device_id=_pci(facts) or (last.pci_device_id if last else ""),
        model=name or (last.model if last else ""),
        vendor="NVIDIA",
        architecture=ARCHITECTURES.get(facts.architecture.value or 0, "") or (last.architecture if last else ""),
        compute_capability=_capability(facts) or (last.compute_capability if last else ""),
        sm_count=sm_count or (last.sm_count if last else None),
        serial=facts.serial.value or (last.serial if last else ""),
        vbios_version=facts.vbios_version.value or (last.vbios_version if last else ""),
        partition=partition,
        simulated=simulated,
    )


def _pci(facts: DeviceFacts) -> str:
    return addresses.pci_identifier(facts.pci_device_id.value) if facts.pci_device_id.value else ""


def _capability(facts: DeviceFacts) -> str:
    capability = facts.compute_capability.value
    return f"{capability[0]}.{capability[1]}" if capability else ""


def incomplete(facts: DeviceFacts) -> bool:
    """Whether facts are missing that may be there when asked again."""
    answers: tuple[Answer[str] | Answer[int] | Answer[tuple[int, int]], ...] = (
        facts.name,
        facts.bus_id,
        facts.minor,
        facts.pci_device_id,
        facts.architecture,
        facts.compute_capability,
        facts.cores,
        facts.serial,
        facts.max_sm_clock_mhz,
    )
    return any(
        answer.value is None and classify(answer.code) not in (ErrorClass.ABSENT, ErrorClass.DEAD) for answer in answers
    )


def card_of(record: DeviceRecord) -> Card:
    """What the catalogue wants to know of a device."""
    identity = record.identity
    return Card(
        name=identity.model or None,
        pci_identifier=identity.pci_device_id,
        memory_bytes=record.capacity.figure.value,
        sm_count=identity.sm_count,
        compute_capability=record.facts.compute_capability.value,
        max_sm_clock_mhz=record.facts.max_sm_clock_mhz.value,
        virtual=record.facts.virtualization.value == VGPU_GUEST,
    )


def update(
    record: DeviceRecord,
    told: DeviceReadings,
    *,
    bounds: tuple[int, int],
    now: float,
    wall_offset: float,
    unified_bytes: int | None = None,
) -> DeviceRecord:
    """The record after a round. bounds are the least and most bytes that the model can have.

    unified_bytes: what a GPU without memory of its own may have of the host's.
    """
    kind = classify(told.memory.code)
    if kind in (ErrorClass.DEAD, ErrorClass.UNUSABLE):
        return unreadable(record, told.memory.code)
    panel = Panel(dict(record.circuits))
    if unified_bytes is not None and kind is ErrorClass.ABSENT and unified.is_integrated(record.identity):
        capacity = Capacity(Figure(unified_bytes, FigureSource.SYSTEM, now))
        memory = unified.use_by_processes(told.processes.value, unified_bytes, now)
    else:
        capacity = _judge_capacity(record.capacity, told.memory, bounds, now, panel)
        memory = _judge_memory_use(record.memory, told.memory, capacity, now, panel)
    activity, problem = processes.combine(
        record.activity,
        told.processes,
        told.samples,
        now=now,
        wall_offset=wall_offset,
        gpu_percent=told.utilization.value[0] if told.utilization.value is not None else None,
    )
    # A list of processes is believed as soon as there is one: an old list is worse than none.
    panel.lets_pass("processes", known=False, problem=problem, reason="failed")
    sensors = _judge_sensors(record.sensors, told, now, panel)
    answers = (told.memory.code, told.utilization.code, told.temperature.code, told.power.code, told.processes.code)
    blind = all(code != 0 for code in answers)
    slow = bool((told.clock_event_reasons.value or 0) & CLOCKS_HELD_DOWN)
    return replace(
        record,
        slow_rounds=record.slow_rounds + 1 if slow else 0,
        capacity=capacity,
        memory=memory,
        sensors=sensors,
        activity=activity,
        health=HealthState.BLIND if blind else HealthState.HEALTHY,
        code=told.memory.code if blind else 0,
        problems=tuple(panel.problems),
        rejections=tuple(panel.rejections),
        circuits=panel.circuits,
        read_at=now,
    )


def _judge_capacity(
    last: Capacity, told: Answer[Memory], bounds: tuple[int, int], now: float, panel: Panel
) -> Capacity:
    capacity, problem = judge.judge_capacity(last, told, bounds, now)
    reason = "mismatch" if capacity.candidate is not None else _reason(told.value.total if told.value else None)
    known = not capacity.figure.stale and capacity.figure.value is not None
    if panel.lets_pass("total_memory", known=known, problem=problem, reason=reason):
        return capacity
    return Capacity(_held(last.figure, "total memory"))


def _judge_memory_use(last: MemoryUse, told: Answer[Memory], capacity: Capacity, now: float, panel: Panel) -> MemoryUse:
    memory, problem = judge.judge_memory_use(last, told, capacity=capacity, now=now)
    known = not memory.used.stale and memory.used.value is not None
    if panel.lets_pass("memory_use", known=known, problem=problem, reason="mismatch"):
        return memory
    return judge.stale_use(last, "no reading of the memory use could be believed yet")


def _judge_sensors(last: Sensors, told: DeviceReadings, now: float, panel: Panel) -> Sensors:
    rates = told.utilization
    gpu, memory = rates.value or (None, None)
    answers = {
        "utilization": (Answer(gpu, rates.code), judge.UTILIZATION),
        "memory_utilization": (Answer(memory, rates.code), judge.MEMORY_UTILIZATION),
        "temperature": (told.temperature, judge.TEMPERATURE),
        "power": (told.power, judge.POWER),
        "power_limit": (told.power_limit, judge.POWER_LIMIT),
        "energy": (told.energy, judge.ENERGY),
        "sm_clock": (told.sm_clock, judge.SM_CLOCK),
        "memory_clock": (told.memory_clock, judge.MEMORY_CLOCK),
    }
    figures = {}
    for name, (answer, allowed) in answers.items():
        before: Figure[float] = getattr(last, name)
        judged = judge.judge(answer, before, allowed, now)
        passes = panel.lets_pass(
            name, known=answer.value is not None, problem=judged.problem, reason=_reason(answer.value)
        )
        figures[name] = judged.figure if passes else _held(before, allowed.name)
    return Sensors(**figures)


def _reason(value: int | None) -> str:
    """Why a reading is not believed, as the metric names it."""
    return "failed" if value is None else "range" if value else "zero"


def _held(last: Figure[Number], name: str) -> Figure[Number]:
    """The last good figure while its circuit is open."""
    return (
        last.as_stale() if last.value is not None else Figure.absent(f"no reading of the {name} could be believed yet")
    )


def unreadable(record: DeviceRecord, code: int) -> DeviceRecord:
    """The record when the device as a whole can't be read: figures stand, health says why."""
    health = {
        ErrorClass.DEAD: HealthState.LOST if code == GPU_IS_LOST else HealthState.UNHEALTHY,
        ErrorClass.UNUSABLE: HealthState.UNHEALTHY,
    }.get(classify(code), HealthState.BLIND)
    if record.health is HealthState.LOST and health is HealthState.BLIND:
        health = HealthState.LOST  # not being seen takes nothing back
    stale = as_stale(record)
    return replace(
        stale,
        activity=replace(record.activity, processes=None),
        health=health,
        code=code,
        problems=(words(code),),
        rejections=(),
    )


def as_stale(record: DeviceRecord) -> DeviceRecord:
    """The record with each figure marked as standing in for newer ones."""
    sensors = Sensors(**{name: getattr(record.sensors, name).as_stale() for name in Sensors.__dataclass_fields__})
    memory = MemoryUse(record.memory.used.as_stale(), record.memory.free.as_stale(), record.memory.reserved.as_stale())
    return replace(record, capacity=Capacity(record.capacity.figure.as_stale()), memory=memory, sensors=sensors)


def readings(record: DeviceRecord) -> GpuReadings:
    """The record's readings as they are published."""
    sensors, memory = record.sensors, record.memory
    who = record.activity.processes
    return GpuReadings(
        memory_used_bytes=memory.used,
        memory_free_bytes=memory.free,
        memory_reserved_bytes=memory.reserved,
        utilization_ratio=sensors.utilization,
        memory_utilization_ratio=sensors.memory_utilization,
        temperature_celsius=sensors.temperature,
        power_watts=sensors.power,
        power_limit_watts=sensors.power_limit,
        energy_joules_total=sensors.energy,
        sm_clock_hertz=sensors.sm_clock,
        memory_clock_hertz=sensors.memory_clock,
        processes=who,
        processes_absent_reason="" if who is not None else "the driver gave no list of processes",
    )
