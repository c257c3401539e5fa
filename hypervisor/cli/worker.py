"""`hypervisor worker`: starts and stops supervised commands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hypervisor.cli.connection import admin_server_option, connected
from hypervisor.cli.failure import CommandError
from hypervisor.cli.output import as_dict, output_option, structured

_POLICIES: Mapping[str, str] = {
    "never": "RESTART_POLICY_NEVER",
    "on-failure": "RESTART_POLICY_ON_FAILURE",
    "always": "RESTART_POLICY_ALWAYS",
}
# The longer suffix first: every time in ms ends in s too.
_FACTORS: Mapping[str, float] = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}


class SecondsParameter(click.ParamType[float]):
    """A time: 10s, 500ms, 2m, or a number of seconds."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip().lower()
        suffix = next((suffix for suffix in _FACTORS if text.endswith(suffix)), "")
        number = text.removesuffix(suffix)
        if not number.replace(".", "", 1).isdecimal():
            self.fail(f"{value!r} is no time; write 10s, 500ms or 2m.", param, ctx)
        return float(number) * _FACTORS[suffix]


SECONDS = SecondsParameter()


class _NameFirst(click.Command):
    """NAME ends the options for click, and their place is behind it as well, up to COMMAND."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = self._words(ctx, args)
        before, rest = args[: len(args) - len(words)], words[1:]
        if rest and rest[0].startswith("-") and "--" not in before[-1:]:
            command = self._words(ctx, rest)
            options = rest[: len(rest) - len(command)]
            args = [*before, *(options[:-1] if options[-1:] == ["--"] else options), words[0], *command]
        return super().parse_args(ctx, args)

    def _words(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What is left where the options end."""
        found, _, _ = self.make_parser(ctx).parse_args(list(args))
        name, command = found.get("name"), found.get("command")
        if not isinstance(name, str):
            return []
        return [name, *command] if isinstance(command, (list, tuple)) else [name]


@click.group(short_help="Start and stop supervised commands.")
def worker() -> None:
    """Start and stop workers: commands that the daemon keeps running, also over its own restarts.

    'hypervisor get workers' and 'hypervisor describe worker NAME' show them.
    """


@worker.command("start", cls=_NameFirst, context_settings={"allow_interspersed_args": False})
@click.option("--allocation", default="", metavar="NAME", help="Run under this allocation, and end with it")
@click.option("--restart", type=click.Choice(list(_POLICIES)), default="always", show_default=True)
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Part of its environment; repeatable")
@click.option("--ready-file", metavar="PATH", help="It is ready once this file exists")
@click.option("--ready-socket", metavar="PATH", help="It is ready once this unix socket takes connections")
@click.option("--alive-socket", metavar="PATH", help="It lives as long as this unix socket takes connections")
@click.option("--grace", type=SECONDS, help="Time between the request to stop and the kill [default: a setting]")
@output_option
@admin_server_option
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def start(
    *,
    name: str,
    command: tuple[str, ...],
    allocation: str,
    restart: str,
    variables: tuple[str, ...],
    ready_file: str | None,
    ready_socket: str | None,
    alive_socket: str | None,
    grace: float | None,
    output: str,
    server: str | None,
) -> None:
    """Have the worker NAME run COMMAND, for instance

    hypervisor worker start trainer --allocation trainer -- python train.py
    """
    from hypervisor.v1 import node_pb2, node_pb2_grpc

    environment = {}
    for variable in variables:
        key, equals, value = variable.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--env {variable!r} has no NAME=VALUE.")
        environment[key] = value
    try:
        request = node_pb2.StartWorkerRequest(
            worker_id=name,
            allocation_id=allocation,
            command=command[1:] if command[0] == "--" else command,
            environment=environment,
            restart_policy=_POLICIES[restart],
        )
    except UnicodeError as error:
        raise CommandError(
            "a worker's name, command and environment must be UTF-8, and these hold other bytes; "
            "have a script of another name do it"
        ) from error
    if ready_file:
        request.readiness.file = ready_file
    elif ready_socket:
        request.readiness.unix_socket = ready_socket
    if alive_socket:
        request.liveness.unix_socket = alive_socket
    if grace is not None:
        request.grace.FromNanoseconds(round(grace * 1e9))
    with connected(server, admin=True) as client:
        found = client.call(node_pb2_grpc.NodeServiceStub(client.channel).StartWorker, request).worker
    _tell(found, output)


@worker.command("stop")
@click.argument("name")
@click.option("--grace", type=SECONDS, help="Time until the kill [default: as it was started with]")
@click.option("--forget", is_flag=True, help="Remove it from the list too, with its logs")
@output_option
@admin_server_option
def stop(*, name: str, grace: float | None, forget: bool, output: str, server: str | None) -> None:
    """Stop the worker NAME: SIGTERM to its process group, and SIGKILL after the grace."""
    from hypervisor.v1 import node_pb2, node_pb2_grpc

    request = node_pb2.StopWorkerRequest(worker_id=name, forget=forget)
    if grace is not None:
        request.grace.FromNanoseconds(round(grace * 1e9))
    with connected(server, admin=True) as client:
        found = client.call(node_pb2_grpc.NodeServiceStub(client.channel).StopWorker, request).worker
    _tell(found, output)


@worker.command("launcher")
@click.option("--socket", "socket_path", default="/run/hypervisor/workers.sock", show_default=True, metavar="PATH")
@click.option("--root", default="/var/lib/hypervisor/workers", show_default=True, metavar="DIR")
def launcher(*, socket_path: str, root: str) -> None:
    """Start workers for a daemon with worker_launcher=unix:PATH, in the unit or Pod that this runs in, so that they
    outlive the daemon's. DIR is the directory 'workers' in the daemon's state directory, at the same path there."""
    from hypervisor.workers.settings import SHIM

    try:
        Path(root).mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(socket_path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        os.execv(SHIM, [str(SHIM), "--serve", socket_path, root])
    except OSError as error:
        raise CommandError(f"the launcher can't start: {error.strerror}: {error.filename or SHIM}") from error


def _tell(found: Any, output: str) -> None:
    from hypervisor.cli.tables import word
    from hypervisor.v1 import types_pb2 as pb

    if output in ("json", "yaml"):
        click.echo(structured(as_dict(found), output))
    elif output == "name":
        click.echo(found.worker_id)
    else:
        pid = f", pid {found.pid}" if found.HasField("pid") else ""
        why = f" ({found.last_exit_reason})" if found.last_exit_reason and not pid else ""
        click.echo(f"{found.worker_id}: {word(pb.WorkerPhase, found.phase, 'WORKER_PHASE_').lower()}{pid}{why}")
