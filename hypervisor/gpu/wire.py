"""What the daemon and its gpu-reader say to each other: frames of msgpack over two pipes.

A frame is four bytes of length, big end first, and one message. Every request has one reply. Facts cross as NVML
gave them, each with its return code; judging them is the daemon's work, so that its memory survives the child.
"""

from __future__ import annotations

import struct
from typing import Generic, TypeVar

import msgspec

from hypervisor.gpu.codes import NOT_ASKED

Value = TypeVar("Value")

LENGTH = struct.Struct(">I")
# A reply about one GPU with thousands of processes stays far below; more is a fault of the sender.
MAX_FRAME_BYTES = 16 * 2**20
# Between the stamps of two samples of one moment. Edges of a window that lie so far apart cut off or add as much busy
# time at most: of the shortest window, of a sixth of a second, a tenth of what whole percents leave open anyhow.
SAME_MOMENT_US = 80


class Answer(msgspec.Struct, Generic[Value], frozen=True, array_like=True):
    """What one call gave: a value with code 0, or no value and the code that says why."""

    value: Value | None
    code: int = 0


class Memory(msgspec.Struct, frozen=True, array_like=True):
    """Bytes, as one version of the call gave them; reserved is None in the old version, where used contains it."""

    total: int
    free: int
    used: int
    reserved: int | None


class Process(msgspec.Struct, frozen=True, array_like=True):
    """A process of a list; memory_bytes is None where the driver says that it does not know.

    mps: it computes through an MPS server, to which its time is attributed.
    """

    pid: int
    memory_bytes: int | None
    mps: bool = False


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """A utilisation sample of a process: time in microseconds of wall time, percent of the window."""

    pid: int
    time_us: int
    busy_percent: int


class CardSample(msgspec.Struct, frozen=True, array_like=True):
    """A utilisation sample of a card as a whole: time in microseconds of wall time, percent of the window."""

    time_us: int
    busy_percent: int


class Instance(msgspec.Struct, frozen=True, array_like=True):
    """Which part of a card a MIG device is."""

    gpu_instance: int
    compute_instance: int
    multiprocessors: Answer[int]
    memory_mebibytes: Answer[int]


class DeviceFacts(msgspec.Struct, frozen=True):
    """What does not change while a GPU is attached. Of a MIG device only uuid, name and instance are its own."""

    uuid: Answer[str]
    minor: Answer[int]
    bus_id: Answer[str]
    pci_device_id: Answer[int]  # device << 16 | vendor
    name: Answer[str]
    architecture: Answer[int]
    compute_capability: Answer[tuple[int, int]]
    cores: Answer[int]
    serial: Answer[str]
    vbios_version: Answer[str]
    max_sm_clock_mhz: Answer[int]
    virtualization: Answer[int]
    instance: Instance | None = None


class NvLink(msgspec.Struct, frozen=True, array_like=True):
    """One link of a GPU; remote_kind as NVML numbers it: 0 GPU, 2 switch."""

    number: int
    active: Answer[bool]
    version: Answer[int]
    remote_kind: Answer[int]
    remote_bus_id: Answer[str]


class PeerFacts(msgspec.Struct, frozen=True, array_like=True):
    """What lies between two GPUs; statuses as NVML numbers them, 0 is OK."""

    slot: str
    ancestor: Answer[int]
    read_status: Answer[int]
    write_status: Answer[int]
    nvlink_status: Answer[int]


class DeviceReadings(msgspec.Struct, frozen=True):
    """What a device (by UUID) says of itself now, in NVML's units."""

    uuid: str
    memory: Answer[Memory]
    utilization: Answer[tuple[int, int]]  # percent: GPU, memory
    temperature: Answer[int]  # Celsius
    power: Answer[int]  # milliwatts
    power_limit: Answer[int]
    energy: Answer[int]  # millijoules
    sm_clock: Answer[int]  # megahertz
    memory_clock: Answer[int]
    clock_event_reasons: Answer[int]
    processes: Answer[list[Process]]
    samples: Answer[list[Sample]]


class Fabric(msgspec.Struct, frozen=True, array_like=True):
    """A GPU in the fabric of its NVLinks, as NVML numbers it: state 3 is joined, and only then its status (0: well) and
    the mask of its health mean something; 0 is a mask that the driver does not give."""

    state: int
    status: int
    health: int


class GpuEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event of a card: kind is NVML's bit, data the Xid where it is one."""

    slot: str
    kind: int
    data: int


class MigProfile(msgspec.Struct, frozen=True, array_like=True):
    """What a card can be divided into: compute slices, how many fit at most, and places as (start, size) in memory
    slices. name is as NVML has it without "MIG ", "" where this driver has no names."""

    profile_id: int
    name: str
    slices: int
    most: int
    multiprocessors: int
    memory_mebibytes: int
    placements: list[tuple[int, int]]


class MigInstance(msgspec.Struct, frozen=True, array_like=True):
    """A GPU instance that is there. uuid is that of its MIG device, "" where it has no compute instance."""

    gpu_instance: int
    profile_id: int
    start: int
    size: int
    compute_instances: list[int]
    uuid: str


class Call(msgspec.Struct, frozen=True, array_like=True):
    """How often a call gave a code since this was last told, and how long that took together."""

    name: str
    code: int
    count: int
    seconds: float


# ---- requests ----


class Open(msgspec.Struct, frozen=True, tag=True):
    """Load NVML and count the GPUs, touching none."""


class Attach(msgspec.Struct, frozen=True, tag=True):
    """Take a handle, by bus id where it is known and by index else, and tell the facts; again, to ask them anew."""

    index: int | None = None
    bus_id: str | None = None


class Survey(msgspec.Struct, frozen=True, tag=True):
    """Tell the place of an attached GPU in the machine, and its links to all others that are attached."""

    slot: str


class Read(msgspec.Struct, frozen=True, tag=True):
    """Read an attached GPU and its MIG devices."""

    slot: str


class Sampling(msgspec.Struct, frozen=True, tag=True):
    """Tell the samples of an attached GPU's processes since this was last asked, and nothing else. card: and those of
    the GPU as a whole from the newest of them on, where several processes have one."""

    slot: str
    card: bool = False


class GpmTarget(msgspec.Struct, frozen=True, array_like=True):
    """A card as a whole (gpu_instance None) or a GPU instance of it, by the UUIDs of all devices that it is."""

    gpu_instance: int | None
    uuids: tuple[str, ...]


class Gpm(msgspec.Struct, frozen=True, tag=True):
    """Tell how busy parts of an attached GPU were since this was last asked, and who was on them. What is not named any
    more is forgotten."""

    slot: str
    targets: list[GpmTarget]


class Health(msgspec.Struct, frozen=True, tag=True):
    """Watch the events of an attached GPU, if that is not done yet, and then tell its state of health."""

    slot: str


class Events(msgspec.Struct, frozen=True, tag=True):
    """Tell the events of all watched GPUs since this was last asked. Does not wait for one."""


class MigLook(msgspec.Struct, frozen=True, tag=True):
    """Tell how an attached GPU is divided, and could be."""

    slot: str


class MigCreate(msgspec.Struct, frozen=True, tag=True):
    """Make a GPU instance at a place, and one compute instance that fills it."""

    slot: str
    profile_id: int
    start: int
    size: int


class MigDestroy(msgspec.Struct, frozen=True, tag=True):
    """End the compute instances of a GPU instance, and then it."""

    slot: str
    gpu_instance: int


class MigEnable(msgspec.Struct, frozen=True, tag=True):
    """Switch MIG mode on."""

    slot: str


class MemoryLimit(msgspec.Struct, frozen=True, tag=True):
    """Limit the VRAM of a control group (full path of its directory) on an attached GPU; None: no more."""

    slot: str
    cgroup: str
    hard_bytes: int | None


class Count(msgspec.Struct, frozen=True, tag=True):
    """Tell the calls since this was last asked."""


# ---- replies ----


class Opened(msgspec.Struct, frozen=True, tag=True):
    """NVML works. library is the file in use; simulated says that it is no real driver."""

    driver_version: Answer[str]
    nvml_version: Answer[str]
    cuda_version: Answer[int]
    count: Answer[int]
    library: str
    simulated: bool


class Failed(msgspec.Struct, frozen=True, tag=True):
    """NVML can't be used: what was done, the code, and which files were tried."""

    code: int
    stage: str
    detail: str = ""


class Attached(msgspec.Struct, frozen=True, tag=True):
    """Facts of the GPU, or only the code with which the handle was refused.

    slot names the GPU in later requests: its bus id, lower case as in sysfs, or its index where that is not known.
    instances are the MIG devices, or those of them that could be read when they are not complete.
    """

    code: int
    slot: str = ""
    index: Answer[int] = Answer(None, NOT_ASKED)
    facts: DeviceFacts | None = None
    mig_enabled: Answer[bool] = Answer(None, NOT_ASKED)
    instances: list[DeviceFacts] = []
    instances_complete: bool = False


class Surveyed(msgspec.Struct, frozen=True, tag=True):
    """Affinities are words of 64 bits; bit n of word w stands for node or CPU 64 w + n."""

    memory_nodes: Answer[list[int]]
    cpus: Answer[list[int]]
    nvlinks: list[NvLink]
    peers: list[PeerFacts]


class ReadDone(msgspec.Struct, frozen=True, tag=True):
    """The card itself first, then its MIG devices."""

    mig_enabled: Answer[bool]
    devices: list[DeviceReadings]


class Sampled(msgspec.Struct, frozen=True, tag=True):
    """What a GPU itself says of its processes, and of itself; its MIG devices have no samples. gpu_percent: how busy
    it says that it is as a whole, asked where no sample can be believed."""

    samples: Answer[list[Sample]]
    card: Answer[list[CardSample]] = Answer(None, NOT_ASKED)
    gpu_percent: Answer[int] = Answer(None, NOT_ASKED)


class GpmReading(msgspec.Struct, frozen=True, array_like=True):
    """Percent of the time between two moments (CLOCK_MONOTONIC, seconds) in which something ran on a target, and the
    host pids that were listed there at either moment; None where a list could not be read. One that is not told may
    be asked again: a window has only begun."""

    target: GpmTarget
    busy_percent: Answer[float]
    begun_at: float = 0.0
    ended_at: float = 0.0
    pids: list[int] | None = None


class GpmTold(msgspec.Struct, frozen=True, tag=True):
    """What GPM says of the targets that have a window, or can't have one."""

    readings: list[GpmReading]


class HealthDone(msgspec.Struct, frozen=True, tag=True):
    """State of health of a card, in NVML's numbers.

    remapped_rows: for corrected and for uncorrected errors, whether one is pending, whether one failed. watched is the
    mask of event types that are delivered. throttled: nanoseconds by reason; link_errors: by kind, then by link.
    """

    recovery_action: Answer[int]
    remapped_rows: Answer[tuple[int, int, int, int]]
    retired_single: Answer[int]
    retired_double: Answer[int]
    retire_pending: Answer[int]
    ecc_corrected_volatile: Answer[int]
    ecc_uncorrected_volatile: Answer[int]
    ecc_corrected_aggregate: Answer[int]
    ecc_uncorrected_aggregate: Answer[int]
    unrepairable: Answer[int]
    pcie_replays: Answer[int]
    watched: Answer[int]
    links: list[Answer[bool]]
    fabric: Answer[Fabric] = Answer(None, NOT_ASKED)
    licensed: Answer[bool] = Answer(None, NOT_ASKED)
    throttled: dict[str, Answer[int]] = {}
    link_errors: dict[str, list[Answer[int]]] = {}


class EventsDone(msgspec.Struct, frozen=True, tag=True):
    """Events in their order; code is 0, or why none can be had now."""

    events: list[GpuEvent]
    code: int = 0


class MigTold(msgspec.Struct, frozen=True, tag=True):
    """How a card is divided. mode is the current one and the one after the next reset. code is not 0 where the
    instances could not all be told; then nothing may be concluded from them."""

    mode: Answer[tuple[int, int]]
    profiles: list[MigProfile]
    instances: list[MigInstance]
    code: int = 0


class MigDone(msgspec.Struct, frozen=True, tag=True):
    """What came of a change: code 0, or that of the step at which it ended; what was begun was undone where it says
    so. activation is what NVML says of a mode that could not be switched on at once."""

    code: int
    step: str
    undone: bool = False
    activation: int = 0


class MemoryLimitTold(msgspec.Struct, frozen=True, tag=True):
    """What came of a limit: code 0 and what was read back, or the code of the call at which it ended. hard_bytes None:
    no limit."""

    code: int
    step: str
    hard_bytes: int | None = None
    used_bytes: int = 0


class Counted(msgspec.Struct, frozen=True, tag=True):
    """Calls by name and code."""

    calls: list[Call]


Request = (
    Open | Attach | Survey | Read | Sampling | Gpm | Health | Events | MigLook | MigCreate | MigDestroy | MigEnable
    | MemoryLimit | Count
)  # fmt: skip
Reply = (
    Opened | Failed | Attached | Surveyed | ReadDone | Sampled | GpmTold | HealthDone | EventsDone | MigTold | MigDone
    | MemoryLimitTold | Counted
)  # fmt: skip


def frame(message: Request | Reply) -> bytes:
    """One message as it crosses."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
