"""Device ids as device plugins spell them, brought to the UUIDs of NVML."""

from __future__ import annotations

import re
from collections.abc import Mapping

# NVIDIA's time-slicing replicas (::3), GKE's indices, HAMi's numbered copies.
_REPLICA = re.compile(r"::\d+$")
_UUID = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-\d+)?", re.IGNORECASE)
_GKE = re.compile(r"nvidia(\d+)(?:/gi(\d+)|/vgpu\d+)?")
_LONGEST_NATIVE = 40  # GPU-/MIG- and a UUID


def uuid_of(device_id: str, by_index: Mapping[str, str]) -> str | None:
    """The UUID of a device id in lower case; None when it names no GPU. by_index: UUIDs by "0", and by "0/3" for GPU
    instance 3 of card 0."""
    plain = _REPLICA.sub("", device_id.strip())
    match = _UUID.fullmatch(plain)
    if match is not None:
        return match[1].lower()
    match = _GKE.fullmatch(plain)
    if match is None:
        return by_index[plain].lower() if plain in by_index else None
    key = f"{match[1]}/{match[2]}" if match[2] else match[1]
    return by_index[key].lower() if key in by_index else None


def is_third_party(device_id: str) -> bool:
    """Longer than any id of NVIDIA's own plugin: one of the sharing plugins made it."""
    return len(_REPLICA.sub("", device_id)) > _LONGEST_NATIVE
