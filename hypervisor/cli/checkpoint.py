"""`hypervisor checkpoint`: the process that asks the driver to freeze or thaw others; the daemon starts it."""

from __future__ import annotations

import json

import click


@click.command(name="checkpoint", hidden=True)
@click.argument("action", type=click.Choice(["freeze", "thaw"]))
@click.argument("pids", nargs=-1, required=True, type=int)
def checkpoint(*, action: str, pids: tuple[int, ...]) -> None:
    """Freeze or thaw processes, all or none, and print a line of JSON."""
    from hypervisor.workers.checkpoint.driver import carry_out

    click.echo(json.dumps(carry_out(action, pids)))
