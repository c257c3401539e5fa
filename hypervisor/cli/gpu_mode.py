"""`hypervisor gpu-mode`: the process that sets the compute mode of a card; the daemon starts it."""

from __future__ import annotations

import json
import os

import click


@click.command(name="gpu-mode", hidden=True)
@click.argument("uuid")
@click.argument("mode", type=click.Choice(["default", "prohibited", "exclusive-process", "read"]))
def gpu_mode(*, uuid: str, mode: str) -> None:
    """Set the compute mode of the card UUID, read it back (or only read it), and print a line of JSON."""
    from hypervisor.gpu.compute_mode import set_mode

    click.echo(json.dumps(set_mode(uuid, mode, os.environ)))
