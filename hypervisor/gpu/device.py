"""What is known of one device (a GPU or a MIG instance), kept over rounds and over readers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypervisor.gpu import addresses, formula, judge, processes
from hypervisor.gpu.catalogue import Card
from hypervisor.gpu.codes import GPU_IS_LOST, ErrorClass, classify, words
from hypervisor.gpu.judge import Capacity, MemoryUse
from hypervisor.gpu.wire import Answer, DeviceFacts, DeviceReadings
from hypervisor.model.figure import Figure
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
VGPU_GUEST = 2  # NVML's virtualization mode

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
    rejections: tuple[str, ...] = ()  # which readings the problems are about
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
    record: DeviceRecord, told: DeviceReadings, *, bounds: tuple[int, int], now: float, wall_offset: float
) -> DeviceRecord:
    """The record after a round. bounds are the least and most bytes that the model can have."""
    kind = classify(told.memory.code)
    if kind in (ErrorClass.DEAD, ErrorClass.UNUSABLE):
        return unreadable(record, told.memory.code)
    capacity, capacity_problem = judge.judge_capacity(record.capacity, told.memory, bounds, now)
    memory, memory_problem = judge.judge_memory_use(record.memory, told.memory, capacity=capacity, now=now)
    activity, process_problem = processes.combine(
        record.activity, told.processes, told.samples, now=now, wall_offset=wall_offset
    )
    sensors, sensor_problems = _judge_sensors(record.sensors, told, now)
    problems = [text for text in (capacity_problem, memory_problem, *sensor_problems, process_problem) if text]
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
        problems=tuple(problems),
        rejections=_kinds(problems),
        read_at=now,
    )


def _kinds(problems: list[str]) -> tuple[str, ...]:
    """The readings that the problems are about, as the metric names them."""
    return tuple(problem.partition(" of ")[0].partition(" changed ")[0].partition(":")[0] for problem in problems)


def _judge_sensors(last: Sensors, told: DeviceReadings, now: float) -> tuple[Sensors, list[str]]:
    rates = told.utilization
    gpu, memory = rates.value or (None, None)
    judged = {
        "utilization": judge.judge(Answer(gpu, rates.code), last.utilization, judge.UTILIZATION, now),
        "memory_utilization": judge.judge(
            Answer(memory, rates.code), last.memory_utilization, judge.MEMORY_UTILIZATION, now
        ),
        "temperature": judge.judge(told.temperature, last.temperature, judge.TEMPERATURE, now),
        "power": judge.judge(told.power, last.power, judge.POWER, now),
        "power_limit": judge.judge(told.power_limit, last.power_limit, judge.POWER_LIMIT, now),
        "energy": judge.judge(told.energy, last.energy, judge.ENERGY, now),
        "sm_clock": judge.judge(told.sm_clock, last.sm_clock, judge.SM_CLOCK, now),
        "memory_clock": judge.judge(told.memory_clock, last.memory_clock, judge.MEMORY_CLOCK, now),
    }
    sensors = Sensors(**{name: each.figure for name, each in judged.items()})
    return sensors, [each.problem for each in judged.values() if each.problem]


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
        activity=processes.Activity(None, record.activity.busy),
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
