"""`hypervisor release`: ends an allocation."""

from __future__ import annotations

import click

from hypervisor.cli.connection import admin_server_option, connected


@click.command()
@click.argument("name")
@admin_server_option
def release(*, name: str, server: str | None) -> None:
    """End the allocation NAME. Processes that still run keep their last limits and get no more memory."""
    from hypervisor.v1 import node_pb2, node_pb2_grpc

    with connected(server, admin=True) as client:
        stub = node_pb2_grpc.NodeServiceStub(client.channel)
        remaining = client.call(stub.Release, node_pb2.ReleaseRequest(allocation_id=name)).remaining
    click.echo(f"{name} released")
    if remaining:
        pids = ", ".join(str(process.host_pid) if process.HasField("host_pid") else "unknown" for process in remaining)
        click.echo(f"{len(remaining)} processes still run under its last limits: {pids}")
