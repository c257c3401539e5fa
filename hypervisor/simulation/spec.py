"""What a simulated machine is made of: frozen, complete, checked.

Fields that end up in the machine file carry the names of `simulator/include/sim_machine.h`, where their
meaning and units are; the machine is written from them by name.
"""

from __future__ import annotations

from dataclasses import dataclass

# The figures that bound a machine; a test compares them with the header.
MAX_GPUS = 16
MAX_LINKS = 18
MAX_FAULTS = 128
MAX_RULES = 64
MAX_MIG_PROFILES = 10
MAX_INSTANCES = 8
AFFINITY_WORDS = 16
NONE = 0xFFFFFFFF  # "reading not available"
P2P_CAPABILITIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """One NVLink of one GPU."""

    present: int
    active: int
    version: int
    capabilities: int
    remote_type: int
    remote_link: int
    speed_mbps: int
    remote_pci_device_id: int
    remote_bus_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfileSpec:
    """A way to cut a GPU instance out of a GPU of a model. `starts` has bit n set where one may begin at slice n."""

    name: str
    id: int
    kind: int
    compute_slices: int
    memory_slices: int
    starts: int
    most: int
    sm_count: int
    copy_engines: int
    decoders: int
    encoders: int
    jpegs: int
    optical_flows: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstanceSpec:
    """A GPU instance that a machine has from the beginning: its profile's place in the model's table, its first
    memory slice, and the compute slices of each of its compute instances.
    """

    profile: int
    start: int
    compute: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU. A model's data sheet gives all but the fields at the end, which its place in the machine gives."""

    name: str
    board_part_number: str
    vbios_version: str
    brand: int
    architecture: int
    pci_device_id: int
    pci_subsystem_id: int
    cc_major: int
    cc_minor: int
    sm_count: int
    cuda_cores: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    shared_bytes_per_sm: int
    shared_bytes_per_block_optin: int
    memory_bus_bits: int
    l2_bytes: int
    memory_total_bytes: int
    memory_reserved_bytes: int
    bar1_total_bytes: int
    context_bytes: int
    host_to_device_bytes_per_s: int
    device_to_host_bytes_per_s: int
    device_to_device_bytes_per_s: int
    clock_mhz: tuple[int, ...]
    clock_max_mhz: tuple[int, ...]
    clock_application_mhz: tuple[int, ...]
    power_idle_mw: int
    power_busy_mw: int
    power_limit_mw: int
    power_limit_min_mw: int
    power_limit_max_mw: int
    power_limit_default_mw: int
    temperature_idle_c: int
    temperature_busy_c: int
    temperature_memory_c: int
    temperature_threshold_c: tuple[int, ...]
    fan_percent: int
    pcie_gen: int
    pcie_gen_max: int
    pcie_width: int
    pcie_width_max: int
    ecc_supported: int
    ecc_mode: int
    ecc_pending_mode: int
    mig_supported: int
    mig_memory_slices: int
    mig_profile_count: int
    mig_profiles: tuple[MigProfileSpec, ...]
    link_count: int

    persistence_mode: int = 1
    compute_mode: int = 0
    performance_state: int = 0
    mps: int = 0
    mig_mode: int = 0
    mig_pending_mode: int = 0

    uuid: str = ""
    serial: str = ""
    minor: int = 0
    module_id: int = 0
    pci_domain: int = 0
    pci_bus: int = 0
    pci_device: int = 0
    numa_node: int = -1
    cpu_affinity: tuple[int, ...] = (0,) * AFFINITY_WORDS
    memory_affinity: int = 0
    fabric_state: int = 0
    fabric_status: int = 0
    fabric_clique_id: int = 0
    fabric_cluster_uuid: bytes = bytes(16)
    links: tuple[LinkSpec, ...] = ()

    @property
    def bus_id(self) -> str:
        """The PCI address as NVML writes it: `00000000:3B:00.0`."""
        return f"{self.pci_domain:08X}:{self.pci_bus:02X}:{self.pci_device:02X}.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A GPU model: its data sheet, and what its NVLinks are."""

    gpu: GpuSpec
    has_serial: bool
    link_generation: int
    link_speed_mbps: int
    switch_pci_device_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSpec:
    """The machine apart from its GPUs."""

    profile: str
    driver_version: str
    nvml_version: str
    cuda_version: int
    clock_mode: int
    clock_scale_ppm: int
    window_ns: int
    slice_ns: int
    launch_latency_ns: int
    allocation_granule: int
    process_visibility: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRule:
    """How long kernels of a name take: ns + ns_per_block x blocks. The first rule that matches wins."""

    match: str
    ns: int
    ns_per_block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """One fault. `at_ns` and `until_ns` count from the machine's creation, or from now when added later."""

    action: int
    gpu: int = -1
    pid: int = 0
    call: str = ""
    value: int = 0
    at_ns: int = 0
    until_ns: int = 0
    every: int = 0
    count: int = 0


Matrix = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySpec:
    """How the GPUs hang together, in NVML's numbers: common ancestor, and status by capability of each pair."""

    ancestor: Matrix
    p2p_status: tuple[Matrix, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """A whole machine, ready to be written."""

    system: SystemSpec
    gpus: tuple[GpuSpec, ...]
    topology: TopologySpec
    rules: tuple[KernelRule, ...]
    faults: tuple[FaultSpec, ...]
    instances: tuple[tuple[MigInstanceSpec, ...], ...] = ()  # of each GPU; fewer entries: the others have none
