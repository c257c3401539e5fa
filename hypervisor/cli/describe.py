"""`hypervisor describe`: all that is known of one object, for people."""

from __future__ import annotations

import click

from hypervisor.cli.connection import connected, server_option
from hypervisor.cli.get import pick
from hypervisor.cli.source import KINDS, open_source

# Kind -> the kind that events call it by.
DESCRIBED = {"gpus": "GPU", "pods": "Allocation", "nodes": "Node", "workers": "Worker"}


@click.command()
@click.argument("kind", type=click.Choice([word for word, kind in KINDS.items() if kind in DESCRIBED]), metavar="KIND")
@click.argument("name")
@server_option
def describe(*, kind: str, name: str, server: str | None) -> None:
    """Print all that is known of one gpu, pod, node or worker, each figure with its source and age, and its events."""
    from hypervisor.cli.description import described
    from hypervisor.cli.tables import table_of

    wanted = KINDS[kind]
    with connected(server) as client:
        source = open_source(client)
        item = pick(source.objects(wanted), wanted, name)
        events = source.events_about(DESCRIBED[wanted], table_of(item).name(item))
        click.echo(described(item, events))
