"""The words for faults: the same in a machine's YAML and in `hypervisor sim fault`.

A fault says where it strikes (`gpu`, `pid`, `call` with a glob), what happens (exactly one of `return`,
`value`, `delay`, `hang`, `hang_lock`, `missing`, `xid`, `lost`, `vanish`) and when (`at`, `for`, `every`,
`count`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypervisor.simulation.document import Section, Value, document_of_pairs
from hypervisor.simulation.spec import FaultSpec

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
}
ACTION_NAMES: Mapping[int, str] = {number: name for name, number in ACTIONS.items()}
_WORDS_OF_RETURN = ("zero", "sentinel", "stale", "garbage")
_DEVICE_ACTIONS = frozenset({ACTIONS["xid"], ACTIONS["lost"], ACTIONS["vanish"]})
_EFFECTS = ("return", "value", "delay", "hang", "hang_lock", "missing", "xid", "lost", "vanish")
_MOST = 2**63 - 1


def _hang(value: Value) -> int:
    return 0 if value.text() == "forever" else value.duration()


def _effect(section: Section) -> FaultSpec:
    """What happens; `xid` and `lost` together are one loss with its Xid."""
    given = [name for name in _EFFECTS if section.get(name) is not None]
    if given == ["xid", "lost"]:
        given = ["lost"]
    if len(given) != 1:
        names = ", ".join(_EFFECTS)
        raise section.value.error(f"must have exactly one of {names} (xid and lost may go together)")
    name = given[0]
    value = section.need(name)
    if name == "return":
        word = value.text()
        if word in _WORDS_OF_RETURN:
            return FaultSpec(action=ACTIONS[word])
        if not word.lstrip("-").isdecimal():
            raise value.error(f"must be a result code or one of {', '.join(_WORDS_OF_RETURN)}, not {value.shown()}")
        return FaultSpec(action=ACTIONS[name], value=value.integer(0, 2**31 - 1))
    if name == "value":
        return FaultSpec(action=ACTIONS[name], value=value.integer(-_MOST - 1, _MOST))
    if name == "delay":
        return FaultSpec(action=ACTIONS[name], value=value.duration())
    if name in {"hang", "hang_lock"}:
        return FaultSpec(action=ACTIONS[name], value=_hang(value))
    if name == "xid":
        return FaultSpec(action=ACTIONS[name], value=value.integer(1, 1000))
    if not value.truth():
        raise value.error("can only be true; leave it out otherwise")
    xid = section.get("xid")
    return FaultSpec(action=ACTIONS[name], value=xid.integer(0, 1000) if xid is not None and name == "lost" else 0)


def parse_fault(value: Value, gpu_count: int) -> FaultSpec:
    """Read one fault of a machine with so many GPUs.

    Raises:
        DocumentError: it says what nothing can do.
    """
    with value.section() as section:
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
            until_ns=at_ns + lasts.duration() if lasts else 0,
            every=every.integer(1, _MOST) if every else 0,
            count=count.integer(1, _MOST) if count else 0,
        )
        if fault.action in _DEVICE_ACTIONS:
            if gpu is None:
                raise value.error(f"'{ACTION_NAMES[fault.action]}' needs 'gpu': which one")
            if named is not None:
                raise named.error(f"'{ACTION_NAMES[fault.action]}' happens to a GPU, not to a call; leave this out")
            return fault
        if named is None:
            raise value.error(f"'{ACTION_NAMES[fault.action]}' needs 'call': the function's name, globs allowed")
        name = named.text()
        if not 0 < len(name.encode()) < 80:
            raise named.error("must be a function's name of 1 to 79 bytes")
        return replace(fault, call=name)


def parse_fault_text(text: str, gpu_count: int) -> FaultSpec:
    """Read a fault as `hypervisor sim fault` takes it: `gpu=3,xid=79,lost`.

    Raises:
        DocumentError: as for parse_fault.
    """
    pairs = []
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        pairs.append((key.strip(), value.strip() if equals else "true"))
    return parse_fault(document_of_pairs(pairs, f"fault '{text}'"), gpu_count)
