"""What the limiter says inside a Pod, as events. A tenant can say anything, so it gets one event a kind and minute."""

from __future__ import annotations

import time

from hypervisor.allocations.held import Held
from hypervisor.allocations.telling import Tell
from hypervisor.limits import Message, MessageCode
from hypervisor.model import EventType

QUIET_SECONDS = 60.0
# Refused memory is told from the counters, with numbers that are the daemon's own.
_REASONS = {
    MessageCode.SLOTS_EXHAUSTED: (EventType.WARNING, "SlotsExhausted"),
    MessageCode.ABI_MISMATCH: (EventType.WARNING, "LimiterMismatch"),
    MessageCode.UNKNOWN_POINTER: (EventType.WARNING, "UnknownMemoryFreed"),
    MessageCode.LEDGER_HEALED: (EventType.NORMAL, "LedgerHealed"),
    MessageCode.EXPORT_TABLE: (EventType.NORMAL, "DriverTableUsed"),
    MessageCode.INTERNAL: (EventType.WARNING, "LimiterFailed"),
    MessageCode.REFUSED: (EventType.WARNING, "LimiterRefused"),
    MessageCode.NODES_LOST: (EventType.WARNING, "DeviceNodesLost"),
}


def hear(held: Held, tell: Tell) -> None:
    """Tell what the limiter has said since the last round."""
    if held.files is None or held.files.usage is None or held.finding:
        return
    now = time.monotonic()
    for message in held.files.usage.new_messages():
        if message.code not in _REASONS:
            continue
        held.heard[message.code] = held.heard.get(message.code, 0) + 1
        held.last_heard[message.code] = message
    for code, count in list(held.heard.items()):
        if now - held.heard_at.get(code, float("-inf")) >= QUIET_SECONDS:
            held.heard_at[code] = now
            del held.heard[code]
            _tell(held, held.last_heard[code], count, tell)


def _tell(held: Held, message: Message, count: int, tell: Tell) -> None:
    kind, reason = _REASONS[message.code]
    times = "" if count == 1 else f" (the last of {count})"
    tell.event(
        held.reference,
        kind,
        reason,
        f"the limiter in '{held.allocation.spec.allocation_id}' says: {message.text}{times}",
        pid=str(message.pid),
        messages=str(count),
    )
