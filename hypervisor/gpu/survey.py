"""What is asked of one GPU: facts when it is attached, its place in the machine, readings each round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypervisor.gpu import addresses, nvml_processes, nvml_readings, nvml_state, wire
from hypervisor.gpu.codes import NOT_ASKED, NOT_SUPPORTED, SUCCESS, UNREADABLE, VGPU_GUEST, ErrorClass, classify
from hypervisor.gpu.nvml import Device, Field, Nvml
from hypervisor.gpu.processes import tells_nothing
from hypervisor.gpu.wire import Answer

CLOCK_SM = 1
CLOCK_MEMORY = 2
MOST_LINKS = 36
P2P_READ, P2P_WRITE, P2P_NVLINK = 0, 1, 2
SCOPE_NODE = 0
# Field values of a card as a whole. The times are nanoseconds for which a reason held clocks down.
RECOVERY_ACTION: Field = (230, 0)
THROTTLED: dict[str, Field] = {
    "power_cap": (74, 0),
    "sync_boost": (76, 0),
    "software_thermal": (269, 0),
    "hardware_thermal": (270, 0),
    "power_brake": (271, 0),
}
SINGLE_BIT_ERRORS, DOUBLE_BIT_ERROR = 0, 1
CORRECTED, UNCORRECTED = 0, 1
VOLATILE, AGGREGATE = 0, 1
VENDOR = 0x10DE
# With one process on it, a card as a whole says what that says.
LEAST_PROCESSES = 2
# Bounds of what can be true.
MOST_INDEX, MOST_CORES, MOST_MEGAHERTZ = 4095, 200_000, 10_000


@dataclass(slots=True)
class Card:
    """An attached GPU and its MIG devices."""

    slot: str
    device: Device
    uuid: str
    instances: list[tuple[str, Device]] = field(default_factory=list)
    sampled: Device = field(init=False)  # the same handle, with a memory of its own of which samples were given

    def __post_init__(self) -> None:
        self.sampled = Device(self.device.handle)

    vgpu_guest: bool = False


def attach(nvml: Nvml, handle: Any, request: wire.Attach) -> tuple[Card, wire.Attached]:
    """Ask for everything that does not change."""
    device = Device(handle)
    facts = _facts(nvml, device)
    index = Answer(request.index) if request.index is not None else nvml.number(device, "nvmlDeviceGetIndex")
    slot = facts.bus_id.value or request.bus_id or f"index:{request.index}"
    mig = mig_enabled(nvml, device)
    card = Card(slot, device, facts.uuid.value or "", vgpu_guest=facts.virtualization.value == VGPU_GUEST)
    handles, complete = nvml_readings.mig_devices(nvml, device) if mig.value else ([], mig.value is False)
    instances = []
    for instance in handles:
        told = _instance_facts(nvml, instance, facts)
        if told.uuid.value:
            card.instances.append((told.uuid.value, instance))
            instances.append(told)
        else:
            complete = False
    attached = wire.Attached(SUCCESS, slot, within(index, 0, MOST_INDEX), facts, mig, instances, complete)
    return card, attached


def mig_enabled(nvml: Nvml, device: Device) -> Answer[bool]:
    """Whether the card is divided now; a change that is pending does not count."""
    mode = nvml.pair(device, "nvmlDeviceGetMigMode")
    if mode.value is None:
        return Answer(None, mode.code)
    return Answer(mode.value[0] == 1) if mode.value[0] in (0, 1) else Answer(None, UNREADABLE)


def within(answer: Answer[int], low: int, high: int) -> Answer[int]:
    """The answer, or that it can't be read where its value can't be true: it is then asked for again."""
    return answer if answer.value is None or low <= answer.value <= high else Answer(None, UNREADABLE)


def _filled(answer: Answer[str]) -> Answer[str]:
    return answer if answer.value != "" else Answer(None, UNREADABLE)


def _facts(nvml: Nvml, device: Device) -> wire.DeviceFacts:
    pci = nvml_readings.pci(nvml, device)
    bus_id, pci_device_id = pci.value or (None, None)
    if pci_device_id is not None and pci_device_id & 0xFFFF != VENDOR:
        pci, bus_id, pci_device_id = Answer(None, UNREADABLE), None, None
    capability = nvml.pair(device, "nvmlDeviceGetCudaComputeCapability")
    if capability.value is not None and not (0 < capability.value[0] < 100 and 0 <= capability.value[1] < 10):
        capability = Answer(None, UNREADABLE)
    return wire.DeviceFacts(
        uuid=_filled(nvml.text(device, "nvmlDeviceGetUUID")),
        minor=within(nvml.number(device, "nvmlDeviceGetMinorNumber"), 0, MOST_INDEX),
        bus_id=Answer(addresses.normalise(bus_id) if bus_id else None, pci.code),
        pci_device_id=Answer(pci_device_id, pci.code),
        name=_filled(nvml.text(device, "nvmlDeviceGetName")),
        architecture=nvml.number(device, "nvmlDeviceGetArchitecture"),
        compute_capability=capability,
        cores=within(nvml.number(device, "nvmlDeviceGetNumGpuCores"), 1, MOST_CORES),
        serial=nvml.text(device, "nvmlDeviceGetSerial"),
        vbios_version=nvml.text(device, "nvmlDeviceGetVbiosVersion"),
        max_sm_clock_mhz=within(nvml.number(device, "nvmlDeviceGetMaxClockInfo", CLOCK_SM), 1, MOST_MEGAHERTZ),
        virtualization=nvml.number(device, "nvmlDeviceGetVirtualizationMode"),
    )


def _instance_facts(nvml: Nvml, instance: Device, parent: wire.DeviceFacts) -> wire.DeviceFacts:
    attributes = nvml_readings.instance_attributes(nvml, instance)
    multiprocessors, mebibytes = attributes.value or (None, None)
    gpu_instance = nvml.number(instance, "nvmlDeviceGetGpuInstanceId")
    compute_instance = nvml.number(instance, "nvmlDeviceGetComputeInstanceId")
    uuid = nvml.text(instance, "nvmlDeviceGetUUID")
    if gpu_instance.value is None or compute_instance.value is None:
        # Without its numbers it can't be told which part of the card it is; the parent's round asks again.
        uuid = Answer(None, gpu_instance.code or compute_instance.code)
    told = wire.Instance(
        gpu_instance.value or 0,
        compute_instance.value or 0,
        Answer(multiprocessors, attributes.code),
        Answer(mebibytes, attributes.code),
    )
    return wire.DeviceFacts(
        uuid=uuid,
        minor=parent.minor,
        bus_id=parent.bus_id,
        pci_device_id=parent.pci_device_id,
        name=nvml.text(instance, "nvmlDeviceGetName"),
        architecture=parent.architecture,
        compute_capability=parent.compute_capability,
        cores=Answer(None, NOT_SUPPORTED),
        serial=parent.serial,
        vbios_version=parent.vbios_version,
        max_sm_clock_mhz=parent.max_sm_clock_mhz,
        virtualization=parent.virtualization,
        instance=told,
    )


def place(nvml: Nvml, card: Card, cards: Mapping[str, Card]) -> wire.Surveyed:
    """NUMA node, CPUs, NVLinks, and what lies between this GPU and each other one that is attached."""
    device = card.device
    return wire.Surveyed(
        memory_nodes=nvml_readings.affinity(nvml, device, "nvmlDeviceGetMemoryAffinity", SCOPE_NODE),
        cpus=nvml_readings.affinity(nvml, device, "nvmlDeviceGetCpuAffinity"),
        nvlinks=_nvlinks(nvml, device),
        peers=[_peer(nvml, device, other) for slot, other in sorted(cards.items()) if slot != card.slot],
    )


def _peer(nvml: Nvml, device: Device, other: Card) -> wire.PeerFacts:
    return wire.PeerFacts(
        other.slot,
        nvml.between(device, other.device, "nvmlDeviceGetTopologyCommonAncestor"),
        nvml.between(device, other.device, "nvmlDeviceGetP2PStatus", P2P_READ),
        nvml.between(device, other.device, "nvmlDeviceGetP2PStatus", P2P_WRITE),
        nvml.between(device, other.device, "nvmlDeviceGetP2PStatus", P2P_NVLINK),
    )


def _nvlinks(nvml: Nvml, device: Device) -> list[wire.NvLink]:
    links = []
    for number in range(MOST_LINKS):
        state = nvml.number(device, "nvmlDeviceGetNvLinkState", number)
        if state.value is None and classify(state.code) is not ErrorClass.TRANSIENT:
            break  # past the last link, no NVLink at all, or a GPU that says nothing more
        links.append(_nvlink(nvml, device, number, state))
    return links


def _nvlink(nvml: Nvml, device: Device, number: int, state: Answer[int]) -> wire.NvLink:
    active: Answer[bool] = Answer(None, state.code) if state.value is None else Answer(state.value == 1)
    if not active.value:
        return wire.NvLink(number, active, Answer(None, NOT_ASKED), Answer(None, NOT_ASKED), Answer(None, NOT_ASKED))
    remote = nvml_readings.link_remote(nvml, device, number)
    return wire.NvLink(
        number,
        active,
        nvml.number(device, "nvmlDeviceGetNvLinkVersion", number),
        nvml.number(device, "nvmlDeviceGetNvLinkRemoteDeviceType", number),
        Answer(addresses.normalise(remote.value) if remote.value else None, remote.code),
    )


def read(nvml: Nvml, card: Card) -> wire.ReadDone:
    """Readings of the card and of each of its MIG devices."""
    mig = mig_enabled(nvml, card.device)
    devices = [_readings(nvml, card.uuid, card.device)]
    devices += [_readings(nvml, uuid, device) for uuid, device in card.instances]
    return wire.ReadDone(mig, devices)


def samples(nvml: Nvml, card: Card, *, whole: bool) -> wire.Sampled:
    """Samples of the card's processes that this did not give before, and of the card as a whole beside them."""
    found = nvml_processes.samples(nvml, card.sampled)
    if tells_nothing(found):
        rates = nvml_readings.utilization(nvml, card.sampled)
        return wire.Sampled(found, gpu_percent=Answer(rates.value[0] if rates.value else None, rates.code))
    if not whole or found.value is None or len(found.value) < LEAST_PROCESSES:
        return wire.Sampled(found)
    return wire.Sampled(found, nvml_processes.card_samples(nvml, card.sampled, found.value))


def _readings(nvml: Nvml, uuid: str, device: Device) -> wire.DeviceReadings:
    memory = nvml_readings.memory(nvml, device)
    if classify(memory.code) is ErrorClass.DEAD:
        # Nothing else is asked of a GPU that is gone: each further call may take the driver's own time-out.
        return _nothing(uuid, memory.code)
    total = memory.value.total if memory.value and 0 < memory.value.total < 2**48 else None
    return wire.DeviceReadings(
        uuid=uuid,
        memory=memory,
        utilization=nvml_readings.utilization(nvml, device),
        temperature=nvml_readings.temperature(nvml, device),
        power=nvml.number(device, "nvmlDeviceGetPowerUsage"),
        power_limit=nvml.number(device, "nvmlDeviceGetEnforcedPowerLimit"),
        energy=nvml.number(device, "nvmlDeviceGetTotalEnergyConsumption"),
        sm_clock=nvml.number(device, "nvmlDeviceGetClockInfo", CLOCK_SM),
        memory_clock=nvml.number(device, "nvmlDeviceGetClockInfo", CLOCK_MEMORY),
        clock_event_reasons=nvml_readings.clock_event_reasons(nvml, device),
        processes=nvml_processes.processes(nvml, device, total),
        samples=nvml_processes.samples(nvml, device),
    )


def _nothing(uuid: str, code: int) -> wire.DeviceReadings:
    return wire.DeviceReadings(
        uuid=uuid,
        memory=Answer(None, code),
        utilization=Answer(None, code),
        temperature=Answer(None, code),
        power=Answer(None, code),
        power_limit=Answer(None, code),
        energy=Answer(None, code),
        sm_clock=Answer(None, code),
        memory_clock=Answer(None, code),
        clock_event_reasons=Answer(None, code),
        processes=Answer(None, code),
        samples=Answer(None, code),
    )


def health(nvml: Nvml, card: Card, watched: Answer[int]) -> wire.HealthDone:
    """The card's state of health; its MIG devices have none of their own."""
    device = card.device

    def ecc(error: int, counter: int) -> Answer[int]:
        return nvml.number(device, "nvmlDeviceGetTotalEccErrors", error, counter)

    links: list[Answer[bool]] = []
    for number in range(MOST_LINKS):
        state = nvml.number(device, "nvmlDeviceGetNvLinkState", number)
        if state.value is None and classify(state.code) is not ErrorClass.TRANSIENT:
            break
        links.append(Answer(state.value == 1) if state.value in (0, 1) else Answer(None, state.code or UNREADABLE))
    told = nvml.fields(device, (RECOVERY_ACTION, *THROTTLED.values(), *nvml_state.link_error_fields(len(links))))
    return wire.HealthDone(
        recovery_action=told[RECOVERY_ACTION],
        remapped_rows=nvml.four(device, "nvmlDeviceGetRemappedRows"),
        retired_single=nvml.length(device, "nvmlDeviceGetRetiredPages", SINGLE_BIT_ERRORS),
        retired_double=nvml.length(device, "nvmlDeviceGetRetiredPages", DOUBLE_BIT_ERROR),
        retire_pending=nvml.number(device, "nvmlDeviceGetRetiredPagesPendingStatus"),
        ecc_corrected_volatile=ecc(CORRECTED, VOLATILE),
        ecc_uncorrected_volatile=ecc(UNCORRECTED, VOLATILE),
        ecc_corrected_aggregate=ecc(CORRECTED, AGGREGATE),
        ecc_uncorrected_aggregate=ecc(UNCORRECTED, AGGREGATE),
        unrepairable=nvml.number(device, "nvmlDeviceGetUnrepairableMemoryFlag_v1"),
        pcie_replays=nvml.number(device, "nvmlDeviceGetPcieReplayCounter"),
        watched=watched,
        links=links,
        fabric=nvml_state.fabric(nvml, device),
        # A card that is no part of one has no licence, and asking each of them would only cost.
        licensed=nvml_state.licensed(nvml, device) if card.vgpu_guest else Answer(None, NOT_SUPPORTED),
        throttled={reason: told[each] for reason, each in THROTTLED.items()},
        link_errors=nvml_state.link_errors(nvml, device, len(links), told.__getitem__),
    )
