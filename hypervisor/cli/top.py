"""`hypervisor top`: GPUs and Pods of a node, or GPUs and nodes of a cluster, as they are now."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from hypervisor.cli.connection import connected, server_option
from hypervisor.cli.failure import EXIT_UNREACHABLE, EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from hypervisor.cli.source import Source
    from hypervisor.model import Resources
    from hypervisor.rpc.client import Client
    from hypervisor.top import LimitChange, Outside

_FIRST_ANSWER_SECONDS = 10.0
_PLAIN_WIDTH = 160


@click.command()
@server_option
@click.option(
    "--admin-server", "admin", metavar="ADDRESS", envvar="HYPERVISOR_ADMIN_SERVER", help="Where limits are changed"
)
@click.option(
    "--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, help="Seconds between points"
)
@click.option("--once", is_flag=True, help="Print once and end; also when the output is not a terminal")
@click.option("--no-colour", "--no-color", "plain", is_flag=True, envvar="NO_COLOR", help="No colours")
def top(*, server: str | None, admin: str | None, interval: float, once: bool, plain: bool) -> None:
    """Show GPUs and who uses them: shares against limits, waits, memory, health; press ? for the keys.

    On a node below the GPUs stand the Pods, whose limits can be changed with l; in a cluster the nodes. Where the
    output is not a terminal, all is printed once as text.
    """
    from hypervisor.cli.source import open_source

    with connected(server) as client:
        source = open_source(client)
        outside = _outside(client, source, admin)
        if once or not sys.stdout.isatty():
            click.echo(_printed(outside, interval))
            return
        _show(outside, interval, colour=not plain)


def _show(outside: Outside, interval: float, *, colour: bool) -> None:
    from hypervisor.top import NoTerminal, show

    if not sys.stdin.isatty():
        raise CommandError(
            "top reads keys from its input, which is no terminal; print once with --once", status=EXIT_USAGE
        )
    try:
        show(outside, interval=interval, colour=colour)
    except NoTerminal as error:
        raise CommandError(str(error)) from error


def _printed(outside: Outside, interval: float) -> str:
    from hypervisor.top import Feed, plain_frame
    from hypervisor.top.screen import glyphs_of_locale

    feed = Feed(outside, changed=lambda: None)
    feed.start()
    answered = feed.wait_known(_FIRST_ANSWER_SECONDS)
    content = feed.content(interval=interval)
    if not content.known:
        why = (
            content.trouble
            if answered
            else f"{outside.address} has not told its GPUs within {_FIRST_ANSWER_SECONDS:g} s"
        )
        raise CommandError(why, status=EXIT_UNREACHABLE)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() else shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns
    return plain_frame(content, width=max(width, 40), glyphs=glyphs_of_locale())


@dataclass(frozen=True, slots=True)
class _Told:
    """A change of a watch, as the view reads it."""

    type: str
    item: Any


@contextmanager
def _answers() -> Iterator[None]:
    """What goes wrong with the server, as the view's own words."""
    from hypervisor.model import Refusal
    from hypervisor.rpc.client import CallFailed, ServerUnreachable
    from hypervisor.top.interfaces import Unavailable

    try:
        yield
    except (ServerUnreachable, CallFailed, Refusal, CommandError) as error:
        raise Unavailable(str(error)) from error


def _outside(client: Client, source: Source, admin: str | None) -> Outside:
    """The view's way to the server."""
    from hypervisor.cli.cluster_source import ClusterSource
    from hypervisor.top import Outside
    from hypervisor.top.interfaces import LISTED

    cluster = isinstance(source, ClusterSource)

    def watch(kind: str) -> Iterator[Any]:
        with _answers():
            for item in source.objects(kind):
                yield _Told("ADDED", item)
            yield _Told(LISTED, None)
            yield from source.watch(kind)

    def describe(kind: str, message: Any) -> list[str]:
        from hypervisor.cli.describe import DESCRIBED
        from hypervisor.cli.description import described
        from hypervisor.cli.tables import table_of

        with _answers():
            events = source.events_about(DESCRIBED[kind], table_of(message).name(message))
        return described(message, events).split("\n")

    def limit_change(name: str, gpu_uuid: str, text: str) -> LimitChange:
        return _limit_change(admin, name, gpu_uuid, text)

    return Outside(
        address=str(client.address), watch=watch, describe=describe, limit_change=limit_change, cluster=cluster
    )


def _limit_change(admin: str | None, name: str, gpu_uuid: str, text: str) -> LimitChange:
    """What the user typed, as a change that can be made. Raises ValueError."""
    from hypervisor.cli.allocate import granted_words
    from hypervisor.cli.set_limits import changed_limits
    from hypervisor.model import DeviceRequest
    from hypervisor.top import LimitChange

    limits = typed_limits(text)

    def apply() -> str:
        with _answers(), connected(admin, admin=True) as client:
            changed = changed_limits(client, name, gpu_uuid, DeviceRequest(limits=limits))
        return f"{name} has {granted_words(changed)} now"

    return LimitChange(words=f"give {name} {text.strip()} from now on?", apply=apply)


def typed_limits(text: str) -> Resources:
    """Limits as people type them: compute as 40% or TFLOPS, memory with a unit. Raises ValueError."""
    from hypervisor.model import Resources
    from hypervisor.model.quantity import QuantityError, parse_bytes, parse_compute

    found = Resources()
    for word in text.split():
        try:
            found = replace(found, compute=parse_compute(word))
        except QuantityError:
            # A number without a unit is compute; anything else that is not a percentage must be memory.
            if word.endswith("%"):
                raise
            found = replace(found, vram_bytes=parse_bytes(word))
    if found == Resources():
        raise ValueError("nothing was typed; write compute as 40% or 312 (TFLOPS), memory as 8Gi")
    return found
