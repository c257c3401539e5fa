"""`hypervisor snapshot` and `resume`: the VRAM of an allocation to host memory and back."""

from __future__ import annotations

import click

from hypervisor.cli.connection import admin_server_option, connected
from hypervisor.model.quantity import format_bytes

_worker = click.option("--worker", is_flag=True, help="NAME is a worker, whose allocation is meant")


@click.command()
@click.argument("name")
@_worker
@admin_server_option
def snapshot(*, name: str, worker: bool, server: str | None) -> None:
    """Freeze the allocation NAME: its processes wait in their next CUDA call, and what they hold on GPUs moves to the
    host's memory until 'hypervisor resume NAME'."""
    from hypervisor.v1 import node_pb2, node_pb2_grpc

    subject = {"worker_id" if worker else "allocation_id": name}
    with connected(server, admin=True) as client:
        stub = node_pb2_grpc.NodeServiceStub(client.channel)
        found = client.call(stub.Snapshot, node_pb2.SnapshotRequest(**subject))
    pids = ", ".join(map(str, found.pids))
    click.echo(f"{name} frozen: {format_bytes(found.bytes)} of VRAM are in host memory; processes {pids}")


@click.command()
@click.argument("name")
@_worker
@admin_server_option
def resume(*, name: str, worker: bool, server: str | None) -> None:
    """Bring back what 'hypervisor snapshot NAME' has moved to the host, and let its processes go on."""
    from hypervisor.v1 import node_pb2, node_pb2_grpc

    subject = {"worker_id" if worker else "allocation_id": name}
    with connected(server, admin=True) as client:
        stub = node_pb2_grpc.NodeServiceStub(client.channel)
        client.call(stub.Resume, node_pb2.ResumeRequest(**subject))
    click.echo(f"{name} goes on")
