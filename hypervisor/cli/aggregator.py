"""`hypervisor aggregator`."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hypervisor.cli.failure import CommandError
from hypervisor.config import runtime_directory, state_directory

if TYPE_CHECKING:
    from hypervisor.aggregator.selectors import NodeSelector


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
@click.option(
    "--tls-dir",
    default="",
    envvar="HYPERVISOR_TLS_DIR",
    metavar="DIR",
    help="Directory of ca.crt, tls.crt and tls.key for gRPC on TCP; read again when they change.",
)
@click.option(
    "--token-listen",
    multiple=True,
    metavar="HOST:PORT",
    help="Address whose callers show a ServiceAccount token instead of a certificate; may be given several times.",
)
@click.option(
    "--reporter-account",
    multiple=True,
    default=("tensor-fusion-sys/tensor-fusion-hypervisor-sa",),
    show_default=True,
    metavar="NAMESPACE/NAME",
    help="ServiceAccount whose Pods may report the node that they run on; may be given several times.",
)
@click.option(
    "--reader-account",
    multiple=True,
    metavar="NAMESPACE/NAME",
    help="ServiceAccount that may read; may be given several times.",
)
@click.option(
    "--kubeconfig",
    default="",
    envvar="HYPERVISOR_KUBECONFIG",
    metavar="FILE",
    help="How to reach the API server; by default the service account of the Pod that this runs in.",
)
@click.option(
    "--requests-per-second",
    type=click.FloatRange(1, 1_000_000),
    default=500.0,
    show_default=True,
    help="Calls that one peer may make in a second; for a moment twice as many.",
)
@click.option(
    "--streams-per-peer",
    type=click.IntRange(1, 100_000),
    default=1_000,
    show_default=True,
    help="Watches that one peer may have open.",
)
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
    "--pool",
    "pool_texts",
    multiple=True,
    metavar="NAME=LABEL=VALUE[,LABEL=VALUE...]",
    help="A pool of the nodes with these labels; may be given several times. In a cluster GPUPool objects do this.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 9),
    default=1,
    show_default=True,
    help="How many aggregators run side by side; more than one need --kubernetes.",
)
@click.option("--kubernetes", is_flag=True, help="Keep objects and events in the API server instead of in a file.")
@click.option(
    "--namespace", default="", help="Namespace of the lease and of the hypervisor's Pods; by default our own."
)
@click.option("--identity", default="", help="Name of this replica; by default the host's name and a random part.")
@click.option(
    "--advertise", default="", metavar="ADDRESS", help="Where others reach this replica; by default the first --listen."
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(1, 300),
    default=15.0,
    show_default=True,
    help="How long a leader that is silent stays the leader.",
)
@click.option(
    "--writes-per-second",
    type=click.FloatRange(1, 100_000),
    default=200.0,
    show_default=True,
    help="Most objects and statuses that are written to the API server.",
)
@click.option(
    "--events-per-second",
    type=click.FloatRange(1, 100_000),
    default=50.0,
    show_default=True,
    help="Most events that are written to the API server; four times as many at once.",
)
@click.option(
    "--hypervisor-max-crash-count",
    type=click.IntRange(0, 1000),
    default=5,
    show_default=True,
    help="Restarts of a hypervisor's container beyond which its Pod is made anew; 0: never.",
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
    tls_dir: str,
    token_listen: tuple[str, ...],
    reporter_account: tuple[str, ...],
    reader_account: tuple[str, ...],
    kubeconfig: str,
    requests_per_second: float,
    streams_per_peer: int,
    insecure: bool,
    allow_simulated: bool,
    heartbeat_seconds: float,
    event_retention_days: float,
    event_retention_count: int,
    max_nodes: int,
    pool_texts: tuple[str, ...],
    replicas: int,
    kubernetes: bool,
    namespace: str,
    identity: str,
    advertise: str,
    lease_seconds: float,
    writes_per_second: float,
    events_per_second: float,
    hypervisor_max_crash_count: int,
    log_level: str,
) -> None:
    """Collect the reports of many nodes, and answer for all of them."""
    from hypervisor.aggregator.kubernetes.replica import serve_replica
    from hypervisor.aggregator.logs import set_up
    from hypervisor.aggregator.server import serve
    from hypervisor.aggregator.settings import AggregatorSettings, KubernetesSettings, LeaseTimes, StoreLimits
    from hypervisor.aggregator.store import StoreError
    from hypervisor.rpc.listening import ListenError

    if store is not None and kubernetes:
        raise click.UsageError("--store and --kubernetes exclude each other; leave one out")
    if replicas > 1 and not kubernetes:
        raise click.UsageError(
            f"--replicas {replicas}: a SQLite file serves one aggregator; use --kubernetes, or --replicas 1"
        )
    addresses = listen or (f"unix:{runtime_directory() / 'aggregator.sock'}",)
    settings = AggregatorSettings(
        listen=addresses,
        store=store or state_directory() / "aggregator" / "store.db",
        http_listen=http_listen,
        tls_dir=tls_dir,
        token_listen=token_listen,
        reporter_accounts=reporter_account,
        reader_accounts=reader_account,
        kubeconfig=kubeconfig,
        requests_per_second=requests_per_second,
        streams_per_peer=streams_per_peer,
        insecure=insecure,
        allow_simulated=allow_simulated,
        heartbeat_seconds=heartbeat_seconds,
        event_retention_seconds=event_retention_days * 86_400,
        event_retention_count=event_retention_count,
        max_nodes=max_nodes,
        pools=_pools(pool_texts),
        kubernetes=KubernetesSettings(
            kubeconfig=kubeconfig,
            namespace=namespace,
            identity=identity or f"{socket.gethostname()}_{secrets.token_hex(4)}",
            address=advertise or addresses[0],
            lease=LeaseTimes(duration=lease_seconds, renew_within=lease_seconds * 2 / 3, retry=lease_seconds * 2 / 15),
            limits=StoreLimits(
                writes_per_second=writes_per_second,
                events_per_second=events_per_second,
                events_at_once=4 * events_per_second,
            ),
            max_crash_count=hypervisor_max_crash_count,
        )
        if kubernetes
        else None,
    )
    set_up(log_level)

    def on_ready(addresses: tuple[str, ...], http: str) -> None:
        # Scripts and tests read these lines to learn the ports that were given.
        for address in addresses:
            click.echo(f"gRPC on {address}")
        click.echo(f"HTTP on {http}")

    try:
        if settings.kubernetes is not None:
            asyncio.run(serve_replica(settings, settings.kubernetes, on_ready=on_ready))
        else:
            asyncio.run(serve(settings, on_ready=on_ready))
    except (ListenError, StoreError) as error:
        raise CommandError(str(error)) from error


def _pools(texts: tuple[str, ...]) -> Mapping[str, NodeSelector]:
    """Selectors by pool, from NAME=LABEL=VALUE[,...]."""
    from hypervisor.aggregator.selectors import SelectorError, from_text

    found = {}
    for text in texts:
        name, equals, selector = text.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--pool {text}: NAME=LABEL=VALUE is needed")
        try:
            found[name] = from_text(selector)
        except SelectorError as error:
            raise click.UsageError(f"--pool {text}: {error}") from error
    return found
