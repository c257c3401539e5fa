"""The learned costs in a usage file: which functions an allocation was charged most for.

What processes write there is shown to people and decides nothing; names are cut to what a line of text may hold.
"""

from __future__ import annotations

import heapq
import os
from dataclasses import dataclass

from hypervisor.limits._abi import ffi, lib

MOST_SECONDS = 86_400.0  # a launch of a day: more was not written by a limiter


@dataclass(frozen=True, slots=True)
class CostEntry:
    """One function on one device: GPU time of a launch, launches by the function that paid for them, launches
    that were measured."""

    device: int
    name: str
    cost_ns: int
    launches: int
    samples: int
    graph: bool


def read_costs(descriptor: int, offset: int, *, device: int, most: int) -> tuple[CostEntry, ...]:
    """The functions that were charged most on a device, largest first; none where the file can't be read."""
    size = lib.HV_LEARNED_COSTS * ffi.sizeof("struct hv_learned_cost")
    try:
        data = os.pread(descriptor, size, offset)
    except OSError:
        return ()
    # Compared as a whole: byte by byte it costs a millisecond for each allocation that has learned nothing.
    if len(data) < size or data == bytes(size):
        return ()
    table = ffi.from_buffer("struct hv_learned_cost[]", data)
    used = (entry for entry in table if entry.key and entry.cost_ns and entry.device == device)
    found = heapq.nlargest(most, used, key=lambda entry: int(entry.cost_ns) * int(entry.launches))
    return tuple(
        CostEntry(
            device=int(entry.device),
            name=_printable(bytes(ffi.buffer(entry.name))),
            cost_ns=int(entry.cost_ns),
            launches=int(entry.launches),
            samples=int(entry.samples),
            graph=entry.kind == 1,
        )
        for entry in found
        if int(entry.cost_ns) <= MOST_SECONDS * 1e9
    )


def _printable(name: bytes) -> str:
    text = name.split(b"\0", 1)[0].decode("ascii", errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)
