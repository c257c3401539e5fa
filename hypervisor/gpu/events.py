"""The event set of a gpu-reader: which cards are watched, and what has come. In the child only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypervisor.gpu import nvml_events, wire
from hypervisor.gpu.codes import EVENT_XID, SUCCESS, TIMEOUT, UNKNOWN
from hypervisor.gpu.nvml import Nvml, handle_number
from hypervisor.gpu.survey import Card
from hypervisor.gpu.wire import Answer

# NVML's event types: both kinds of ECC errors, Xid, retired memory and its failure, poison, a card that is gone, and a
# change of what the driver asks for. Each card is asked which of them it has.
ECC_SINGLE, ECC_DOUBLE = 0x1, 0x2
RETIREMENT, RETIREMENT_FAILED = 0x400, 0x800
POISON, FATAL_POISON, UNAVAILABLE, RECOVERY = 0x1000, 0x2000, 0x4000, 0x8000
WANTED = (
    ECC_SINGLE
    | ECC_DOUBLE
    | EVENT_XID
    | RETIREMENT
    | RETIREMENT_FAILED
    | POISON
    | FATAL_POISON
    | UNAVAILABLE
    | RECOVERY
)
# A storm of events leaves time for readings; the rest is taken the next time.
MOST_AT_ONCE = 256
# Calls of take() for which a broken set is left alone before another one is made: 1, 2, 4, and so on up to this.
MOST_PATIENCE = 64


class EventWatch:
    """Takes events without waiting for them. A set that fails is made anew, later each time."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._watched: dict[str, Answer[int]] = {}
        self._patience = 1
        self._pause = 0  # calls of take() until another set is made

    def add(self, card: Card) -> Answer[int]:
        """Watch a card from now on, once; the mask of events that come, or why none come."""
        known = self._watched.get(card.slot)
        if known is not None:
            return known
        if self._set is None:
            if self._pause:
                return Answer(None, UNKNOWN)
            made = nvml_events.make_event_set(self._nvml)
            if made.code != SUCCESS:
                self._give_up()
                return Answer(None, made.code)
            self._set = made.value
        told = nvml_events.watch(self._nvml, card.device, self._set, WANTED)
        if told.code == UNKNOWN:
            # NVML leaves the set undefined after this; with the next set the card is asked again.
            self._give_up()
            return told
        self._watched[card.slot] = told
        return told

    def take(self, cards: Iterable[Card]) -> wire.EventsDone:
        """What has come since the last call."""
        if self._set is None:
            self._pause = max(self._pause - 1, 0)
            return wire.EventsDone([])
        slots = {handle_number(card.device.handle): card.slot for card in cards}
        events: list[wire.GpuEvent] = []
        for _ in range(MOST_AT_ONCE):
            told = nvml_events.next_event(self._nvml, self._set)
            if told.value is None:
                if told.code == TIMEOUT:
                    self._patience = 1
                    return wire.EventsDone(events)
                self._give_up()
                return wire.EventsDone(events, told.code)
            handle, kind, data = told.value
            if handle in slots:
                events.append(wire.GpuEvent(slots[handle], kind, data))
        return wire.EventsDone(events)

    def close(self) -> None:
        """Let go of the set."""
        if self._set is not None:
            nvml_events.free_event_set(self._nvml, self._set)
        self._set = None

    def _give_up(self) -> None:
        """Let go of a set that fails; all cards are watched anew with the next one."""
        self.close()
        self._watched.clear()
        self._pause, self._patience = self._patience, min(self._patience * 2, MOST_PATIENCE)
