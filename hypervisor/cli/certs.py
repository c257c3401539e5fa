"""`hypervisor certs`: an authority and certificates for a fleet of plain hosts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hypervisor.cli.failure import CommandError

if TYPE_CHECKING:
    from hypervisor.certificates import Authority, Issued

F = TypeVar("F", bound=Callable[..., Any])
_DIRECTORY = Path("/etc/hypervisor/pki")
_AUTHORITY_DAYS = 3650
_DAYS = 365
_SOON_DAYS = 30

_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=_DIRECTORY,
    show_default=True,
    envvar="HYPERVISOR_CERTS_DIR",
    help="Directory of the authority and of all that it has signed.",
)


def _days(default: int) -> Callable[[F], F]:
    return click.option(
        "--days", type=click.IntRange(1, 36_500), default=default, show_default=True, help="How long it is good."
    )


_addresses = click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="HOST",
    help="Host name or address by which it is reached; may be given several times.",
)


@click.group()
def certs() -> None:
    """Make and renew the certificates of a fleet of plain hosts.

    The directory stays with you; copy to a host only the folder that is named after it, and give it to the daemon,
    the aggregator or the command line with --tls-dir.
    """


@certs.command()
@_directory
@_days(_AUTHORITY_DAYS)
def init(*, directory: Path, days: int) -> None:
    """Make the authority that signs all others."""
    from hypervisor.certificates import Authority

    with _explained():
        authority = Authority.create(directory, days=days)
    click.echo(f"authority in {authority.directory}, until {authority.expires:%Y-%m-%d}; keep ca.key to yourself")


@certs.command()
@click.argument("name", default="aggregator")
@_directory
@_addresses
@_days(_DAYS)
def aggregator(*, name: str, directory: Path, addresses: tuple[str, ...], days: int) -> None:
    """Make the certificate of an aggregator, for the names and addresses at which nodes reach it."""
    if not addresses:
        raise click.UsageError("name with --address each host name and address at which nodes reach the aggregator.")
    _issue(directory, "aggregator", [name], addresses, days)


@certs.command()
@click.argument("names", nargs=-1, required=True, metavar="NODE...")
@_directory
@_addresses
@_days(_DAYS)
def node(*, names: tuple[str, ...], directory: Path, addresses: tuple[str, ...], days: int) -> None:
    """Make certificates of nodes; each may report the node of its name and no other.

    A node is reached by its name; --address adds others, for one node at a time.
    """
    if addresses and len(names) > 1:
        raise click.UsageError("--address belongs to one node; make the others without it.")
    _issue(directory, "node", names, addresses, days)


@certs.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_directory
@_days(_DAYS)
def reader(*, names: tuple[str, ...], directory: Path, days: int) -> None:
    """Make certificates for people and schedulers, who may read everything and report nothing."""
    _issue(directory, "reader", names, (), days)


@certs.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@_directory
@_days(_DAYS)
@click.option(
    "--within",
    type=click.IntRange(0, 36_500),
    default=_SOON_DAYS,
    show_default=True,
    metavar="DAYS",
    help="Without names: renew what expires within so many days.",
)
@click.option("--authority", "itself", is_flag=True, help="Renew the authority instead; what it signed stays good.")
def renew(*, names: tuple[str, ...], directory: Path, days: int, within: int, itself: bool) -> None:
    """Renew certificates, with new keys: those of NAMES, or all that expire soon.

    Copy the folders to their hosts again; daemons take the new files without a restart.
    """
    with _explained():
        authority = _authority(directory)
        if itself:
            authority = authority.renew_itself(days=max(days, _AUTHORITY_DAYS))
            click.echo(f"authority in {directory}, until {authority.expires:%Y-%m-%d}")
            return
        known = list(authority.issued())
        missing = sorted(set(names) - {each.identity.name for each in known})
        if missing:
            raise CommandError(f"there is no certificate of {missing[0]!r} in {directory}")
        now = dt.datetime.now(dt.UTC)
        wanted = [each for each in known if each.identity.name in names or (not names and each.days_left(now) < within)]
        for each in wanted:
            _tell(authority.renew(each, days=days))
        if not wanted:
            click.echo(f"nothing expires within {within} days")


@certs.command("list")
@_directory
def list_(*, directory: Path) -> None:
    """Show all certificates and how long they are good."""
    from hypervisor.cli.output import aligned, natural_widths

    now = dt.datetime.now(dt.UTC)
    rows = [["ROLE", "NAME", "EXPIRES", "DAYS LEFT", "ADDRESSES"]]
    with _explained():
        authority = _authority(directory)
        left = (authority.expires - now).days
        rows.append(["authority", "-", f"{authority.expires:%Y-%m-%d}", str(left), "-"])
        for each in authority.issued():
            role, name = each.identity.role.value, each.identity.name
            addresses = ",".join(each.addresses) or "-"
            rows.append([role, name, f"{each.expires:%Y-%m-%d}", f"{each.days_left(now):.0f}", addresses])
    for line in aligned(rows, natural_widths(rows)):
        click.echo(line)


def _issue(directory: Path, role: str, names: Sequence[str], addresses: Sequence[str], days: int) -> None:
    from hypervisor.model.peer import Identity, Role

    with _explained():
        authority = _authority(directory)
        for name in names:
            # A node's own name is how it is reached.
            reached = (name, *addresses) if role == Role.NODE.value else tuple(addresses)
            _tell(authority.issue(Identity(Role(role), name), reached, days=days))


def _authority(directory: Path) -> Authority:
    from hypervisor.certificates import Authority

    return Authority.open(directory)


def _tell(issued: Issued) -> None:
    click.echo(f"{issued.identity}: {issued.folder}, until {issued.expires:%Y-%m-%d}")


@contextmanager
def _explained() -> Iterator[None]:
    from hypervisor.certificates import CertificatesError

    try:
        yield
    except CertificatesError as error:
        raise CommandError(str(error)) from error
