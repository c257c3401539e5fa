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
# Under which the command's context keeps the directory, so that only connected() has to know of it.
_TLS_KEY = f"{__name__}.tls_dir"
_SYSTEM_DIRECTORY = Path("/run/hypervisor")  # where a daemon of root's has its sockets

_address_option = click.option(
    "--server",
    metavar="ADDRESS",
    envvar="HYPERVISOR_SERVER",
    help="unix:PATH or HOST:PORT [default: the socket of this node's daemon]",
)
_tls_option = click.option(
    "--tls-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="HYPERVISOR_TLS_DIR",
    expose_value=False,
    callback=lambda context, _, value: context.meta.__setitem__(_TLS_KEY, value),
    help="Directory of ca.crt, tls.crt and tls.key of a reader, for a server on TCP that wants certificates",
)


def server_option(command: F) -> F:
    """The options that name a server: --server, and --tls-dir for how to talk to it on TCP."""
    return _address_option(_tls_option(command))


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
    return own_or_system(settings.admin_address if admin else settings.read_addresses[0])


def own_or_system(address: str) -> str:
    """The address, or the system's socket of the same name where only that one is there."""
    path = Path(address.removeprefix("unix:"))
    common = _SYSTEM_DIRECTORY / path.name
    if address.startswith("unix:") and not path.exists() and common.exists():
        return f"unix:{common}"
    return address


def tls_directory() -> Path | None:
    """What --tls-dir of the running command says; None where nothing does."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_TLS_KEY)


@contextmanager
def connected(address: str | None, *, admin: bool = False) -> Iterator[Client]:
    """A client of the server at the address (None: the default). What goes wrong in the block ends the command."""
    from hypervisor.rpc.address import AddressError
    from hypervisor.rpc.client import CallFailed, ServerUnreachable, connect
    from hypervisor.rpc.tls import TlsError

    try:
        with connect(address or default_address(admin=admin), tls=tls_directory()) as client:
            yield client
    except AddressError as error:
        raise CommandError(f"--server: {error}", status=EXIT_USAGE) from error
    except TlsError as error:
        raise CommandError(f"--tls-dir: {error}", status=EXIT_USAGE) from error
    except ServerUnreachable as error:
        raise CommandError(str(error), status=EXIT_UNREACHABLE) from error
    except (Refusal, CallFailed) as error:
        raise CommandError(str(error)) from error
