"""What an amount of compute or memory comes to on one device. Exact: integers, decimals and fractions."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from hypervisor.model import Compute, DeviceObservation, DeviceRequest, Refusal, RefusalReason
from hypervisor.model.allocation import SHARE_FULL_PPM
from hypervisor.model.quantity import MAX_BYTES, format_bytes

# The smallest limit that the control can hold within a point: below it, one kernel of 20 ms is more than 2 s of share.
SMALLEST_SHARE = Fraction(1, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """A request for one device in figures: shares of GPU time from 0 to 1, and bytes. None: the card is the limit."""

    request: Fraction
    limit: Fraction
    request_vram_bytes: int
    limit_vram_bytes: int | None

    @property
    def request_ppm(self) -> int:
        return to_ppm(self.request)

    @property
    def limit_ppm(self) -> int:
        return to_ppm(self.limit)


def to_ppm(share: Fraction) -> int:
    """Parts per million, to the nearest; what is above nothing stays above nothing."""
    return max(round(share * SHARE_FULL_PPM), 1 if share > 0 else 0)


def tflops_of(device: DeviceObservation) -> Fraction | None:
    """The dense FP16 TFLOPS of a device as the decimal that people read; None when they are not known."""
    value = device.tflops.value
    return Fraction(Decimal(repr(value))) if value is not None and value > 0 else None


def share_of(compute: Compute, device: DeviceObservation, *, field: str) -> Fraction:
    """The share of GPU time that an amount of compute is. Raises Refusal; does not judge whether it fits."""
    amount = compute.percent if compute.percent is not None else compute.tflops
    if amount is None or not amount.is_finite() or amount <= 0:
        raise Refusal(
            RefusalReason.INVALID_ARGUMENT,
            f"{compute} is not an amount of compute",
            field=f"{field}.compute",
            remedy="give a number above 0, or leave compute out for no limit",
        )
    if compute.percent is not None:
        return Fraction(amount) / 100
    card = tflops_of(device)
    if card is None:
        raise Refusal(
            RefusalReason.TFLOPS_UNKNOWN,
            f"the TFLOPS of {device.identity.model or 'this model'} are not known"
            f"{': ' + device.tflops.absent_reason if device.tflops.absent_reason else ''}",
            field=f"{field}.compute.tflops",
            remedy="give compute in percent, or add the model to the catalogue",
        )
    return Fraction(amount) / card


def figures_of(request: DeviceRequest, device: DeviceObservation, *, field: str, context_bytes: int) -> DeviceShare:
    """What one device request comes to on a device.

    A request that is left out is the limit's figure, and nothing where there is no limit either. Raises Refusal when
    the figures contradict each other or the card: request above limit, limit above card or below what can be held.
    """
    limit, request_share = _compute(request, device, field=field)
    limit_bytes, request_bytes = _vram(request, device, field=field, context_bytes=context_bytes)
    return DeviceShare(
        request=request_share, limit=limit, request_vram_bytes=request_bytes, limit_vram_bytes=limit_bytes
    )


def _compute(request: DeviceRequest, device: DeviceObservation, *, field: str) -> tuple[Fraction, Fraction]:
    asked, allowed = request.requests.compute, request.limits.compute
    limit = Fraction(1) if allowed is None else share_of(allowed, device, field=f"{field}.limits")
    if limit > 1:
        raise Refusal(
            RefusalReason.LIMIT_ABOVE_CAPACITY,
            f"a limit of {allowed} is more than the whole card, {_card_compute(device)}",
            field=f"{field}.limits.compute",
            remedy=f"ask for at most {_card_compute(device)}",
        )
    if limit < SMALLEST_SHARE:
        raise Refusal(
            RefusalReason.INVALID_ARGUMENT,
            f"a limit of {allowed} is {float(limit) * 100:.4g}% of the card's time, and the smallest that can be held "
            f"is {float(SMALLEST_SHARE) * 100:g}%",
            field=f"{field}.limits.compute",
            remedy=f"ask for at least {_amount(SMALLEST_SHARE, device)}",
        )
    if asked is None:
        return limit, limit if allowed is not None else Fraction(0)
    share = share_of(asked, device, field=f"{field}.requests")
    if share > limit:
        raise Refusal(
            RefusalReason.LIMIT_BELOW_REQUEST if allowed is not None else RefusalReason.INSUFFICIENT_TFLOPS,
            f"the request of {asked} is more than the limit of {allowed or _card_compute(device)}",
            field=f"{field}.requests.compute",
            remedy="lower the request or raise the limit",
        )
    return limit, share


def _vram(
    request: DeviceRequest, device: DeviceObservation, *, field: str, context_bytes: int
) -> tuple[int | None, int]:
    asked, allowed = request.requests.vram_bytes, request.limits.vram_bytes
    for name, value in (("requests", asked), ("limits", allowed)):
        if value is not None and not 0 < value <= MAX_BYTES:
            raise Refusal(
                RefusalReason.INVALID_ARGUMENT,
                f"{value} is not an amount of VRAM that can be limited",
                field=f"{field}.{name}.vram_bytes",
                remedy=f"give a number of bytes above 0 and at most {format_bytes(MAX_BYTES)}, or leave it out",
            )
    card = device.vram_bytes.value
    if card is not None and allowed is not None and allowed > card:
        raise Refusal(
            RefusalReason.LIMIT_ABOVE_CAPACITY,
            f"a limit of {format_bytes(allowed)} ({allowed} bytes) is more than the card's {format_bytes(card)} "
            f"({card} bytes)",
            field=f"{field}.limits.vram_bytes",
            remedy=f"ask for at most {card} bytes",
        )
    if allowed is not None and allowed <= context_bytes:
        raise Refusal(
            RefusalReason.VRAM_BELOW_CONTEXT,
            f"a limit of {format_bytes(allowed)} is not more than the {format_bytes(context_bytes)} that one CUDA "
            "context needs",
            field=f"{field}.limits.vram_bytes",
            remedy=f"ask for more than {format_bytes(context_bytes)} ({context_bytes} bytes)",
        )
    if asked is None:
        return allowed, allowed or 0
    if allowed is not None and asked > allowed:
        raise Refusal(
            RefusalReason.LIMIT_BELOW_REQUEST,
            f"the request of {format_bytes(asked)} is more than the limit of {format_bytes(allowed)}",
            field=f"{field}.requests.vram_bytes",
            remedy="lower the request or raise the limit",
        )
    return allowed, asked


def _card_compute(device: DeviceObservation) -> str:
    value = device.tflops.value
    return "100%" if value is None else f"{value:g} TFLOPS"


def _amount(share: Fraction, device: DeviceObservation) -> str:
    card = tflops_of(device)
    percent = f"{float(share) * 100:g}%"
    return percent if card is None else f"{percent}, which is {float(card * share):g} TFLOPS here"
