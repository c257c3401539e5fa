"""What follows for the conditions of cards and node from their health and from the host beside them. Nothing waits."""

from __future__ import annotations

from collections.abc import Iterable

from hypervisor.gpu.codes import ErrorClass, classify
from hypervisor.gpu.conditions import Finding
from hypervisor.gpu.fleet import CardState, Fleet
from hypervisor.gpu.health.host import FOREIGN_DRIVERS, BusGpu, Host
from hypervisor.gpu.health.machine import CardHealth
from hypervisor.model.health import HealthCode, HealthState


def of_card(card: CardState, health: CardHealth, fleet: Fleet, host: Host | None) -> list[Finding]:
    """Of one card. host is None where there is none to look at."""
    found = [Finding(each.code, each.text, each.key) for each in health.confirmed]
    record = fleet.records[card.uuid]
    blind = record.health is HealthState.BLIND and classify(record.code) in (ErrorClass.VAGUE, ErrorClass.PERMISSION)
    if blind and not card.detached and host is not None:
        denied = host.denied_nodes(record.identity.minor)
        if denied:
            text = f"{'; '.join(denied)}; the card may be well: give the daemon its device nodes back"
            found.append(Finding(HealthCode.ACCESS_DENIED, text))
    return found


def of_node(fleet: Fleet, host: Host | None, bus: Iterable[BusGpu], *, held: str) -> list[Finding]:
    """Of the node. bus: the GPUs on it; held: what of the capacity is held back, "" when nothing is."""
    found = [Finding(HealthCode.CAPACITY_HELD, held, "capacity")] if held else []
    if host is None:
        return found
    missing = host.missing_toolkit()
    if missing is not None:
        text = f"waiting for toolkit validation: {missing} is missing, which NVIDIA's GPU operator writes"
        found.append(Finding(HealthCode.TOOLKIT_NOT_READY, text))
    gpus = tuple(bus)
    hidden = [
        f"{gpu.address} ({gpu.driver or 'no driver'})"
        for gpu in (gpus if fleet.cards else ())
        if gpu.address not in fleet.cards and gpu.driver not in FOREIGN_DRIVERS
    ]
    if not hidden:
        return found
    text = f"the PCI bus has {len(gpus)} GPUs, and the driver does not show {', '.join(hidden)}"
    return [*found, Finding(HealthCode.GPUS_NOT_SHOWN, f"{text}; see the kernel's log")]
