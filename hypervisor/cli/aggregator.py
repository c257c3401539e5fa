"""`hypervisor aggregator`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from hypervisor.cli.failure import CommandError
from hypervisor.config import runtime_directory, state_directory


@click.command()
@click.option(
    "--listen",
    multiple=True,
    metavar="ADDRESS",
    help="Address of the gRPC API, unix:PATH or HOST:PORT; may be given several times. "
    "By default unix:aggregator.sock in the runtime directory.",
)
@click.option("--store", type=click.Path(path_type=Path), help="SQLite file that keeps objects and events.")
@click.option("--http-listen", default="127.0.0.1:8002", show_default=True, help="Address of /metrics, HOST:PORT.")
@click.option("--insecure", is_flag=True, help="Allow gRPC on TCP without encryption and without authentication.")
@click.option("--allow-simulated", is_flag=True, help="Take nodes whose GPUs are simulated.")
@click.option(
    "--heartbeat-seconds",
    type=click.FloatRange(0.1, 300),
    default=5.0,
    show_default=True,
    help="Time between two heartbeats of a node; late after 2.5 of them, lost after 12.",
)
@click.option(
    "--event-retention-days",
    type=click.FloatRange(0.01, 3650),
    default=7.0,
    show_default=True,
    help="How long events are kept.",
)
@click.option(
    "--event-retention-count",
    type=click.IntRange(1000, 100_000_000),
    default=1_000_000,
    show_default=True,
    help="How many events are kept at most.",
)
@click.option(
    "--max-nodes", type=click.IntRange(1, 100_000), default=20_000, show_default=True, help="Most nodes that are taken."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least severe log lines that are written.",
)
def aggregator(
    *,
    listen: tuple[str, ...],
    store: Path | None,
    http_listen: str,
    insecure: bool,
    allow_simulated: bool,
    heartbeat_seconds: float,
    event_retention_days: float,
    event_retention_count: int,
    max_nodes: int,
    log_level: str,
) -> None:
    """Collect the reports of many nodes, and answer for all of them."""
    from hypervisor.aggregator.logs import set_up
    from hypervisor.aggregator.server import serve
    from hypervisor.aggregator.settings import AggregatorSettings
    from hypervisor.aggregator.store import StoreError
    from hypervisor.rpc.listening import ListenError

    settings = AggregatorSettings(
        listen=listen or (f"unix:{runtime_directory() / 'aggregator.sock'}",),
        store=store or state_directory() / "aggregator" / "store.db",
        http_listen=http_listen,
        insecure=insecure,
        allow_simulated=allow_simulated,
        heartbeat_seconds=heartbeat_seconds,
        event_retention_seconds=event_retention_days * 86_400,
        event_retention_count=event_retention_count,
        max_nodes=max_nodes,
    )
    set_up(log_level)

    def on_ready(addresses: tuple[str, ...], http: str) -> None:
        # Scripts and tests read these lines to learn the ports that were given.
        for address in addresses:
            click.echo(f"gRPC on {address}")
        click.echo(f"HTTP on {http}")

    try:
        asyncio.run(serve(settings, on_ready=on_ready))
    except (ListenError, StoreError) as error:
        raise CommandError(str(error)) from error
