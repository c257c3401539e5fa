"""The way of the command line to a server: which address by default, and every failure as one line with a status."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hypervisor.cli.failure import EXIT_UNREACHABLE, EXIT_USAGE, CommandError
from hypervisor.config import SettingsError, load
from hypervisor.model import Refusal

if TYPE_CHECKING:
    from hypervisor.rpc.client import Client

F = TypeVar("F", bound=Callable[..., Any])
_SYSTEM_DIRECTORY = Path("/run/hypervisor")  # where a daemon of root's has its sockets

server_option = click.option(
    "--server",
    metavar="ADDRESS",
    envvar="HYPERVISOR_SERVER",
    help="unix:PATH or HOST:PORT [default: the socket of this node's daemon]",
)
admin_server_option = click.option(
    "--server",
    metavar="ADDRESS",
    envvar="HYPERVISOR_ADMIN_SERVER",
    help="unix:PATH of the admin socket [default: that of this node's daemon]",
)


def default_address(*, admin: bool) -> str:
    """The socket of this node's daemon: the user's own one, or the system's where the user has none."""
    try:
        settings = load(file=None, environment=os.environ, flags={})
    except SettingsError as error:
        raise CommandError(str(error), status=EXIT_USAGE) from error
    address = settings.admin_address if admin else settings.read_addresses[0]
    path = Path(address.removeprefix("unix:"))
    common = _SYSTEM_DIRECTORY / path.name
    if address.startswith("unix:") and not path.exists() and common.exists():
        return f"unix:{common}"
    return address


@contextmanager
def connected(address: str | None, *, admin: bool = False) -> Iterator[Client]:
    """A client of the server at the address (None: the default). What goes wrong in the block ends the command."""
    from hypervisor.rpc.address import AddressError
    from hypervisor.rpc.client import CallFailed, ServerUnreachable, connect

    try:
        with connect(address or default_address(admin=admin)) as client:
            yield client
    except AddressError as error:
        raise CommandError(f"--server: {error}", status=EXIT_USAGE) from error
    except ServerUnreachable as error:
        raise CommandError(str(error), status=EXIT_UNREACHABLE) from error
    except (Refusal, CallFailed) as error:
        raise CommandError(str(error)) from error
