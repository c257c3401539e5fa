"""What a card says of its own health, as far as it can be true, and what that means. Pure.

A figure that the driver does not give, or that can't be true, is None: it is no sign of anything, good or bad.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from hypervisor.gpu import wire
from hypervisor.gpu.codes import words
from hypervisor.gpu.wire import Answer
from hypervisor.model.health import HealthCode, HealthState

# NVML's recovery actions.
RECOVERY_ACTIONS = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex_domain",
    "bus_reset",
    "system_reboot",
)
_ASKED = {
    "gpu_reset": "a reset of the card",
    "node_reboot": "a restart of the machine",
    "drain_p2p": "an end of all work that uses links to other cards, and a reset",
    "drain_and_reset": "an end of the work on the card, and a reset",
    "recover_imex_domain": "a recovery of the IMEX domain",
    "bus_reset": "a reset of the bus",
    "system_reboot": "a restart of the machine",
}
# NVML's states of a GPU in the fabric of its NVLinks.
FABRIC_STATES = ("not_supported", "not_started", "in_progress", "completed")
_JOINING, _JOINED = (1, 2), 3
# Conditions in the mask of the fabric's health: where the two bits of each begin; 1 is yes.
_FABRIC_ILLS = {
    0: "bandwidth is degraded",
    2: "routes are being recovered",
    4: "a route is unhealthy",
    6: "accesses time out",
}
_CONFIGURATION_SHIFT, _CONFIGURATION_GOOD = 8, (0, 1)
_CONFIGURATION = {
    2: "the system's GUID is wrong",
    3: "the chassis' serial number is wrong",
    4: "it is in no partition",
    5: "it has too few NVLinks",
    6: "its firmware does not fit the others",
    7: "its place is not valid",
    8: "the GPU's state does not allow it",
}
# NVIDIA exchanges a card with this many retired pages.
MOST_RETIRED_PAGES = 60
# More errors or rows than any card can count between two resets; beyond it the answer is garbage.
MOST_COUNT = 10**9
MOST_ROWS = 100_000
MOST_NANOSECONDS = 10 * 365 * 86_400 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFacts:
    """The state of one card. Counts of errors are since the last reset (volatile) or over its life (aggregate).

    links_up is by number of the link; an empty tuple means that there are none, or that nothing is known of them.
    throttled_seconds are (reason, seconds) since the driver was loaded, link_errors (kind, counts by link).
    """

    recovery_action: int | None = None
    rows_corrected: int | None = None
    rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_single: int | None = None
    retired_double: int | None = None
    retire_pending: bool | None = None
    ecc_corrected_volatile: int | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_corrected_aggregate: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    unrepairable: bool | None = None
    pcie_replays: int | None = None
    clock_reasons: int | None = None
    links_up: tuple[bool | None, ...] = ()
    fabric_state: int | None = None
    fabric_status: int | None = None
    fabric_health: int | None = None
    licensed: bool | None = None
    throttled_seconds: tuple[tuple[str, float], ...] = ()
    link_errors: tuple[tuple[str, tuple[int | None, ...]], ...] = ()

    @property
    def links_active(self) -> int:
        """How many NVLinks are up."""
        return sum(up is True for up in self.links_up)


NO_FACTS = HealthFacts()


@dataclass(frozen=True, slots=True)
class Sign:
    """Something that the card's state says now. key is stable; needs is the remedy in the words of wire and docs."""

    key: str
    code: HealthCode
    state: HealthState
    text: str


def facts_of(told: wire.HealthDone) -> HealthFacts:
    """What of an answer can be true."""
    rows = told.remapped_rows.value or (None, None, None, None)
    return HealthFacts(
        recovery_action=_within(told.recovery_action, len(RECOVERY_ACTIONS) - 1),
        rows_corrected=_count(rows[0], MOST_ROWS),
        rows_uncorrected=_count(rows[1], MOST_ROWS),
        remap_pending=_flag(rows[2]),
        remap_failed=_flag(rows[3]),
        retired_single=_within(told.retired_single, MOST_ROWS),
        retired_double=_within(told.retired_double, MOST_ROWS),
        retire_pending=_flag(told.retire_pending.value),
        ecc_corrected_volatile=_within(told.ecc_corrected_volatile, MOST_COUNT),
        ecc_uncorrected_volatile=_within(told.ecc_uncorrected_volatile, MOST_COUNT),
        ecc_corrected_aggregate=_within(told.ecc_corrected_aggregate, MOST_COUNT),
        ecc_uncorrected_aggregate=_within(told.ecc_uncorrected_aggregate, MOST_COUNT),
        unrepairable=_flag(told.unrepairable.value),
        pcie_replays=_within(told.pcie_replays, MOST_COUNT),
        links_up=tuple(link.value for link in told.links),
        licensed=told.licensed.value,
        throttled_seconds=tuple(
            (reason, nanoseconds / 1e9)
            for reason, answer in told.throttled.items()
            if (nanoseconds := _within(answer, MOST_NANOSECONDS)) is not None
        ),
        link_errors=tuple(
            (kind, tuple(_within(answer, MOST_COUNT) for answer in answers))
            for kind, answers in told.link_errors.items()
        ),
        **_fabric_facts(told.fabric.value),
    )


def _fabric_facts(told: wire.Fabric | None) -> dict[str, int | None]:
    if told is None or not 0 <= told.state < len(FABRIC_STATES):
        return {}
    joined = told.state == _JOINED
    return {
        "fabric_state": told.state,
        "fabric_status": told.status if joined else None,
        "fabric_health": told.health if joined else None,
    }


def signs(facts: HealthFacts, *, most_links: int) -> Iterator[Sign]:
    """What the state means; most_links: the most NVLinks that a card of this model on this node has up, or had."""
    if facts.recovery_action:
        action = RECOVERY_ACTIONS[facts.recovery_action]
        state = HealthState.DEGRADED if action == "recover_imex_domain" else HealthState.UNHEALTHY
        yield Sign("recovery", HealthCode.RECOVERY_NEEDED, state, f"the driver asks for {_ASKED[action]} ({action})")
    if facts.unrepairable:
        text = "the driver reports memory that can't be repaired; have the card exchanged"
        yield Sign("unrepairable", HealthCode.MEMORY_UNREPAIRABLE, HealthState.UNHEALTHY, text)
    if facts.remap_failed:
        text = f"a row of memory could not be remapped ({_rows(facts)}); have the card exchanged"
        yield Sign("remap-failed", HealthCode.ROW_REMAP_FAILED, HealthState.UNHEALTHY, text)
    if facts.remap_pending:
        text = f"a row of memory is to be remapped by the next reset ({_rows(facts)}); reset the card when it is idle"
        yield Sign("remap-pending", HealthCode.ROW_REMAP_PENDING, HealthState.DEGRADED, text)
    yield from _retired(facts)
    if facts.ecc_uncorrected_volatile:
        # Where the driver gives its own verdict, that decides; where it gives none, wrong data is reason enough.
        state = HealthState.DEGRADED if facts.recovery_action == 0 else HealthState.UNHEALTHY
        text = f"{facts.ecc_uncorrected_volatile} uncorrectable memory errors since the last reset; reset the card"
        yield Sign("ecc", HealthCode.ECC_UNCORRECTED, state, text)
    if 0 < facts.links_active < most_links:
        text = f"{facts.links_active} of {most_links} NVLinks are up"
        yield Sign("nvlink", HealthCode.NVLINK_DOWN, HealthState.DEGRADED, text)
    yield from _fabric(facts)
    if facts.licensed is False:
        text = "the vGPU has no licence, and its driver slows it down; see to its licence server or client token"
        yield Sign("licence", HealthCode.VGPU_UNLICENSED, HealthState.DEGRADED, text)


def _fabric(facts: HealthFacts) -> Iterator[Sign]:
    """CUDA starts on no GPU of an NVSwitch machine (error 802) before the fabric manager has joined it to the rest."""
    if facts.fabric_state in _JOINING:
        state = FABRIC_STATES[facts.fabric_state or 0].replace("_", " ")
        text = f"the fabric manager has not joined this GPU to the others yet ({state}); CUDA can't start on it before"
        yield Sign("fabric", HealthCode.FABRIC_NOT_READY, HealthState.HEALTHY, text)
    elif facts.fabric_status:
        text = f"this GPU could not join the fabric: {words(facts.fabric_status)}; see the fabric manager's log"
        yield Sign("fabric", HealthCode.FABRIC_NOT_READY, HealthState.UNHEALTHY, text)
    ills = _fabric_ills(facts.fabric_health or 0)
    if ills:
        text = f"the fabric of this GPU is not well: {', '.join(ills)}; see the fabric manager's log"
        yield Sign("fabric-health", HealthCode.FABRIC_DEGRADED, HealthState.DEGRADED, text)


def _fabric_ills(mask: int) -> list[str]:
    ills = [text for shift, text in _FABRIC_ILLS.items() if mask >> shift & 3 == 1]
    reason = mask >> _CONFIGURATION_SHIFT & 0xF
    if reason not in _CONFIGURATION_GOOD:
        ills.append(_CONFIGURATION.get(reason, f"its configuration is wrong ({reason})"))
    return ills


def _retired(facts: HealthFacts) -> Iterator[Sign]:
    pages = (facts.retired_single or 0) + (facts.retired_double or 0)
    if pages >= MOST_RETIRED_PAGES:
        text = f"{pages} pages of memory are retired, and {MOST_RETIRED_PAGES} are too many; have the card exchanged"
        yield Sign("retired", HealthCode.PAGES_RETIRED, HealthState.UNHEALTHY, text)
    elif facts.retire_pending:
        text = f"a page of memory is to be retired by the next reset ({pages} are); reset the card when it is idle"
        yield Sign("retire-pending", HealthCode.PAGES_RETIRED, HealthState.DEGRADED, text)


def known_keys(facts: HealthFacts) -> frozenset[str]:
    """Keys of the signs about which these facts say something: only those can be seen to be gone."""
    sources = {
        "recovery": facts.recovery_action,
        "unrepairable": facts.unrepairable,
        "remap-failed": facts.remap_failed,
        "remap-pending": facts.remap_pending,
        "retired": facts.retired_double,
        "retire-pending": facts.retire_pending,
        "ecc": facts.ecc_uncorrected_volatile,
        "nvlink": facts.links_active or None,
        "fabric": facts.fabric_state,
        "fabric-health": facts.fabric_health,
        "licence": facts.licensed,
    }
    return frozenset(key for key, value in sources.items() if value is not None)


def merged(before: HealthFacts, after: HealthFacts) -> HealthFacts:
    """after, with what it does not say as it was said before: for counters and gauges, not for verdicts."""
    kept = {
        each.name: getattr(after, each.name)
        if getattr(after, each.name) not in (None, ())
        else getattr(before, each.name)
        for each in fields(HealthFacts)
    }
    return HealthFacts(**kept)


def _rows(facts: HealthFacts) -> str:
    return f"{facts.rows_corrected or 0} rows for corrected, {facts.rows_uncorrected or 0} for uncorrected errors"


def _within(answer: Answer[int], most: int) -> int | None:
    return _count(answer.value, most)


def _count(value: int | None, most: int) -> int | None:
    return value if value is not None and 0 <= value <= most else None


def _flag(value: int | None) -> bool | None:
    return bool(value) if value in (0, 1) else None
