"""The words for faults: the same in a machine's YAML and in `hypervisor sim fault`.

A fault says where it strikes (`gpu`, `pid`, `call` with a glob), what happens (exactly one of `return`,
`value`, `delay`, `hang`, `hang_lock`, `missing`, `xid`, `lost`, `vanish`, `set`, `reset`, `renumber`, `driver`) and
when (`at`, `for`, `every`, `count`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from hypervisor.simulation.calls import why_no_call
from hypervisor.simulation.document import Section, Value, document_of_pairs
from hypervisor.simulation.spec import MAX_GPUS, MAX_LINKS, FaultSpec

# enum sim_fault_action
ACTIONS: Mapping[str, int] = {
    "return": 1,
    "zero": 2,
    "value": 3,
    "sentinel": 4,
    "stale": 5,
    "garbage": 6,
    "delay": 7,
    "hang": 8,
    "hang_lock": 9,
    "missing": 10,
    "xid": 11,
    "lost": 12,
    "vanish": 13,
    "set": 14,
    "reset": 15,
    "renumber": 16,
    "driver": 17,
}
ACTION_NAMES: Mapping[int, str] = {number: name for name, number in ACTIONS.items()}
_PLACES_AND_TIMES = ("gpu", "pid", "call", "symbol", "at", "for", "every", "count")
_WORDS_OF_RETURN = ("zero", "sentinel", "stale", "garbage")
_DEVICE_ACTIONS = frozenset(ACTIONS[name] for name in ("xid", "lost", "vanish", "set", "reset", "renumber"))
_EFFECTS = (
    *("return", "value", "delay", "hang", "hang_lock", "missing"),
    *("xid", "lost", "vanish", "set", "reset", "renumber", "driver"),
)
# What `set` may name; the simulator's table says the same, and a test compares the two.
READINGS = (
    "throttle_reasons",
    *(f"ecc_{kind}_{counter}" for counter in ("volatile", "aggregate") for kind in ("corrected", "uncorrected")),
    *("remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed"),
    *("sram_corrected_volatile", "sram_uncorrected_volatile", "sram_corrected_aggregate", "sram_uncorrected_aggregate"),
    "sram_threshold_exceeded",
    *("retired_single", "retired_double", "retire_pending", "unrepairable", "recovery_action"),
    *("fabric_state", "fabric_status", "fabric_health", "pcie_gen", "pcie_width", "pcie_replays"),
    *("temperature_idle_c", "temperature_busy_c", "temperature_memory_c"),
    *("power_idle_mw", "power_busy_mw", "power_limit_mw"),
    *("performance_state", "persistence_mode", "compute_mode", "fan_percent"),
    *("ecc_mode", "ecc_pending_mode", "mig_pending_mode", "sample_ahead_ms"),
)
LINK_READINGS = ("active", "replay_errors", "recovery_errors", "crc_errors", "speed_mbps")
_MOST = 2**63 - 1


def _hang(value: Value) -> int:
    return 0 if value.text() == "forever" else value.duration()


def _effect(section: Section) -> FaultSpec:
    """What happens; `xid` and `lost` together are one loss with its Xid."""
    given = [name for name in _EFFECTS if section.get(name) is not None]
    if given == ["xid", "lost"]:
        given = ["lost"]
    if given == ["value", "set"]:
        given = ["set"]
    if len(given) != 1:
        names = ", ".join(_EFFECTS)
        raise section.value.error(f"must have exactly one of {names} (xid and lost go together, and value with set)")
    name = given[0]
    fault = _VALUES.get(name, _only_true)(section.need(name), section)
    return replace(fault, action=fault.action or ACTIONS[name])


def _returned(value: Value, _: Section) -> FaultSpec:
    word = value.text()
    if word in _WORDS_OF_RETURN:
        return FaultSpec(action=ACTIONS[word])
    if not word.lstrip("-").isdecimal():
        raise value.error(f"must be a result code or one of {', '.join(_WORDS_OF_RETURN)}, not {value.shown()}")
    return FaultSpec(action=ACTIONS["return"], value=value.integer(0, 2**31 - 1))


def _only_true(value: Value, section: Section) -> FaultSpec:
    if not value.truth():
        raise value.error("can only be true; leave it out otherwise")
    xid = section.get("xid")
    return FaultSpec(action=0, value=xid.integer(0, 1000) if xid is not None else 0)


def _reading(value: Value) -> str:
    name = value.text()
    link = re.fullmatch(r"link([0-9]{1,2})\.(\w+)", name)
    if name in READINGS or (link and int(link[1]) < MAX_LINKS and link[2] in LINK_READINGS):
        return name
    links = ", ".join(f"link<n>.{reading}" for reading in LINK_READINGS)
    raise value.error(f"must be one of {', '.join(READINGS)}, {links}, not {value.shown()}")


def _version(value: Value) -> str:
    version = value.text()
    if not re.fullmatch(r"[0-9]{3}(\.[0-9]{1,4}){1,3}", version):
        raise value.error(f'must be a driver\'s version, like "590.44.01", not {value.shown()}')
    return version


# What each effect's value says; the others are only switched on.
_VALUES: Mapping[str, Callable[[Value, Section], FaultSpec]] = {
    "return": _returned,
    "value": lambda value, _: FaultSpec(action=0, value=value.integer(-_MOST - 1, _MOST)),
    "delay": lambda value, _: FaultSpec(action=0, value=value.duration()),
    "hang": lambda value, _: FaultSpec(action=0, value=_hang(value)),
    "hang_lock": lambda value, _: FaultSpec(action=0, value=_hang(value)),
    "xid": lambda value, _: FaultSpec(action=0, value=value.integer(1, 1000)),
    "set": lambda value, section: FaultSpec(
        action=0, call=_reading(value), value=section.need("value").integer(0, 2**32 - 1)
    ),
    "renumber": lambda value, _: FaultSpec(action=0, value=value.integer(0, MAX_GPUS - 1)),
    "driver": lambda value, _: FaultSpec(action=0, call=_version(value)),
}


def _check_device_fault(fault: FaultSpec, section: Section, gpu_count: int, link_counts: Sequence[int]) -> None:
    """Faults of a GPU or of the driver strike once and no call."""
    name = ACTION_NAMES[fault.action]
    where = "the whole machine" if fault.action == ACTIONS["driver"] else "a GPU"
    for word in ("every", "count", "pid", "call", "symbol"):
        if (alien := section.get(word)) is not None:
            raise alien.error(f"'{name}' happens to {where}, once, and not to a call; leave this out")
    if fault.action == ACTIONS["driver"]:
        if (gpu := section.get("gpu")) is not None:
            raise gpu.error("'driver' happens to the whole machine; leave this out")
    elif fault.gpu < 0:
        raise section.value.error(f"'{name}' needs 'gpu': which one")
    if fault.action == ACTIONS["renumber"] and fault.value >= gpu_count:
        raise section.need("renumber").error(f"must be from 0 to {gpu_count - 1}, not {fault.value}")
    link = re.match(r"link([0-9]+)\.", fault.call) if fault.action == ACTIONS["set"] and link_counts else None
    if link is not None and int(link[1]) >= link_counts[fault.gpu]:
        raise section.need("set").error(f"GPU {fault.gpu} has {link_counts[fault.gpu]} NVLinks, counted from 0")


def parse_fault(
    value: Value, gpu_count: int, link_counts: Sequence[int] = (), calls: Collection[str] = ()
) -> FaultSpec:
    """Read one fault of a machine with so many GPUs, with so many NVLinks each and these calls where that is known.

    Raises:
        DocumentError: it says what nothing can do.
    """
    with value.section(*_EFFECTS, *_PLACES_AND_TIMES) as section:
        fault = _effect(section)
        call, symbol = section.get("call"), section.get("symbol")
        if call is not None and symbol is not None:
            raise section.key_error("symbol", "means the same as 'call'; keep one of them")
        named = call or symbol
        gpu, pid = section.get("gpu"), section.get("pid")
        at, lasts = section.get("at"), section.get("for")
        every, count = section.get("every"), section.get("count")
        at_ns = at.duration() if at else 0
        fault = replace(
            fault,
            gpu=gpu.integer(0, gpu_count - 1) if gpu else -1,
            pid=pid.integer(1, 2**22) if pid else 0,
            at_ns=at_ns,
            until_ns=at_ns + lasts.duration(least=1) if lasts else 0,
            every=every.integer(1, _MOST) if every else 0,
            count=count.integer(1, _MOST) if count else 0,
        )
        if fault.action in _DEVICE_ACTIONS or fault.action == ACTIONS["driver"]:
            _check_device_fault(fault, section, gpu_count, link_counts)
            return fault
        if named is None:
            raise value.error(f"'{ACTION_NAMES[fault.action]}' needs 'call': the function's name, globs allowed")
        name = named.text()
        if not 0 < len(name.encode()) < 80:
            raise named.error("must be a function's name of 1 to 79 bytes")
        if calls and (why := why_no_call(name, calls)):
            raise named.error(why)
        return replace(fault, call=name)


def parse_fault_text(
    text: str, gpu_count: int, link_counts: Sequence[int] = (), calls: Collection[str] = ()
) -> FaultSpec:
    """Read a fault as `hypervisor sim fault` takes it: `gpu=3,xid=79,lost`.

    Raises:
        DocumentError: as for parse_fault.
    """
    pairs = []
    for part in text.split(",") if text.strip() else []:
        key, equals, value = part.strip().partition("=")
        pairs.append((key.strip(), value.strip() if equals else "true"))
    return parse_fault(document_of_pairs(pairs, f"fault '{text}'"), gpu_count, link_counts, calls)
