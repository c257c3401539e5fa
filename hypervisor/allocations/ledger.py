"""What is already promised on each device, exactly, so that sums of decimals don't drift."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from hypervisor.allocations.shares import tflops_of
from hypervisor.model import Allocation, DeviceObservation, IsolationMode
from hypervisor.model.allocation import SHARE_FULL_PPM, Compute


@dataclass(slots=True)
class Promised:
    """Sums over the allocations of one device, and the isolation modes that they have."""

    share: Fraction = Fraction(0)
    vram_bytes: int = 0
    holders: list[tuple[str, IsolationMode]] = field(default_factory=list)


def promised_on(allocations: Iterable[Allocation], devices: Mapping[str, DeviceObservation]) -> dict[str, Promised]:
    """By GPU UUID, what these allocations were granted."""
    return _summed((allocation, _exact_shares(allocation, devices)) for allocation in allocations)


class Ledger:
    """promised_on() with a memory, for it is asked for each card and each Pod of a burst. For one task.

    What an allocation comes to is reckoned once while it and the TFLOPS of its cards stay; the sums are made anew when
    the set is another one.
    """

    def __init__(self) -> None:
        self._shares: dict[str, tuple[Allocation, tuple[Fraction, ...]]] = {}  # by uid
        self._cards: Mapping[str, object] = {}
        self._summed: tuple[Sequence[Allocation], Mapping[str, Promised]] = ((), {})

    def promised_on(
        self, allocations: Iterable[Allocation], devices: Mapping[str, DeviceObservation]
    ) -> Mapping[str, Promised]:
        """By GPU UUID, what these allocations were granted."""
        cards = {uuid: device.tflops.value for uuid, device in devices.items()}
        if cards != self._cards:
            self._cards, self._shares, self._summed = cards, {}, ((), {})
        wanted = tuple(allocations)
        summed, found = self._summed
        if len(wanted) != len(summed) or any(one is not other for one, other in zip(wanted, summed, strict=True)):
            # Of drafts, whose uid is "", each is another one.
            known = self._shares
            self._shares = {each.uid: self._reckoned(each, known, devices) for each in wanted if each.uid}
            found = _summed(
                self._shares[each.uid] if each.uid else (each, _exact_shares(each, devices)) for each in wanted
            )
            self._summed = (wanted, found)
        return found

    def _reckoned(
        self,
        allocation: Allocation,
        known: Mapping[str, tuple[Allocation, tuple[Fraction, ...]]],
        devices: Mapping[str, DeviceObservation],
    ) -> tuple[Allocation, tuple[Fraction, ...]]:
        entry = known.get(allocation.uid)
        if entry is not None and entry[0] is allocation:
            return entry
        return allocation, _exact_shares(allocation, devices)


def _summed(reckoned: Iterable[tuple[Allocation, tuple[Fraction, ...]]]) -> dict[str, Promised]:
    found: dict[str, Promised] = {}
    parts: dict[str, dict[int, int]] = {}  # by GPU UUID and denominator, numerators: a fraction a card, not one a grant
    for allocation, shares in reckoned:
        for grant, share in zip(allocation.grants, shares, strict=True):
            entry = found.setdefault(grant.gpu_uuid, Promised())
            entry.vram_bytes += grant.request_vram_bytes
            entry.holders.append((allocation.spec.allocation_id, allocation.spec.isolation))
            numerators, denominator = parts.setdefault(grant.gpu_uuid, {}), share.denominator
            numerators[denominator] = numerators.get(denominator, 0) + share.numerator
    for uuid, numerators in parts.items():
        found[uuid].share = sum((Fraction(top, bottom) for bottom, top in numerators.items()), Fraction(0))
    return found


def _exact_shares(allocation: Allocation, devices: Mapping[str, DeviceObservation]) -> tuple[Fraction, ...]:
    return tuple(
        _exact_share(allocation, place, devices.get(grant.gpu_uuid)) for place, grant in enumerate(allocation.grants)
    )


def _exact_share(allocation: Allocation, place: int, device: DeviceObservation | None) -> Fraction:
    """The requested share as it was asked for; as granted, where the request is not known or the card has changed."""
    grant = allocation.grants[place]
    rounded = Fraction(grant.request_share_ppm, SHARE_FULL_PPM)
    if place >= len(allocation.spec.devices):
        return rounded
    asked = allocation.spec.devices[place]
    compute = asked.requests.compute or asked.limits.compute
    exact = None if compute is None else _exact(compute, device)
    return exact if exact is not None and abs(exact - rounded) <= Fraction(1, SHARE_FULL_PPM) else rounded


def _exact(compute: Compute, device: DeviceObservation | None) -> Fraction | None:
    if compute.percent is not None:
        return Fraction(compute.percent) / 100
    card = tflops_of(device) if device is not None else None
    return None if card is None or compute.tflops is None else Fraction(compute.tflops) / card
