"""Which profile a request means, by name, by template id or by what is asked for; pure.

Names match whatever stands before and between: mig-1g.10gb, 1g.10gb, 1g10gb, "MIG 1g.10gb". A template id is the
name behind nv-<family>-, or NVML's own profile id as a number. Without either the profile that wastes the least is
taken: 0.6 x compute + 0.4 x memory, as the scheduler weighs them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from hypervisor.model import Refusal, RefusalReason
from hypervisor.model.quantity import format_bytes
from hypervisor.workers.mig.geometry import Geometry, Profile
from hypervisor.workers.mig.placing import room_for

_PREFIXES = re.compile(r"^(mig[- ]|nv-[a-z0-9]+-)+")
_COMPUTE_WEIGHT, _MEMORY_WEIGHT = Fraction(6, 10), Fraction(4, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of an instance. Without a template: at least this much compute and these bytes; 0: any.

    Compute is a share of the card, 0 to 1, or dense FP16 TFLOPS.
    """

    template: str = ""
    share: Fraction = Fraction(0)
    tflops: Fraction = Fraction(0)
    memory_bytes: int = 0

    def share_on(self, geometry: Geometry) -> Fraction:
        """The share of a card that is asked for; more than all of it where its TFLOPS are not known."""
        if not self.tflops:
            return self.share
        return self.tflops / Fraction(geometry.tflops) if geometry.tflops else Fraction(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A profile with a place on a card, and what it wastes of what is asked for (0: nothing)."""

    geometry: Geometry
    profile: Profile
    start: int
    waste: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMatch:
    """Why a card can't give an instance; one reason for each profile or one for the card."""

    geometry: Geometry
    reasons: tuple[str, ...]


def canonical(name: str) -> str:
    """A profile's name without prefix, dots and dashes: mig-1g.10gb and 1g10gb are the same."""
    text = _PREFIXES.sub("", name.strip().lower())
    return re.sub(r"[.\-_ ]", "", text)


def named(geometry: Geometry, template: str) -> Profile | None:
    """The profile of this card that a name or an id means."""
    text = template.strip().lower()
    if text.isascii() and text.isdecimal():
        return geometry.profile(int(text))
    return next((each for each in geometry.profiles if canonical(each.name) == canonical(text)), None)


def share_of(geometry: Geometry, profile: Profile) -> Fraction:
    """The part of the card's compute that a profile has: its multiprocessors, or its slices where they aren't known."""
    if geometry.multiprocessors and profile.multiprocessors:
        return Fraction(profile.multiprocessors, geometry.multiprocessors)
    most = max(each.slices for each in geometry.profiles)
    return Fraction(profile.slices, most)


def match(geometry: Geometry, wanted: Wanted) -> Match | NoMatch:
    """The best profile of one card with a place for it, or why there is none."""
    if not geometry.complete:
        return NoMatch(geometry=geometry, reasons=("how it is divided now could not be read",))
    if not geometry.enabled:
        return NoMatch(geometry=geometry, reasons=(why_off(geometry),))
    if wanted.template:
        profile = named(geometry, wanted.template)
        if profile is None:
            names = ", ".join(each.name for each in geometry.profiles) or "none"
            return NoMatch(geometry=geometry, reasons=(f"it has no profile {wanted.template!r}; it has {names}",))
        candidates: Sequence[Profile] = (profile,)
    else:
        candidates = geometry.profiles
    reasons: list[str] = []
    found: list[Match] = []
    small: list[tuple[int, str]] = []
    for profile in candidates:
        why = _too_small(geometry, profile, wanted)
        if why:
            small.append((profile.memory_bytes, why))
            continue
        start = room_for(geometry, profile)
        if start is None:
            reasons.append(f"{profile.name} has no place left")
            continue
        found.append(Match(geometry=geometry, profile=profile, start=start, waste=waste(geometry, profile, wanted)))
    if not found:
        # Where all are too small, the largest one's shortage says it for all.
        return NoMatch(geometry=geometry, reasons=tuple(reasons) or (max(small)[1],))
    # Of equal waste the smaller one, and the plain one before one with extras that others may need.
    return min(found, key=lambda each: (each.waste, each.profile.size, len(each.profile.name), each.profile.name))


def fits(geometry: Geometry, profile: Profile, wanted: Wanted) -> bool:
    """Whether an instance of a profile is what is asked for."""
    if wanted.template:
        asked = named(geometry, wanted.template)
        return asked is not None and asked.profile_id == profile.profile_id
    return not _too_small(geometry, profile, wanted)


def _too_small(geometry: Geometry, profile: Profile, wanted: Wanted) -> str:
    """Why a profile is too small; "" when it is not."""
    share = share_of(geometry, profile)
    asked_share = wanted.share_on(geometry)
    if share < asked_share:
        has, asked = f"{float(share * 100):.1f} %", f"{float(asked_share * 100):.1f} %"
        return f"{profile.name} has {has} of the card, and {asked} are asked for"
    if profile.memory_bytes < wanted.memory_bytes:
        has, asked = format_bytes(profile.memory_bytes), format_bytes(wanted.memory_bytes)
        return f"{profile.name} has {has}, and {asked} are asked for"
    return ""


def waste(geometry: Geometry, profile: Profile, wanted: Wanted) -> Fraction:
    """What would lie idle of an instance, weighed; of what is not asked for, all of it."""
    compute = share_of(geometry, profile) - wanted.share_on(geometry)
    memory = Fraction(profile.memory_bytes - wanted.memory_bytes, geometry.memory_bytes or profile.memory_bytes or 1)
    return _COMPUTE_WEIGHT * max(compute, Fraction(0)) + _MEMORY_WEIGHT * max(memory, Fraction(0))


def why_off(geometry: Geometry) -> str:
    """Why a card can't be divided now, and what an operator can do."""
    if not geometry.profiles:
        return f"{geometry.model} can't be divided by MIG"
    if geometry.pending:
        return "MIG mode is set and waits for a reset of the card; drain it and reset it"
    if geometry.architecture == "Ampere":
        return (
            "MIG mode is off, and on this architecture it takes a reset of the card to switch it on; "
            "drain it, run 'nvidia-smi -mig 1' for it and reset it"
        )
    return (
        "MIG mode is off; drain the card and switch it on with 'nvidia-smi -mig 1', or name the card under "
        "mig_geometry in the settings"
    )


def no_match(wanted: Wanted, results: Sequence[NoMatch]) -> Refusal:
    """The refusal where no card has a place, with the reason of each."""
    asked = f"template {wanted.template!r}" if wanted.template else _figures(wanted)
    if not results:
        return Refusal(
            RefusalReason.PARTITION_TEMPLATE_MATCH_FAILED,
            f"no GPU of this node can be divided by MIG, and {asked} is asked for",
            field="isolation",
            remedy="ask for soft isolation, or on a node whose GPUs have MIG",
        )
    by_reason: dict[tuple[str, ...], list[str]] = {}
    for result in results:
        by_reason.setdefault(result.reasons, []).append(str(result.geometry.index))
    reasons = "; ".join(f"GPU {', '.join(cards)}: {', '.join(told)}" for told, cards in by_reason.items())
    return Refusal(
        RefusalReason.PARTITION_TEMPLATE_MATCH_FAILED,
        f"no GPU has a place for {asked}: {reasons}",
        field="devices[0].partition",
        remedy="ask for a profile that has a place, or release what is in the way",
    )


def _figures(wanted: Wanted) -> str:
    compute = "any part of a card"
    if wanted.share:
        compute = f"{float(wanted.share * 100):.4g} % of a card"
    elif wanted.tflops:
        compute = f"{float(wanted.tflops):.4g} TFLOPS"
    return compute + (f" with {format_bytes(wanted.memory_bytes)}" if wanted.memory_bytes else "")
