"""What is already promised on each device, exactly, so that sums of decimals don't drift."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    found: dict[str, Promised] = {}
    for allocation in allocations:
        for place, grant in enumerate(allocation.grants):
            entry = found.setdefault(grant.gpu_uuid, Promised())
            entry.share += _exact_share(allocation, place, devices.get(grant.gpu_uuid))
            entry.vram_bytes += grant.request_vram_bytes
            entry.holders.append((allocation.spec.allocation_id, allocation.spec.isolation))
    return found


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
