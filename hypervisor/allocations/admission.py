"""Admission: may this be granted? Pure: from a request, an inventory and what is promised, to grants or a Refusal.

The rule of a device: sum of requests <= capacity x ratio, less what processes of no allocation hold and what the
driver keeps for itself; request <= limit <= card. Two isolation modes never share a card. Unknown is a reason to
hold, never a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

from hypervisor.allocations.hardness import HardCards
from hypervisor.allocations.ledger import Promised, promised_on
from hypervisor.allocations.shares import DeviceShare, figures_of
from hypervisor.model import (
    Allocation,
    AllocationSpec,
    DeviceGrant,
    DeviceObservation,
    DeviceRequest,
    HealthCode,
    HealthState,
    Inventory,
    IsolationMode,
    Owner,
    Refusal,
    RefusalReason,
)
from hypervisor.model.quantity import format_bytes

MAX_DEVICES = 16
_USABLE = frozenset({HealthState.HEALTHY, HealthState.DEGRADED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What admission goes by besides the request.

    context_bytes: by GPU UUID, what a CUDA context there is taken to need.
    hard: who gives hard isolation; None where nobody does.
    foreign_bytes: by GPU UUID, the VRAM that processes of no allocation hold; None where that can't be said. A GPU
    that is not in it holds nothing foreign.
    promised: sums what others were granted; a Ledger's remembers.
    """

    tflops_ratio: float
    vram_ratio: float
    context_bytes: Callable[[str], int]
    hard: HardCards | None = None
    foreign_bytes: Mapping[str, int | None] = field(default_factory=dict)
    promised: Callable[[Iterable[Allocation], Mapping[str, DeviceObservation]], Mapping[str, Promised]] = promised_on


def admit(
    spec: AllocationSpec, inventory: Inventory, others: Iterable[Allocation], rules: Rules
) -> tuple[DeviceGrant, ...]:
    """The grants for a new allocation beside the others, in the order of the request. Raises Refusal."""
    _check_count(spec.devices)
    if spec.isolation is IsolationMode.HARD and len(spec.devices) > 1:
        raise Refusal(
            RefusalReason.ISOLATION_UNSUPPORTED,
            f"{len(spec.devices)} devices are asked for, and a process reaches the MPS server of one card only",
            field="devices",
            remedy="ask for hard isolation of one device, or for soft isolation",
        )
    book = _Book(inventory, others, rules, spec.isolation, owner=spec.owner)
    chosen = book.named(spec.devices)
    # Named devices first, so that a choice of ours takes no card that the same request names.
    shares = {place: book.place(spec.devices[place], device, place) for place, device in chosen.items()}
    for place, request in enumerate(spec.devices):
        if place not in chosen:
            chosen[place], shares[place] = book.best(request, place, taken=chosen.values())
    return tuple(_grant(chosen[place], shares[place]) for place in range(len(spec.devices)))


def admit_change(
    allocation: Allocation,
    devices: tuple[DeviceRequest, ...],
    inventory: Inventory,
    others: Iterable[Allocation],
    rules: Rules,
) -> tuple[DeviceGrant, ...]:
    """The grants of an allocation with other figures on the same devices, in the same order. Raises Refusal.

    What grows passes the same admission as a new allocation; what does not is granted on a sick card too.
    """
    if len(devices) != len(allocation.grants):
        raise Refusal(
            RefusalReason.INVALID_ARGUMENT,
            f"{len(devices)} devices are given, and the allocation has {len(allocation.grants)}",
            field="devices",
            remedy="give each device of the allocation once, in its order",
        )
    if allocation.spec.isolation is IsolationMode.HARD:
        raise Refusal(
            RefusalReason.ISOLATION_UNSUPPORTED,
            "hard limits stand in the MPS server and are fixed while it runs",
            field="devices",
            remedy="release the allocation and allocate anew",
        )
    book = _Book(inventory, others, rules, allocation.spec.isolation, owner=allocation.spec.owner)
    grants = []
    for place, (request, now) in enumerate(zip(devices, allocation.grants, strict=True)):
        if request.gpu and book.find(request.gpu, place).identity.uuid != now.gpu_uuid:
            raise Refusal(
                RefusalReason.INVALID_ARGUMENT,
                f"device {place} of the allocation is {now.gpu_uuid} and not {request.gpu}",
                field=f"devices[{place}].gpu",
                remedy="release the allocation and ask for another one to move it to another GPU",
            )
        device = book.find(now.gpu_uuid, place)
        share = figures_of(
            request, device, field=f"devices[{place}]", context_bytes=rules.context_bytes(device.identity.uuid)
        )
        grant = _grant(device, share)
        if grant.request_share_ppm > now.request_share_ppm or grant.request_vram_bytes > now.request_vram_bytes:
            book.check_usable(device, place)
            if grant.request_share_ppm > now.request_share_ppm:
                book.check_time(device, share, place)
            if grant.request_vram_bytes > now.request_vram_bytes:
                book.check_vram(device, share, place)
        grants.append(grant)
    return tuple(grants)


class _Book:
    """The devices of an inventory with what is promised on each, for one decision."""

    def __init__(
        self,
        inventory: Inventory,
        others: Iterable[Allocation],
        rules: Rules,
        isolation: IsolationMode,
        *,
        owner: Owner,
    ) -> None:
        self._inventory = inventory
        self._rules = rules
        self._isolation = isolation
        self._owner = owner
        self._devices = {device.identity.uuid: device for device in inventory.devices}
        self._promised = rules.promised(others, self._devices)

    def named(self, requests: tuple[DeviceRequest, ...]) -> dict[int, DeviceObservation]:
        """By place, the devices that are asked for by UUID or index, each once."""
        found: dict[int, DeviceObservation] = {}
        for place, request in enumerate(requests):
            if not request.gpu:
                continue
            device = self.find(request.gpu, place)
            if device in found.values():
                raise Refusal(
                    RefusalReason.INVALID_ARGUMENT,
                    f"{device.identity.uuid} is asked for twice",
                    field=f"devices[{place}].gpu",
                    remedy="ask for each GPU once, with the sum of the figures",
                )
            found[place] = device
        return found

    def find(self, gpu: str, place: int) -> DeviceObservation:
        """The device of a UUID or an index. Raises Refusal when there is none."""
        wanted = gpu.strip().lower()
        for device in self._inventory.devices:
            identity = device.identity
            if identity.uuid.lower() == wanted or (
                wanted.isascii() and wanted.isdigit() and identity.partition is None and identity.index == int(wanted)
            ):
                return device
        self._check_ready()
        known = ", ".join(f"{device.identity.index} ({device.identity.uuid})" for device in self._inventory.devices)
        raise Refusal(
            RefusalReason.GPU_NOT_FOUND,
            f"there is no GPU {gpu[:96]!r} on this node",
            field=f"devices[{place}].gpu",
            remedy=f"ask for one of {known}",
        )

    def place(self, request: DeviceRequest, device: DeviceObservation, place: int) -> DeviceShare:
        """What a request comes to on a device that can take it. Raises Refusal."""
        self.check_usable(device, place)
        self._check_isolation(device, place)
        share = figures_of(
            request, device, field=f"devices[{place}]", context_bytes=self._rules.context_bytes(device.identity.uuid)
        )
        self._check_hard(device, share, place)
        self.check_time(device, share, place)
        self.check_vram(device, share, place)
        return share

    def best(
        self, request: DeviceRequest, place: int, *, taken: Iterable[DeviceObservation]
    ) -> tuple[DeviceObservation, DeviceShare]:
        """The device with the least room left that can take a request. Raises the Refusal of the nearest miss."""
        self._check_ready()
        not_these = {device.identity.uuid for device in taken}
        fitting: list[tuple[Fraction, int, DeviceObservation, DeviceShare]] = []
        refusals: list[Refusal] = []
        for device in self._inventory.devices:
            if device.identity.uuid in not_these:
                continue
            try:
                share = self.place(request, device, place)
            except Refusal as refusal:
                refusals.append(refusal)
                continue
            fitting.append((self._room(device), device.identity.index, device, share))
        if fitting:
            _, _, device, share = min(fitting, key=lambda entry: entry[:2])
            return device, share
        if not refusals:
            raise Refusal(
                RefusalReason.TOO_MANY_DEVICES,
                f"the node has {len(self._inventory.devices)} GPUs, and more are asked for",
                field=f"devices[{place}]",
                remedy=f"ask for at most {len(self._inventory.devices)} devices",
            )
        nearest = min(refusals, key=lambda refusal: _NEARNESS.get(refusal.reason, 0))
        if len({str(refusal) for refusal in refusals}) == 1:
            raise nearest  # it is about the request, or there is one GPU
        raise Refusal(
            nearest.reason,
            f"none of {len(refusals)} GPUs can take it; the nearest: {nearest.message}",
            field=nearest.field,
            remedy=nearest.remedy,
        )

    def check_usable(self, device: DeviceObservation, place: int) -> None:
        """Raises Refusal when the card is sick, in foreign hands, or can't be seen."""
        path = f"devices[{place}].gpu"
        # A code names what is wrong whatever the polarity of its condition; a condition that is well says Ok.
        held = {condition.code: condition.message for condition in device.conditions}
        if HealthCode.FOREIGN_USE in held:
            raise Refusal(
                RefusalReason.GPU_IN_USE,
                f"{_where(device)} is used by another system: {held[HealthCode.FOREIGN_USE]}",
                field=path,
                remedy="ask for another GPU",
            )
        if device.health in {HealthState.BLIND, HealthState.UNKNOWN} or HealthCode.USE_UNKNOWN in held:
            reason = held.get(HealthCode.USE_UNKNOWN) or _why(device)
            raise Refusal(
                RefusalReason.USE_UNKNOWN,
                f"what uses {_where(device)} is not known: {reason}",
                field=path,
                remedy="try again when it can be read, or ask for another GPU",
            )
        if device.health not in _USABLE:
            raise Refusal(
                RefusalReason.GPU_UNHEALTHY,
                f"{_where(device)} is {device.health.value}: {_why(device)}",
                field=path,
                remedy="ask for another GPU",
            )

    def _check_isolation(self, device: DeviceObservation, place: int) -> None:
        if self._isolation is IsolationMode.HARD and self._rules.hard is None:
            raise Refusal(
                RefusalReason.ISOLATION_UNSUPPORTED,
                "hard isolation needs a daemon that keeps MPS servers, and this one does not",
                field="isolation",
                remedy="ask for soft isolation, or for a MIG instance with partitioned",
            )
        if self._isolation is IsolationMode.PARTITIONED and device.identity.partition is None:
            raise Refusal(
                RefusalReason.ISOLATION_UNSUPPORTED,
                f"{_where(device)} is not a MIG instance",
                field="isolation",
                remedy="name a MIG instance, or ask for soft isolation",
            )
        for holder, mode in self._entry(device).holders:
            if mode is self._isolation is IsolationMode.PARTITIONED:
                raise Refusal(
                    RefusalReason.ISOLATION_CONFLICT,
                    f"{_where(device)} is granted to '{holder}' as a whole",
                    field=f"devices[{place}].gpu",
                    remedy="ask for another instance, or name none and let the daemon find or make one",
                )
            if mode is not self._isolation:
                raise Refusal(
                    RefusalReason.ISOLATION_CONFLICT,
                    f"{_where(device)} is in {mode.value} mode for '{holder}', and two modes never share a card",
                    field=f"devices[{place}].gpu",
                    remedy=f"ask for {mode.value} isolation or for another GPU",
                )

    def _check_hard(self, device: DeviceObservation, share: DeviceShare, place: int) -> None:
        """Raises Refusal when the driver can't enforce the share on this card."""
        if self._isolation is not IsolationMode.HARD or self._rules.hard is None:
            return
        refusal = self._rules.hard.refusal(
            device,
            _grant(device, share),
            holders=len(self._entry(device).holders),
            owner=self._owner,
            field=f"devices[{place}]",
        )
        if refusal is not None:
            raise refusal

    def check_time(self, device: DeviceObservation, share: DeviceShare, place: int) -> None:
        """Raises Refusal when the sum of requests would exceed the card's GPU time."""
        promised = self._entry(device).share
        capacity = _ratio(self._rules.tflops_ratio)
        if share.request == 0 or promised + share.request <= capacity:
            return
        rest = max(capacity - promised, Fraction(0))
        raise Refusal(
            RefusalReason.INSUFFICIENT_TFLOPS,
            f"{_where(device)} has {_percent(rest)} of its GPU time left ({_percent(promised)} of "
            f"{_percent(capacity)} are promised), and {_percent(share.request)} are asked for",
            field=f"devices[{place}].requests.compute",
            remedy=f"ask for at most {_percent(rest)}, or for another GPU" if rest else "ask for another GPU",
        )

    def check_vram(self, device: DeviceObservation, share: DeviceShare, place: int) -> None:
        """Raises Refusal when the sum of requests would exceed the card's VRAM, or when that can't be said."""
        if share.request_vram_bytes == 0:
            return
        rest, foreign, kept = self._vram_left(device, place)
        if share.request_vram_bytes <= rest:
            return
        promised = self._entry(device).vram_bytes
        held = f", {format_bytes(foreign)} held by processes of no allocation" if foreign else ""
        held += f", {format_bytes(kept)} kept by the driver" if kept else ""
        raise Refusal(
            RefusalReason.INSUFFICIENT_VRAM,
            f"{_where(device)} has {format_bytes(rest)} ({rest} bytes) of VRAM left ({format_bytes(promised)} "
            f"promised{held}), and {format_bytes(share.request_vram_bytes)} are asked for",
            field=f"devices[{place}].requests.vram_bytes",
            remedy=f"ask for at most {rest} bytes, or for another GPU" if rest else "ask for another GPU",
        )

    def _vram_left(self, device: DeviceObservation, place: int) -> tuple[int, int, int]:
        """Bytes that can be promised, and of the rest what others hold and what the driver keeps."""
        card = device.vram_bytes.value
        foreign = self._rules.foreign_bytes.get(device.identity.uuid, 0)
        if card is None or foreign is None:
            why = device.vram_bytes.absent_reason if card is None else "the driver does not say what its processes hold"
            raise Refusal(
                RefusalReason.USE_UNKNOWN,
                f"how much VRAM of {_where(device)} is free is not known: {why}",
                field=f"devices[{place}].gpu",
                remedy="try again when it can be read, or ask for another GPU",
            )
        capacity = int(card * _ratio(self._rules.vram_ratio))
        kept = _kept_by_driver(device)
        return max(capacity - self._entry(device).vram_bytes - foreign - kept, 0), foreign, kept

    def _entry(self, device: DeviceObservation) -> Promised:
        return self._promised.get(device.identity.uuid) or Promised()

    def _room(self, device: DeviceObservation) -> Fraction:
        """What is left of a card, the scarcer of time and memory: the best fit has the least."""
        promised, card = self._entry(device), device.vram_bytes.value
        time_left = _ratio(self._rules.tflops_ratio) - promised.share
        if not card:
            return time_left
        foreign = self._rules.foreign_bytes.get(device.identity.uuid) or 0
        gone = promised.vram_bytes + foreign + _kept_by_driver(device)
        return min(time_left, _ratio(self._rules.vram_ratio) - Fraction(gone, card))

    def _check_ready(self) -> None:
        if self._inventory.devices:
            return
        why = "; ".join(condition.message for condition in self._inventory.conditions if condition.message)
        raise Refusal(
            RefusalReason.NOT_READY,
            f"no GPU is known yet{': ' + why if why else ''}",
            field="devices",
            remedy="try again when the node is ready; `hypervisor get nodes` says what it waits for",
        )


# The smaller, the nearer to a grant: what lacks room could fit elsewhere or later, what is refused by kind could not.
_NEARNESS = {
    RefusalReason.INSUFFICIENT_VRAM: -5,
    RefusalReason.INSUFFICIENT_TFLOPS: -4,
    RefusalReason.ISOLATION_CONFLICT: -3,
    RefusalReason.USE_UNKNOWN: -2,
    RefusalReason.GPU_IN_USE: -1,
    RefusalReason.GPU_UNHEALTHY: 1,
}


def _check_count(devices: tuple[DeviceRequest, ...]) -> None:
    if not devices:
        raise Refusal(
            RefusalReason.INVALID_ARGUMENT,
            "no device is asked for",
            field="devices",
            remedy=f"ask for 1 to {MAX_DEVICES} devices",
        )
    if len(devices) > MAX_DEVICES:
        raise Refusal(
            RefusalReason.TOO_MANY_DEVICES,
            f"{len(devices)} devices are asked for, and a limit file holds {MAX_DEVICES}",
            field="devices",
            remedy=f"ask for at most {MAX_DEVICES} devices in one allocation",
        )


def _grant(device: DeviceObservation, share: DeviceShare) -> DeviceGrant:
    return DeviceGrant(
        gpu_uuid=device.identity.uuid,
        gpu_index=device.identity.index,
        request_share_ppm=share.request_ppm,
        limit_share_ppm=share.limit_ppm,
        request_vram_bytes=share.request_vram_bytes,
        limit_vram_bytes=share.limit_vram_bytes,
    )


def _kept_by_driver(device: DeviceObservation) -> int:
    return device.readings.memory_reserved_bytes.value or 0


def _ratio(value: float) -> Fraction:
    """A ratio as the decimal that was written: 1.1 is eleven tenths."""
    return Fraction(Decimal(repr(value)))


def _percent(share: Fraction) -> str:
    return f"{float(share) * 100:.4f}".rstrip("0").rstrip(".") + "%"


def _where(device: DeviceObservation) -> str:
    return f"GPU {device.identity.index} ({device.identity.uuid})"


def _why(device: DeviceObservation) -> str:
    wrong = [condition for condition in device.conditions if condition.code is not HealthCode.OK]
    return "; ".join(condition.message or condition.code.value for condition in wrong) or "no reason was given"
