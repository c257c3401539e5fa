"""`hypervisor allocate`: a share that is kept until it is released by name."""

from __future__ import annotations

from typing import Any

import click

from hypervisor.cli.connection import admin_server_option, connected
from hypervisor.cli.output import as_dict, output_option, structured
from hypervisor.cli.share_options import device_requests, share_options
from hypervisor.model import AllocationSpec, ComputePolicy, IsolationMode, Owner, OwnerKind, QosClass


@click.command()
@click.argument("name")
@share_options
@click.option("--dry-run", is_flag=True, help="Check everything and grant nothing")
@output_option
@admin_server_option
def allocate(
    *,
    name: str,
    isolation: str,
    qos: str,
    policy: str,
    dry_run: bool,
    output: str,
    server: str | None,
    **share: Any,
) -> None:
    """Grant NAME a share of a GPU, for instance

    hypervisor allocate trainer --gpu 0 --compute 40% --vram 8Gi

    It is kept until 'hypervisor release NAME'. A share for one command is easier with 'hypervisor exec'.
    """
    from hypervisor.cli.tables import ALLOCATION
    from hypervisor.rpc.convert.requests import spec_to_proto
    from hypervisor.v1 import node_pb2, node_pb2_grpc

    spec = AllocationSpec(
        allocation_id=name,
        owner=Owner(kind=OwnerKind.NAMED, name=name),
        devices=device_requests(**share),
        isolation=IsolationMode(isolation),
        qos=QosClass(qos),
        policy=ComputePolicy(policy),
    )
    with connected(server, admin=True) as client:
        stub = node_pb2_grpc.NodeServiceStub(client.channel)
        request = node_pb2.AllocateRequest(spec=spec_to_proto(spec), dry_run=dry_run)
        answer = client.call(stub.Allocate, request)
    if output in ("json", "yaml"):
        click.echo(structured(as_dict(answer), output))
    elif output == "name":
        click.echo(ALLOCATION.name(answer.allocation))
    else:
        done = "would be granted" if dry_run else "had been granted before" if answer.existed else "granted"
        click.echo(f"{name} {done}: {granted_words(answer.allocation)}")


def granted_words(allocation: Any) -> str:
    """What an allocation may use, in words."""
    from hypervisor.cli import figures

    return "; ".join(
        f"{figures.compute(device.limits)} compute and {figures.vram(device.limits)} VRAM of GPU {device.gpu_index}"
        for device in allocation.devices
    )
