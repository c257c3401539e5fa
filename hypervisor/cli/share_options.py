"""The options that say which share of which GPU is wanted; the same for exec and allocate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from hypervisor.model import Compute, ComputePolicy, DeviceRequest, IsolationMode, QosClass, Resources
from hypervisor.model.quantity import QuantityError, parse_bytes, parse_compute

F = TypeVar("F", bound=Callable[..., Any])


class BytesParameter(click.ParamType[int]):
    """An amount of memory: 8Gi, 8192Mi, 24G."""

    name = "BYTES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_bytes(str(value))
        except QuantityError as error:
            self.fail(f"{error}.", param, ctx)


class ComputeParameter(click.ParamType[Compute]):
    """An amount of compute: 40% or 312 (TFLOPS)."""

    name = "COMPUTE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Compute:
        if isinstance(value, Compute):
            return value
        try:
            return parse_compute(str(value))
        except QuantityError as error:
            self.fail(f"{error}.", param, ctx)


BYTES = BytesParameter()
COMPUTE = ComputeParameter()

_OPTIONS = (
    click.option("--gpu", "gpus", multiple=True, metavar="GPU", help="UUID or index; repeatable [default: chosen]"),
    click.option("--compute", type=COMPUTE, help="Limit: percent of GPU time (40%) or TFLOPS (312) [default: none]"),
    click.option("--vram", type=BYTES, help="Limit of memory, for instance 8Gi [default: the whole card]"),
    click.option("--compute-request", type=COMPUTE, help="What is guaranteed [default: the limit]"),
    click.option("--vram-request", type=BYTES, help="What is guaranteed [default: the limit]"),
    click.option(
        "--isolation",
        type=click.Choice([mode.value for mode in IsolationMode]),
        default=IsolationMode.SOFT.value,
        show_default=True,
        help="How the limit is enforced",
    ),
    click.option(
        "--partition",
        default="",
        metavar="PROFILE",
        help="With --isolation partitioned the MIG profile, for instance 1g.10gb [default: what fits best]",
    ),
    click.option(
        "--qos",
        type=click.Choice([qos.value for qos in QosClass]),
        default=QosClass.MEDIUM.value,
        show_default=True,
        help="Weight among those who borrow idle time",
    ),
    click.option(
        "--policy",
        type=click.Choice([policy.value for policy in ComputePolicy]),
        default=ComputePolicy.HARD_CAP.value,
        show_default=True,
        help="Whether idle time of the card may be used",
    ),
)


def share_options(function: F) -> F:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def device_requests(
    *,
    gpus: tuple[str, ...],
    compute: Compute | None,
    vram: int | None,
    compute_request: Compute | None,
    vram_request: int | None,
    partition: str = "",
) -> tuple[DeviceRequest, ...]:
    """One request a GPU; without --gpu one device of the daemon's choice."""
    limits = Resources(compute=compute, vram_bytes=vram)
    requests = Resources(compute=compute_request, vram_bytes=vram_request)
    return tuple(DeviceRequest(gpu=gpu, requests=requests, limits=limits, partition=partition) for gpu in gpus or ("",))
