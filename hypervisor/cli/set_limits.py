"""`hypervisor set-limits`: other limits for what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hypervisor.cli.allocate import granted_words
from hypervisor.cli.connection import admin_server_option, connected
from hypervisor.cli.failure import EXIT_USAGE, CommandError
from hypervisor.cli.output import as_dict, output_option, structured
from hypervisor.cli.share_options import BYTES, COMPUTE
from hypervisor.model import Compute, DeviceRequest, Resources

if TYPE_CHECKING:
    from hypervisor.rpc.client import Client
    from hypervisor.v1 import types_pb2


@click.command("set-limits")
@click.argument("name")
@click.option("--gpu", metavar="GPU", help="UUID or index of the one device to change [default: all of it]")
@click.option("--compute", type=COMPUTE, help="New limit: percent of GPU time (40%) or TFLOPS (312)")
@click.option("--vram", type=BYTES, help="New limit of memory, for instance 8Gi")
@click.option("--compute-request", type=COMPUTE, help="What is guaranteed from now on")
@click.option("--vram-request", type=BYTES, help="What is guaranteed from now on")
@output_option
@admin_server_option
def set_limits(
    *,
    name: str,
    gpu: str | None,
    compute: Compute | None,
    vram: int | None,
    compute_request: Compute | None,
    vram_request: int | None,
    output: str,
    server: str | None,
) -> None:
    """Change the limits of NAME while it runs; what is left out stays as it is.

    A limit below what is in use takes nothing away: nothing more is granted until the use is below it.
    """
    from hypervisor.cli.tables import ALLOCATION

    if compute is None and vram is None and compute_request is None and vram_request is None:
        raise CommandError(
            "set-limits: nothing to change; give --compute, --vram, --compute-request or --vram-request",
            status=EXIT_USAGE,
        )
    change = DeviceRequest(
        requests=Resources(compute=compute_request, vram_bytes=vram_request),
        limits=Resources(compute=compute, vram_bytes=vram),
    )
    with connected(server, admin=True) as client:
        allocation = changed_limits(client, name, gpu, change)
    if output in ("json", "yaml"):
        click.echo(structured(as_dict(allocation), output))
    elif output == "name":
        click.echo(ALLOCATION.name(allocation))
    else:
        click.echo(f"{name} has {granted_words(allocation)} now")


def changed_limits(client: Client, name: str, gpu: str | None, change: DeviceRequest) -> types_pb2.Allocation:
    """The allocation after a change of one device, or of all (None). Raises CommandError and what the client raises."""
    from hypervisor.rpc.convert.requests import device_to_proto
    from hypervisor.v1 import node_pb2, node_pb2_grpc

    stub = node_pb2_grpc.NodeServiceStub(client.channel)
    found = client.call(stub.ListAllocations, node_pb2.ListAllocationsRequest(allocation_id=name)).allocations
    if not found:
        raise CommandError(f"there is no allocation {name!r}; see 'hypervisor get pods'")
    devices = [
        device_to_proto(change if gpu is None or is_device(device, gpu) else DeviceRequest())
        for device in found[0].devices
    ]
    if gpu is not None and not any(is_device(device, gpu) for device in found[0].devices):
        raise CommandError(f"{name} has no share of GPU {gpu}; see 'hypervisor describe pod {name}'")
    request = node_pb2.UpdateLimitsRequest(allocation_id=name, devices=devices)
    changed: types_pb2.Allocation = client.call(stub.UpdateLimits, request).allocation
    return changed


def is_device(device: types_pb2.AllocatedDevice, gpu: str) -> bool:
    """Whether a UUID or an index means this device."""
    return gpu.lower() == device.gpu_uuid.lower() or gpu == str(device.gpu_index)
