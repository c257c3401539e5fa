"""All circuits of the node: what is told of them, and what a fall of the whole capacity needs to be believed."""

from __future__ import annotations

from collections.abc import Mapping

from hypervisor.gpu.fleet import Fleet
from hypervisor.gpu.health.circuit import CLOSED, CapacityGuard, Circuit, CircuitState
from hypervisor.gpu.health.host import Host
from hypervisor.gpu.health.occurrence import Occurrence, OccurrenceKind, Occurrences

# For so long after the driver was exchanged, it explains another capacity.
EXCHANGE_SECONDS = 60.0


class Breakers:
    """Circuits by UUID and field, and the guard of the node's capacity."""

    def __init__(self, occurrences: Occurrences) -> None:
        self.circuits: dict[tuple[str, str], Circuit] = {}
        self.capacity = CapacityGuard()
        self._occurrences = occurrences
        self._module = ""
        self._exchanged_at = float("-inf")

    def on_circuits(self, uuid: str, circuits: Mapping[str, Circuit]) -> None:
        """The circuits of a device after a reading."""
        for name, circuit in circuits.items():
            before = self.circuits.get((uuid, name), CLOSED)
            self.circuits[uuid, name] = circuit
            shown = name.replace("_", " ")
            if circuit.trips > before.trips:
                text = f"{circuit.bad} readings of the {shown} in a row can't be believed; the last good one stands"
                self._tell(OccurrenceKind.CIRCUIT_OPENED, uuid, text, name, readings=circuit.bad)
            elif circuit.state is CircuitState.CLOSED and before.state is not CircuitState.CLOSED:
                self._tell(
                    OccurrenceKind.CIRCUIT_CLOSED, uuid, f"the {shown} is read again", name, readings=before.good
                )

    def guard(self, fleet: Fleet, host: Host | None, *, sees_bus: bool, now: float) -> None:
        """Hold a capacity that fell too far. host is the second source, None where there is none."""
        told = {}
        for card in fleet.cards.values():
            figure = fleet.records[card.uuid].capacity.figure
            if figure.value is not None and not figure.stale:
                told[card.uuid] = figure.value
        off_bus: set[str] = set()
        if host is not None:
            module = host.module_version()
            if self._module and module != self._module:
                self._exchanged_at = now
            self._module = module
            if sees_bus:
                off_bus = {c.uuid for c in fleet.cards.values() if c.bus_id and not host.on_bus(c.bus_id)}
        exchanged = now - self._exchanged_at < EXCHANGE_SECONDS
        held = self.capacity.check(told, lambda uuid: exchanged or uuid in off_bus, now=now)
        for uuid, value in held.items():
            fleet.hold_capacity(uuid, value)

    def _tell(self, kind: OccurrenceKind, uuid: str, message: str, name: str, *, readings: int) -> None:
        self._occurrences.add(
            Occurrence(
                kind=kind,
                gpu_uuid=uuid,
                message=message,
                warning=kind is OccurrenceKind.CIRCUIT_OPENED,
                fields=(("field", name), ("readings", str(readings))),
            )
        )
