"""Percentages as the hardware takes them, and which shares a card's server can enforce; pure.

A server has one default for all its clients, and what a client asks for only tightens it. So before MPS v3 a card is
cut into equal shares: the largest limit is the server's default and holds for everybody; a smaller one binds only
programs that keep their environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypervisor.model import DeviceGrant
from hypervisor.model.allocation import SHARE_FULL_PPM

# A percentage is rounded down to the nearest thread count that the hardware supports (NVIDIA, Multi-Process Service,
# "Volta MPS Execution Resource Provisioning"). Which counts those are is not documented. SMs in pairs is what was
# measured: NVIDIA's guide to limits per GPU with MPS (Dynamo documentation, "Verified Behavior") has 46, 94 and 140 SMs
# for 25, 50 and 75 % of an RTX PRO 6000's 188, and 4 for 10 % of a T4's 40 are reported in k8s-device-plugin#679. No
# source tells architectures apart, so neither do we: the groups of 8 and 4 SMs are of static partitions alone.
SMS_APART = 2
MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What each client of a card's server may use. memory_mebibytes None: the card."""

    percent: int
    memory_mebibytes: int | None


def cut_of(grants: Iterable[DeviceGrant]) -> Cut | None:
    """The cut of a card by the grants on it; None without any."""
    found = list(grants)
    if not found:
        return None
    memory = [grant.limit_vram_bytes for grant in found]
    bounded = [amount for amount in memory if amount is not None]
    return Cut(
        percent=max(percent_of(grant) for grant in found),
        memory_mebibytes=max(bounded) // MEBIBYTE if len(bounded) == len(memory) else None,
    )


def percent_of(grant: DeviceGrant) -> int:
    """A grant's limit as MPS takes it, 1 to 100; a part of a percent counts as a whole one, as the product does."""
    return min(max(-(-grant.limit_share_ppm * 100 // SHARE_FULL_PPM), 1), 100)


def is_cut(grant: DeviceGrant, cut: Cut) -> bool:
    """Whether the server's default is this grant's own limit, so that it holds whatever the client does."""
    memory = None if grant.limit_vram_bytes is None else grant.limit_vram_bytes // MEBIBYTE
    return percent_of(grant) == cut.percent and memory == cut.memory_mebibytes


def effective_sms(percent: int, sm_count: int) -> int:
    """The SMs that a percentage comes to; the smallest group at least, for a client can't be given none."""
    groups = sm_count * percent // 100 // SMS_APART
    return sm_count if percent >= 100 else min(max(groups, 1) * SMS_APART, sm_count)


def effective_percent(percent: int, sm_count: int | None) -> float:
    """The percentage that is in force, as the hardware rounds it; the one asked for where the SMs are not known."""
    if not sm_count:
        return float(percent)
    return effective_sms(percent, sm_count) * 100 / sm_count
