"""The line of moments in a usage file: at which of them an allocation had a long launch under way, by its own account.

Long launches are charged what they turn out to take, when they have ended; where in time that lies is on this line.
"""

from __future__ import annotations

import os
import struct

from hypervisor.limits._abi import ffi, lib

TICK_NS = 1_000_000
TICKS_A_WORD = 48
WORDS = lib.HV_COVERAGE_WORDS
TICKS_A_ROUND = WORDS * TICKS_A_WORD
_ROUNDS = 2**16
_STRIDE = ffi.sizeof("struct hv_coverage")


def covered_ns(descriptor: int, offset: int, device: int, begin_ns: int, end_ns: int) -> int:
    """Nanoseconds of [begin, end) that are laid down for a device; what is older than the line holds counts as none.

    Whatever the file holds, at most the time asked for. OSError where it can't be read.
    """
    tick, end = _tick(begin_ns), _tick(end_ns)
    tick = max(tick, end - TICKS_A_ROUND)
    count = 0
    while tick < end:
        place, bit = divmod(tick % TICKS_A_ROUND, TICKS_A_WORD)
        # To the end of what is asked for, or of the ring.
        words = min((bit + end - tick + TICKS_A_WORD - 1) // TICKS_A_WORD, WORDS - place)
        data = os.pread(descriptor, 8 * words, offset + device * _STRIDE + 8 * place)
        for (word,) in struct.iter_unpack("<Q", data[: len(data) // 8 * 8]):
            bits = min(TICKS_A_WORD - bit, end - tick)
            if word >> TICKS_A_WORD == tick // TICKS_A_ROUND % _ROUNDS:
                count += (word >> bit & (1 << bits) - 1).bit_count()
            tick, bit = tick + bits, 0
        if len(data) < 8 * words:
            break  # truncated, which others find out
    return count * TICK_NS


def _tick(ns: int) -> int:
    """As the limiter rounds: each tick belongs to the interval that its middle lies in."""
    return (ns + TICK_NS // 2) // TICK_NS
