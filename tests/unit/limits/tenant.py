"""The other side of the files in tests: a tenant that writes a usage file as a limiter does, or as no limiter would."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from hypervisor.limits._abi import ffi, lib

DEVICES, OCCUPANCY, MESSAGES, SLOTS = 4096, 8192, 12288, 163840
SLOT_BYTES = 1088
CONTEXTS, CONTEXTS_BYTES = 786432, 128
TOTAL_EPOCH = 1 << 44


class Tenant:
    """Writes single words; offsets are those of ABI 1.0, written out here a second time on purpose."""

    def __init__(self, usage: Path) -> None:
        with usage.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)

    def close(self) -> None:
        self.memory.close()

    def put(self, offset: int, *words: int) -> None:
        self.memory[offset : offset + 8 * len(words)] = struct.pack(f"<{len(words)}Q", *words)

    def get(self, offset: int) -> int:
        return int(struct.unpack_from("<Q", self.memory, offset)[0])

    def total(self, device: int = 0) -> int:
        return self.get(DEVICES + 256 * device) % TOTAL_EPOCH

    def set_total(self, held: int, device: int = 0) -> None:
        epoch = self.get(DEVICES + 256 * device) // TOTAL_EPOCH
        self.put(DEVICES + 256 * device, (epoch + 1) % 2**20 * TOTAL_EPOCH + held)
        self.put(DEVICES + 256 * device + 8, max(held, self.get(DEVICES + 256 * device + 8)))

    def state(self, slot: int) -> int:
        return self.get(SLOTS + SLOT_BYTES * slot)

    def attach(
        self,
        slot: int,
        *,
        pid: int,
        start: int,
        namespace: int,
        held: int = 0,
        in_flight: int = 0,
        context: int = 0,
        denials: int = 0,
        host: int = 0,
        phase: int = lib.HV_SLOT_LIVE,
        occupied: bool = True,
    ) -> None:
        """Claim a slot and account bytes on device 0; the total follows."""
        base = SLOTS + SLOT_BYTES * slot
        if occupied:
            place = OCCUPANCY + slot // 64 * 8
            self.put(place, self.get(place) | 1 << slot % 64)
        self.put(base + 8, namespace << 32 | pid, start)
        self.put(base + 40, host)
        self.put(base + 64, held, in_flight, context, 0, 0, denials)
        self.put(base, self.get(base) >> 8 << 8 | phase)
        self.set_total(self.total() + held)

    def account(self, slot: int, *, held: int, context: int = 0) -> None:
        """Hold so much from now on."""
        base = SLOTS + SLOT_BYTES * slot + 64
        self.set_total(self.total() - self.get(base) + held)
        self.put(base, held)
        self.put(base + 16, context)

    def open_contexts(self, slot: int, device: int = 0) -> int:
        """Open and close the word, as before and after a change of what stands for contexts; what had been given up
        goes, which the account is not told here."""
        sequence, count = self.state(slot) >> 8, self.get(self.contexts_place(slot, device)) >> 29 & 0x1FFF
        self.put(self.contexts_place(slot, device), sequence << 42 | (count % (2**13 - 1) + 1) << 29)
        return self.get(self.contexts_place(slot, device))

    def contexts_place(self, slot: int, device: int = 0) -> int:
        return CONTEXTS + CONTEXTS_BYTES * slot + 8 * device

    def deny(self, slot: int, count: int) -> None:
        place = SLOTS + SLOT_BYTES * slot + 64 + 40
        self.put(place, self.get(place) + count)

    def say(self, sequence: int, code: int, text: bytes, pid: int = 7) -> None:
        """A message in the ring, as the limiter leaves it there."""
        place = MESSAGES + 256 + 256 * (sequence % 64)
        self.put(place, 0, 1, pid << 32 | code)
        self.memory[place + 24 : place + 24 + len(text) + 1] = text + b"\0"
        self.put(place, sequence)
        self.put(MESSAGES, sequence + 1)


def own_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def own_start_time() -> int:
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


def attach_self(tenant: Tenant, slot: int = 0, **more: int) -> None:
    """A slot of the process that runs the test."""
    tenant.attach(slot, pid=os.getpid(), start=own_start_time(), namespace=own_namespace(), **more)


def size_of(struct_name: str) -> int:
    return int(ffi.sizeof(struct_name))
