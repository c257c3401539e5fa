"""`hypervisor exec`: a command under limits, with or without a daemon."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from hypervisor.cli.connection import own_or_system
from hypervisor.cli.failure import EXIT_UNREACHABLE, CommandError
from hypervisor.cli.share_options import device_requests, share_options
from hypervisor.config import Settings, SettingsError, load
from hypervisor.model import (
    AllocationSpec,
    ComputePolicy,
    IsolationMode,
    Owner,
    OwnerKind,
    QosClass,
    Refusal,
)
from hypervisor.standalone.environment import merged

EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


@click.command(
    "exec",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Run a command with a share of a GPU.",
)
@share_options
@click.option("--name", help="Name of the allocation [default: exec- and a random word]")
@click.option("--standalone", is_flag=True, help="Without a daemon: this command keeps the limits itself")
@click.option("--server", metavar="unix:PATH", help="The socket for owners [default: that of this node's daemon]")
@click.option("--base-dir", metavar="DIR", help="With --standalone: where the limit files lie")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_command(
    *,
    command: tuple[str, ...],
    name: str | None,
    standalone: bool,
    server: str | None,
    base_dir: str | None,
    isolation: str,
    qos: str,
    policy: str,
    **share: Any,
) -> int:
    """Run COMMAND with a share of a GPU, for instance

    hypervisor exec --gpu 0 --compute 40% --vram 8Gi -- python train.py

    The share ends when the command and all processes that it started on the GPU have ended. With --standalone no
    daemon is needed, but then nothing looks after the sum of all shares of the card.
    """
    settings = _settings(server=server, base_dir=base_dir)
    if shutil.which(command[0]) is None:
        if os.sep in command[0] and Path(command[0]).exists():
            why = "it is a directory" if Path(command[0]).is_dir() else "it is not executable"
            raise CommandError(
                f"can't run {command[0]!r}: {why}; name a program, or make it one with chmod +x",
                status=EXIT_NOT_EXECUTABLE,
            )
        raise CommandError(f"can't run {command[0]!r}: there is no such program", status=EXIT_NOT_FOUND)
    spec = AllocationSpec(
        allocation_id=name or f"exec-{secrets.token_hex(4)}",
        owner=Owner(kind=OwnerKind.PROCESS, name=command[0]),
        devices=device_requests(**share),
        isolation=IsolationMode(isolation),
        qos=QosClass(qos),
        policy=ComputePolicy(policy),
    )
    try:
        if standalone:
            from hypervisor.standalone.runner import run_standalone

            return run_standalone(settings, spec, command)
        return _under_daemon(settings, spec, command)
    except Refusal as refusal:
        raise CommandError(str(refusal)) from refusal


def _be_called(program: str) -> None:
    """Have this process listed by the name of the program that it becomes: the daemon looks when it is asked."""
    with suppress(OSError):  # it is for people to read, and nothing depends on it
        Path("/proc/self/comm").write_bytes(Path(program).name.encode()[:15])


def _settings(*, server: str | None, base_dir: str | None) -> Settings:
    flags = {"owner_listen": server, "base_dir": base_dir}
    try:
        return load(file=None, environment=os.environ, flags={key: value for key, value in flags.items() if value})
    except SettingsError as error:
        raise CommandError(str(error)) from error


def _under_daemon(settings: Settings, spec: AllocationSpec, command: tuple[str, ...]) -> int:
    from hypervisor.rpc.owner_client import OwnerBusy, OwnerUnreachable, allocate_for_self

    # What was named is meant; the default is the user's own daemon, or the system's where the user has none.
    address = settings.owner_address if settings.owner_listen else own_or_system(settings.owner_address)

    def waiting() -> None:
        click.echo(f"hypervisor: waiting for the daemon at {address}, which has not answered yet", err=True)

    _be_called(command[0])
    try:
        environment = allocate_for_self(address, spec, on_wait=waiting)
    except OwnerBusy as error:
        raise CommandError(
            f"the daemon at {address} is busy ({error}); try again in a moment", status=EXIT_UNREACHABLE
        ) from error
    except OwnerUnreachable as error:
        raise CommandError(
            f"no daemon answers at {address} ({error}); start one with 'hypervisor run', "
            "or limit this command alone with 'hypervisor exec --standalone'",
            status=EXIT_UNREACHABLE,
        ) from error
    # The share belongs to this process, and this process becomes the command: nothing stands between.
    try:
        os.execvpe(command[0], list(command), merged(os.environ, environment))
    except OSError as error:
        raise CommandError(f"can't run {command[0]!r}: {error.strerror}", status=EXIT_NOT_EXECUTABLE) from error
