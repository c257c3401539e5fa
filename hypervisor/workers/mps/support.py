"""Which cards and drivers can have MPS, and how many clients; pure."""

from __future__ import annotations

from hypervisor.model import DeviceObservation

# CUDA's compute capabilities: Volta is 7.0 and not 7.5, which is Turing.
VOLTA = (7, 0)
_MORE_CLIENTS_CUDA = (13, 1)


def why_not(device: DeviceObservation, *, program: str) -> str:
    """Why a card can't be shared by MPS; "" when it can."""
    if not program:
        return "nvidia-cuda-mps-control is not installed, or mps_program names no program"
    identity = device.identity
    if identity.partition is not None:
        return "it is a MIG instance, and MPS is not mixed with MIG"
    capability = capability_of(identity.compute_capability)
    if capability is None:
        return "its compute capability is not known"
    if capability < VOLTA:
        return (
            f"{identity.architecture or 'its architecture'} (compute capability {identity.compute_capability}) is "
            "older than Volta, and MPS takes no limits there"
        )
    return ""


def most_clients(compute_capability: str, cuda_version: str) -> int:
    """Clients that a card's server takes at the same time: 16 before Volta, 48 since, 60 from CUDA 13.1 on."""
    capability = capability_of(compute_capability)
    if capability is None or capability < VOLTA:
        return 16
    cuda = capability_of(cuda_version)
    return 60 if cuda is not None and cuda >= _MORE_CLIENTS_CUDA else 48


def capability_of(text: str) -> tuple[int, int] | None:
    """ "9.0" as numbers; None for what is no version."""
    major, _, minor = text.partition(".")
    if not major.isdecimal() or not (minor or "0").isdecimal():
        return None
    return int(major), int(minor or 0)
