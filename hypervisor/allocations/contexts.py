"""What a CUDA context is taken to need before it is measured: so much is reserved when a program makes one.

Too little, and a Pod goes over its limit until the measurement; so the assumption is the largest that a context of the
GPU's architecture was seen to take, and then the largest that was measured on this node for the same model and driver.
What was measured is kept over restarts; when the file can't be read or written, the assumption is the larger one again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hypervisor.model import Inventory

_MEBIBYTE = 2**20
# Of a context with the libraries that programs load first, rounded up; drivers differ by a fifth.
_ARCHITECTURES: Mapping[str, int] = {
    "maxwell": 320 * _MEBIBYTE,
    "pascal": 384 * _MEBIBYTE,
    "volta": 512 * _MEBIBYTE,
    "turing": 384 * _MEBIBYTE,
    "ampere": 640 * _MEBIBYTE,
    "ada": 640 * _MEBIBYTE,
    "hopper": 768 * _MEBIBYTE,
    "blackwell": 1024 * _MEBIBYTE,
}
LARGEST_BYTES = 1024 * _MEBIBYTE
# A process that loads a lot right after its context must not shut small Pods out for ever.
_MOST_OF_ESTIMATE = 2


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By "model, driver version": the largest context measured, in bytes."""

    measured_bytes: dict[str, int]


def estimate(architecture: str) -> int:
    """Bytes that no context on a GPU of this architecture exceeds, as far as is known; "" and unknown ones too."""
    return _ARCHITECTURES.get(architecture.lower(), LARGEST_BYTES)


class ContextSizes:
    """Estimates and measurements by GPU UUID. The only one who writes the file at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._measured = _load(path)
        self._kinds: dict[str, tuple[str, int]] = {}  # by UUID: model and driver, and the estimate

    def see(self, inventory: Inventory) -> None:
        """Remember which GPU is of what kind."""
        for device in inventory.devices:
            kind = f"{device.identity.model}, {inventory.system.driver_version}"
            self._kinds[device.identity.uuid] = (kind, estimate(device.identity.architecture))

    def bytes_for(self, uuid: str) -> int | None:
        """What to reserve for a context on a GPU; None before it was seen."""
        known = self._kinds.get(uuid)
        if known is None:
            return None
        kind, estimated = known
        return min(self._measured.get(kind, estimated), estimated * _MOST_OF_ESTIMATE)

    def learn(self, uuid: str, measured_bytes: int) -> None:
        """One context was measured, with what its program had loaded by then."""
        known = self._kinds.get(uuid)
        if known is None or measured_bytes <= self._measured.get(known[0], 0):
            return
        self._measured[known[0]] = measured_bytes
        unfinished = self._path.with_name(f".{self._path.name}.unfinished")
        with contextlib.suppress(OSError):  # lost with the next start, and then the estimate holds
            unfinished.write_bytes(msgspec.json.encode(_Kept(self._measured)))
            unfinished.replace(self._path)


def _load(path: Path) -> dict[str, int]:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept).measured_bytes
    except (OSError, msgspec.MsgspecError):
        return {}
    return {kind: size for kind, size in kept.items() if size > 0}
