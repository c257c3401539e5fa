"""GPU models: one YAML data sheet each, in the folder models/, with public figures."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from hypervisor.simulation.document import Section, Value, parse_document
from hypervisor.simulation.mig import parse_table
from hypervisor.simulation.spec import MAX_LINKS, NONE, GpuSpec, ModelSpec

_MIB = 1 << 20
_GIB = 1 << 30

# NVML's enumerations.
BRANDS: Mapping[str, int] = {
    "quadro": 1,
    "tesla": 2,
    "geforce": 5,
    "titan": 6,
    "nvidia-rtx": 13,
    "nvidia": 14,
    "geforce-rtx": 15,
}
ARCHITECTURES: Mapping[str, int] = {
    "pascal": 4,
    "volta": 5,
    "turing": 6,
    "ampere": 7,
    "ada": 8,
    "hopper": 9,
    "blackwell": 10,
}
_CLOCK_DOMAINS = ("graphics", "sm", "memory", "video")
_THRESHOLDS = ("shutdown", "slowdown", "memory_max", "gpu_max")
_THRESHOLD_COUNT = 9


def model_names() -> list[str]:
    """The names of the models that come with the product."""
    folder = resources.files("hypervisor.simulation") / "models"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_model(name: str) -> ModelSpec:
    """Read the data sheet of a model.

    Raises:
        KeyError: there is none of this name.
        DocumentError: the data sheet is wrong.
    """
    if name not in model_names():
        raise KeyError(name)
    text = (resources.files("hypervisor.simulation") / "models" / f"{name}.yaml").read_text(encoding="utf-8")
    return parse_model(text, f"models/{name}.yaml")


def _optional(value: Value | None, least: int, most: int) -> int:
    """A reading that a model may not have: `none` or left out."""
    if value is None or (not value.is_list and not value.is_mapping and value.text() == "none"):
        return NONE
    return value.integer(least, most)


def _clocks(section: Section, name: str) -> tuple[int, ...]:
    with section.need(name).section() as clocks:
        return tuple(clocks.need(domain).integer(0, 20_000) for domain in _CLOCK_DOMAINS)


def _capability(value: Value) -> tuple[int, int]:
    major, _, minor = value.text().partition(".")
    if not (major.isascii() and major.isdecimal() and minor.isascii() and minor.isdecimal()):
        raise value.error(f'must be like "9.0", not {value.shown()}')
    return int(major), int(minor)


def _milliwatts(section: Section, key: str) -> int:
    return section.need(key).integer(1, 5_000) * 1000


def parse_model(text: str, file: str) -> ModelSpec:
    """Read a data sheet from its text.

    Raises:
        DocumentError: a key, type or figure is wrong.
    """
    with parse_document(text, file).section() as root:
        major, minor = _capability(root.need("compute_capability"))
        threshold_c = [NONE] * _THRESHOLD_COUNT
        with (
            root.need("pci").section() as pci,
            root.need("sms").section() as sms,
            root.need("memory").section() as memory,
            root.need("copies").section() as copies,
            root.need("power_w").section() as power,
            root.need("temperature_c").section() as heat,
        ):
            sm_count = sms.need("count").integer(1, 1024)
            total = memory.need("total").size(64 * _MIB, 1024 * _GIB)
            limit_mw = _milliwatts(power, "limit")
            for at, name in enumerate(_THRESHOLDS):
                threshold_c[at] = _optional(heat.get(name), 1, 150)
            clock_max = _clocks(root, "clock_max_mhz")
            nvlink = root.get("nvlink")
            links = generation = speed = switch = 0
            if nvlink is not None:
                with nvlink.section() as link:
                    links = link.need("links").integer(1, MAX_LINKS)
                    generation = link.need("version").integer(1, 6)
                    speed = link.need("speed_mbps").integer(1, 1_000_000)
                    switch = link.need("switch_pci_device_id").integer(0, 0xFFFFFFFF)
            ecc = int(root.need("ecc").truth())
            mig = parse_table(root.need("mig"))
            gpu = GpuSpec(
                name=root.need("name").text(),
                board_part_number=part.text() if (part := root.get("board_part_number")) else "",
                vbios_version=root.need("vbios_version").text(),
                brand=root.need("brand").choice(BRANDS),
                architecture=root.need("architecture").choice(ARCHITECTURES),
                pci_device_id=pci.need("device_id").integer(1, 0xFFFF) << 16 | 0x10DE,
                pci_subsystem_id=pci.need("subsystem_id").integer(0, 0xFFFFFFFF),
                cc_major=major,
                cc_minor=minor,
                sm_count=sm_count,
                cuda_cores=sm_count * sms.need("cores").integer(1, 1024),
                max_threads_per_sm=sms.need("threads").integer(32, 4096),
                max_blocks_per_sm=sms.need("blocks").integer(1, 64),
                registers_per_sm=sms.need("registers").integer(1, 1 << 20),
                shared_bytes_per_sm=sms.need("shared").size(1, _MIB),
                shared_bytes_per_block_optin=sms.need("shared_block").size(1, _MIB),
                memory_bus_bits=memory.need("bus_bits").integer(32, 16_384),
                l2_bytes=memory.need("l2").size(1, _GIB),
                memory_total_bytes=total,
                memory_reserved_bytes=memory.need("reserved").size(0, total - 1),
                bar1_total_bytes=memory.need("bar1").size(1, 1024 * _GIB),
                context_bytes=memory.need("context").size(0, total - 1),
                host_to_device_bytes_per_s=copies.need("host_to_device").size(1, 10**15),
                device_to_host_bytes_per_s=copies.need("device_to_host").size(1, 10**15),
                device_to_device_bytes_per_s=copies.need("device_to_device").size(1, 10**15),
                clock_mhz=clock_max,
                clock_max_mhz=clock_max,
                clock_application_mhz=_clocks(root, "clock_application_mhz"),
                power_idle_mw=_milliwatts(power, "idle"),
                power_busy_mw=_milliwatts(power, "busy"),
                power_limit_mw=limit_mw,
                power_limit_min_mw=_milliwatts(power, "least_limit"),
                power_limit_max_mw=_milliwatts(power, "most_limit"),
                power_limit_default_mw=limit_mw,
                temperature_idle_c=heat.need("idle").integer(1, 150),
                temperature_busy_c=heat.need("busy").integer(1, 150),
                temperature_memory_c=_optional(heat.get("memory"), 1, 150),
                temperature_threshold_c=tuple(threshold_c),
                fan_percent=_optional(root.get("fan_percent"), 0, 100),
                pcie_gen=(pcie_generation := pci.need("generation").integer(1, 6)),
                pcie_gen_max=pcie_generation,
                pcie_width=(width := pci.need("width").integer(1, 16)),
                pcie_width_max=width,
                ecc_supported=ecc,
                ecc_mode=ecc,
                ecc_pending_mode=ecc,
                mig_supported=int(bool(mig.profiles)),
                mig_memory_slices=mig.memory_slices,
                mig_profile_count=len(mig.profiles),
                mig_profiles=mig.profiles,
                link_count=links,
            )
            return ModelSpec(
                gpu=gpu,
                has_serial=root.need("serial").truth(),
                link_generation=generation,
                link_speed_mbps=speed,
                switch_pci_device_id=switch,
            )
