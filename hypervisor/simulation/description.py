"""The YAML of a machine, read and checked as a whole: text in, MachineSpec or one DocumentError out."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hypervisor.simulation.calls import known_calls
from hypervisor.simulation.document import Section, Value, parse_document
from hypervisor.simulation.faults import parse_fault
from hypervisor.simulation.mig import parse_instances
from hypervisor.simulation.models import load_model, model_names
from hypervisor.simulation.spec import (
    AFFINITY_WORDS,
    MAX_FAULTS,
    MAX_GPUS,
    MAX_LINKS,
    MAX_RULES,
    GpuSpec,
    KernelRule,
    MachineSpec,
    MigInstanceSpec,
    ModelSpec,
    SystemSpec,
)
from hypervisor.simulation.topology import LEVELS, LinkPlan, links_of, plan_topology

_GPU_NAMESPACE = uuid.UUID("6f1c9be4-7f0e-4d8e-9f53-2f0c8a7d4b11")  # ours, drawn once
_CLOCK_MODES: Mapping[str, int] = {"real": 0, "virtual": 1}
_VISIBILITIES: Mapping[str, int] = {"all": 0, "same-pid-namespace": 1}
_COMPUTE_MODES: Mapping[str, int] = {"default": 0, "prohibited": 2, "exclusive-process": 3}
_SWITCH_LEVELS: Mapping[str, int] = {"pix": LEVELS["pix"], "pxb": LEVELS["pxb"]}
_MOST_PROFILE_BYTES = 63
_ROOT_KEYS = (
    *("version", "driver", "clock", "host", "gpus", "nvlink", "pcie", "mig"),
    *("kernels", "sampling", "scheduling", "processes", "faults"),
)
_GPU_KEYS = ("count", "profile", "numa", "bus", "mps", "compute_mode", "persistence", "memory", "context")
_LINK_KEYS = ("topology", "links_per_gpu", "version", "switches", "inactive")
_FABRIC_COMPLETED = 3
_HOPPER = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Host:
    numa_nodes: int
    cpus_per_node: int

    def cpu_affinity(self, node: int) -> tuple[int, ...]:
        bits = ((1 << self.cpus_per_node) - 1) << (node * self.cpus_per_node)
        return tuple(bits >> (64 * word) & (2**64 - 1) for word in range(AFFINITY_WORDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A GPU, its model, and where in the document it came from."""

    gpu: GpuSpec
    model: ModelSpec
    model_name: str
    instances: tuple[MigInstanceSpec, ...] = ()


def parse_machine(text: str, file: str, *, profile: str, seed: str | None = None) -> MachineSpec:
    """Read a machine from its YAML.

    Args:
        text: the YAML.
        file: its name, for messages.
        profile: the name that the machine reports.
        seed: what UUIDs and serial numbers are made from; the profile's name unless given. Two machines
            that must be told apart need two seeds.

    Raises:
        DocumentError: a key, type, unit or figure is wrong, or describes what can't be.
    """
    with parse_document(text, file).section(*_ROOT_KEYS) as root:
        root.need("version").integer(1, 1)
        system = _system(root, profile)
        host = _host(root)
        places = _gpus(root.need("gpus"), host, seed or profile)
        places = _with_modes(root.get("mig"), places)
        places = _with_links(root.get("nvlink"), places)
        gpus = tuple(place.gpu for place in places)
        topology_of = _pcie(root.get("pcie"), len(gpus))
        faults = root.get("faults")
        found = faults.items() if faults else []
        if faults and len(found) > MAX_FAULTS:
            raise faults.error(f"has {len(found)} entries; at most {MAX_FAULTS} are allowed")
        return MachineSpec(
            system=system,
            gpus=gpus,
            topology=plan_topology(
                gpus,
                switches=topology_of.switches,
                switch_level=topology_of.switch_level,
                pairs=topology_of.pairs,
                pcie_peer_access=topology_of.peer_access,
            ),
            rules=_rules(root.get("kernels")),
            faults=tuple(
                parse_fault(fault, len(gpus), [gpu.link_count for gpu in gpus], known_calls()) for fault in found
            ),
            instances=tuple(place.instances for place in places),
        )


def _bounded_text(value: Value, most_bytes: int) -> str:
    text = value.text()
    if not 0 < len(text.encode()) <= most_bytes:
        raise value.error(f"must have 1 to {most_bytes} bytes, not {len(text.encode())}")
    return text


def _system(root: Section, profile: str) -> SystemSpec:
    with root.need("driver").section("version", "cuda") as driver:
        version = _bounded_text(driver.need("version"), 60)
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", version):
            raise driver.need("version").error(f'must be numbers and dots, like "580.65.06", not {version!r}')
        cuda = driver.need("cuda").integer(9000, 99_990)
    mode, scale = 0, 1.0
    if (clock_value := root.get("clock")) is not None:
        with clock_value.section("mode", "scale") as clock:
            mode = chosen.choice(_CLOCK_MODES) if (chosen := clock.get("mode")) else 0
            scale = given.number(0.001, 1000) if (given := clock.get("scale")) else 1.0
    window_ns, slice_ns, latency_ns, granule = 167_000_000, 2_000_000, 0, 512
    if (sampling_value := root.get("sampling")) is not None:
        with sampling_value.section("window_ms") as sampling:
            window_ns = sampling.need("window_ms").integer(10, 1000) * 1_000_000
    if (scheduling_value := root.get("scheduling")) is not None:
        with scheduling_value.section("slice", "launch_latency") as scheduling:
            slice_ns = value.duration() if (value := scheduling.get("slice")) else slice_ns
            latency_ns = value.duration() if (value := scheduling.get("launch_latency")) else latency_ns
            if not 10_000 <= slice_ns <= 1_000_000_000:
                raise scheduling.need("slice").error("must be from 10us to 1s")
            if latency_ns > 1_000_000_000:
                raise scheduling.need("launch_latency").error("must be at most 1s")
    visibility = 0
    if (processes_value := root.get("processes")) is not None:
        with processes_value.section("visible") as processes:
            visibility = processes.need("visible").choice(_VISIBILITIES)
    return SystemSpec(
        profile=profile.encode()[:_MOST_PROFILE_BYTES].decode(errors="ignore"),
        driver_version=version,
        nvml_version=f"{cuda // 1000}.{version}",
        cuda_version=cuda,
        clock_mode=mode,
        clock_scale_ppm=round(scale * 1_000_000),
        window_ns=window_ns,
        slice_ns=slice_ns,
        launch_latency_ns=latency_ns,
        allocation_granule=granule,
        process_visibility=visibility,
    )


def _host(root: Section) -> _Host:
    value = root.get("host")
    if value is None:
        return _Host(numa_nodes=1, cpus_per_node=8)
    with value.section("numa_nodes", "cpus_per_node") as section:
        nodes = given.integer(1, 64) if (given := section.get("numa_nodes")) else 1
        cpus = given.integer(1, 1024) if (given := section.get("cpus_per_node")) else 8
    if nodes * cpus > AFFINITY_WORDS * 64:
        raise value.error(f"{nodes} nodes of {cpus} CPUs are more than {AFFINITY_WORDS * 64} CPUs")
    return _Host(numa_nodes=nodes, cpus_per_node=cpus)


def _numa_nodes(value: Value | None, count: int, host: _Host) -> list[int]:
    if value is None:
        return [0] * count
    if not value.is_list:
        return [value.integer(0, host.numa_nodes - 1)] * count
    nodes = [item.integer(0, host.numa_nodes - 1) for item in value.items()]
    if len(nodes) != count:
        raise value.error(f"has {len(nodes)} entries for {count} GPUs; give one for each, or one number for all")
    return nodes


def _buses(value: Value | None, count: int, taken: set[int]) -> list[int]:
    if value is None:
        free = [bus for bus in range(0x10, 0x100) if bus not in taken]
        buses = free[:count]
    else:
        buses = []
        for item in value.items():
            text = item.text()
            try:
                bus = int(text, 16)
            except ValueError:
                raise item.error(f'must be a PCI bus in hexadecimal, like "3a", not {text!r}') from None
            if not 0 <= bus <= 0xFF:
                raise item.error(f'must be from "00" to "ff", not {text!r}')
            if bus in taken or bus in buses:
                raise item.error(f'bus "{bus:02x}" has a GPU already; give each GPU its own')
            buses.append(bus)
        if len(buses) != count:
            raise value.error(f"has {len(buses)} entries for {count} GPUs; give one for each")
    taken.update(buses)
    return buses


def _gpus(value: Value, host: _Host, seed: str) -> list[_Place]:
    places: list[_Place] = []
    taken: set[int] = set()
    for group in value.items():
        with group.section(*_GPU_KEYS) as section:
            count = section.need("count").integer(1, MAX_GPUS)
            if len(places) + count > MAX_GPUS:
                raise section.need("count").error(f"makes more than {MAX_GPUS} GPUs in all; a machine has at most that")
            profile = section.need("profile")
            name = profile.choice({known: known for known in model_names()})
            model = load_model(name)
            gpu = model.gpu
            if (memory := section.get("memory")) is not None:
                least = gpu.memory_reserved_bytes + (64 << 20)
                gpu = replace(gpu, memory_total_bytes=memory.size(least, 1 << 40))
            if (context := section.get("context")) is not None:
                gpu = replace(gpu, context_bytes=context.size(0, gpu.memory_total_bytes - gpu.memory_reserved_bytes))
            if (mode := section.get("compute_mode")) is not None:
                gpu = replace(gpu, compute_mode=mode.choice(_COMPUTE_MODES))
            if (persistence := section.get("persistence")) is not None:
                gpu = replace(gpu, persistence_mode=int(persistence.truth()))
            if (mps := section.get("mps")) is not None:
                gpu = replace(gpu, mps=int(mps.truth()))
            nodes = _numa_nodes(section.get("numa"), count, host)
            buses = _buses(section.get("bus"), count, taken)
        for node, bus in zip(nodes, buses, strict=True):
            index = len(places)
            placed = replace(
                gpu,
                uuid=f"GPU-{uuid.uuid5(_GPU_NAMESPACE, f'{seed}/{index}')}",
                serial=_serial(seed, index) if model.has_serial else "",
                minor=index,
                module_id=index + 1,
                pci_bus=bus,
                numa_node=node,
                cpu_affinity=host.cpu_affinity(node),
                memory_affinity=1 << node,
            )
            places.append(_Place(gpu=placed, model=model, model_name=name))
    if not places:
        raise value.error("is empty; a machine has at least one GPU")
    return places


def _serial(seed: str, index: int) -> str:
    """Thirteen digits, as on NVIDIA's boards."""
    digest = hashlib.sha256(f"{seed}/{index}".encode()).digest()
    return f"165{int.from_bytes(digest[:6], 'big') % 10**10:010d}"


def _with_modes(value: Value | None, places: list[_Place]) -> list[_Place]:
    """`mig: {gpu0: {mode: on, instances: [3g.40gb, …]}}`."""
    if value is None:
        return places
    changed = list(places)
    by_name = {f"gpu{index}": index for index in range(len(places))}
    for name, entry in value.section():
        if name not in by_name:
            raise entry.error(f"must be one of gpu0 to gpu{len(places) - 1}")
        place = places[by_name[name]]
        with entry.section("mode", "instances") as section:
            mode = int(section.need("mode").truth())
            if mode and not place.gpu.mig_supported:
                raise section.need("mode").error(f"{place.gpu.name} has no MIG")
            instances = section.get("instances")
            if instances is not None and not mode:
                raise instances.error("needs 'mode: on'")
            laid = parse_instances(instances, place.gpu) if instances is not None else ()
        gpu = replace(place.gpu, mig_mode=mode, mig_pending_mode=mode)
        changed[by_name[name]] = replace(place, gpu=gpu, instances=laid)
    return changed


def _link_plan(value: Value, places: list[_Place]) -> LinkPlan | None:
    count = len(places)
    with value.section(*_LINK_KEYS) as section:
        topology = section.need("topology").choice({word: word for word in ("none", "nvswitch", "pairs", "mesh")})
        if topology == "none":
            return None
        per_gpu = section.need("links_per_gpu")
        links = per_gpu.integer(1, MAX_LINKS)
        version = given.integer(1, 6) if (given := section.get("version")) else None
        for place in places:
            if place.model.gpu.link_count == 0:
                raise value.error(f"{place.model_name} has no NVLink; use topology none or another model")
            if links > place.model.gpu.link_count:
                raise per_gpu.error(f"{place.model_name} has {place.model.gpu.link_count} links, not {links}")
            if version is not None and version != place.model.link_generation:
                raise section.need("version").error(
                    f"{place.model_name} has NVLink {place.model.link_generation}, not {version}"
                )
        mixed = next(
            (place for place in places if place.model.link_generation != places[0].model.link_generation), None
        )
        if mixed is not None:
            raise value.error(
                f"{places[0].model_name} has NVLink {places[0].model.link_generation} and {mixed.model_name} NVLink "
                f"{mixed.model.link_generation}; only GPUs of one generation can be linked"
            )
        switches = 0
        if topology == "nvswitch":
            switches = given.integer(1, 64) if (given := section.get("switches")) else 1
            if switches > links:
                raise section.need("switches").error(f"a GPU with {links} links reaches at most {links} switches")
        if topology == "pairs" and count % 2:
            raise section.need("topology").error(f"pairs need an even number of GPUs, not {count}")
        if topology == "mesh" and (count < 2 or links % (count - 1)):
            raise per_gpu.error(f"must be a multiple of {max(count - 1, 1)}, the other GPUs of the mesh, not {links}")
        inactive: set[tuple[int, int]] = set()
        for entry in given.items() if (given := section.get("inactive")) else []:
            with entry.section("gpu", "links") as down:
                gpu = down.need("gpu").integer(0, count - 1)
                inactive.update((gpu, item.integer(0, links - 1)) for item in down.need("links").items())
    return LinkPlan(topology=topology, links_per_gpu=links, switches=switches, inactive=frozenset(inactive))


def _with_links(value: Value | None, places: list[_Place]) -> list[_Place]:
    plan = _link_plan(value, places) if value is not None else None
    if plan is None:
        plan = LinkPlan(topology="nvswitch", links_per_gpu=0)  # links are there and all are down
    gpus = [place.gpu for place in places]
    done = []
    for index, place in enumerate(places):
        gpu = replace(place.gpu, links=links_of(plan, index, gpus, place.model))
        if plan.switches and gpu.architecture >= _HOPPER:
            gpu = replace(gpu, fabric_state=_FABRIC_COMPLETED)
        done.append(replace(place, gpu=gpu))
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pcie:
    switches: tuple[tuple[int, ...], ...] = ()
    switch_level: int = LEVELS["pix"]
    pairs: Mapping[tuple[int, int], int]
    peer_access: bool = True


def _pcie(value: Value | None, count: int) -> _Pcie:
    if value is None:
        return _Pcie(pairs={})
    with value.section("switches", "switch_level", "pairs", "p2p") as section:
        switches: list[tuple[int, ...]] = []
        seen: set[int] = set()
        for group in given.items() if (given := section.get("switches")) else []:
            members = []
            for item in group.items():
                gpu = item.integer(0, count - 1)
                if gpu in seen:
                    raise item.error(f"GPU {gpu} is behind a switch already")
                seen.add(gpu)
                members.append(gpu)
            switches.append(tuple(members))
        pairs: dict[tuple[int, int], int] = {}
        named = section.get("pairs")
        if named is not None and not named.is_list:
            named.choice({"auto": None})
            named = None
        for pair in named.items() if named is not None else []:
            with pair.section("gpus", "level") as entry:
                members_value = entry.need("gpus")
                ends = [item.integer(0, count - 1) for item in members_value.items()]
                if len(ends) != 2 or ends[0] == ends[1]:
                    raise members_value.error("must name two different GPUs")
                if (min(ends), max(ends)) in pairs:
                    raise members_value.error(f"the level between GPUs {min(ends)} and {max(ends)} is given already")
                pairs[min(ends), max(ends)] = entry.need("level").choice(LEVELS)
        level = given.choice(_SWITCH_LEVELS) if (given := section.get("switch_level")) else LEVELS["pix"]
        peer_access = given.truth() if (given := section.get("p2p")) else True
    return _Pcie(switches=tuple(switches), switch_level=level, pairs=pairs, peer_access=peer_access)


def _rules(value: Value | None) -> tuple[KernelRule, ...]:
    if value is None:
        return ()
    entries = value.items()
    if len(entries) > MAX_RULES:
        raise value.error(f"has {len(entries)} entries; at most {MAX_RULES} are allowed")
    rules = []
    for entry in entries:
        with entry.section("match", "ns", "ns_per_block") as section:
            match = _bounded_text(section.need("match"), 95)
            fixed, per_block = section.get("ns"), section.get("ns_per_block")
            if fixed is None and per_block is None:
                raise entry.error("must say how long: ns, ns_per_block, or both")
            rules.append(
                KernelRule(
                    match=match,
                    ns=fixed.integer(0, 10**12) if fixed else 0,
                    ns_per_block=per_block.integer(0, 10**9) if per_block else 0,
                )
            )
    return tuple(rules)
