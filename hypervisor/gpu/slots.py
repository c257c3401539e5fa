"""Slots: what a request is about, by the bus id of a card, or its index where that is not known. Pure."""

from __future__ import annotations

from hypervisor.gpu import wire

# Not a card: the event set, which can hang like a card and must not take the cards with it.
EVENTS_SLOT = "events"
# Before a card's slot: its GPM, which may hang where all that matters of the card answers.
_GPM = "gpm:"
# Likewise before it: samples of the card as a whole, asked with those of its processes.
_CARD_SAMPLES = "samples:"


def by_index(index: int) -> str:
    """The slot of a card whose bus id is not known."""
    return f"index:{index}"


def gpm_slot(slot: str) -> str:
    """The slot of a card's GPM."""
    return _GPM + slot


def card_samples_slot(slot: str) -> str:
    """The slot of the samples of a card as a whole. What they are asked with counts as theirs too: if it was that which
    hung, it hangs again without them."""
    return _CARD_SAMPLES + slot


def slot_of(request: wire.Request) -> str | None:
    """Which slot a request is about; None for the library as a whole."""
    match request:
        case wire.Attach(index, bus_id):
            return bus_id or by_index(index or 0)
        case wire.Sampling(slot, card=True):
            return card_samples_slot(slot)
        case wire.Survey(slot) | wire.Read(slot) | wire.Sampling(slot) | wire.Health(slot):
            return slot
        case wire.Gpm(slot):
            return gpm_slot(slot)
        case wire.Events():
            return EVENTS_SLOT
    return None
