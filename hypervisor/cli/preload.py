"""hypervisor preload: the limiter in a container's /etc/ld.so.preload."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hypervisor.cli.failure import CommandError
from hypervisor.preload import LIBRARY_LINE, PreloadError, copied_whole, merge_into, root_from_state


@click.group()
def preload() -> None:
    """Load the limiter into every process of a container."""


@preload.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def install(directory: Path) -> None:
    """Copy the limiter's libraries to DIRECTORY, for the hosts of an image's init container.

    Each is put there in one step: what runs keeps the library that it has. Prints what was copied.
    """
    from hypervisor.allocations.environment import LIMITER

    other = LIMITER.with_name("libcuda_limiter_32.so")  # not built for machines without 32-bit programs
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        for library in (LIMITER, *([other] if other.exists() else [])):
            click.echo(str(copied_whole(library, directory)))
    except OSError as error:
        raise CommandError(
            f"can't put the limiter into {directory}: {error.strerror}; is it a directory that you may write to?"
        ) from error


@preload.command()
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Root of the container's file system; default: from the OCI state on stdin, as CDI hooks get it.",
)
@click.option("--library", default=LIBRARY_LINE, show_default=True, help="The line for the limiter.")
def merge(root: Path | None, library: str) -> None:
    """Put the limiter first in /etc/ld.so.preload and keep what the image has there.

    A CDI or OCI createContainer hook: it runs before the container's first program, in the container's mount
    namespace. Doing it twice changes nothing.
    """
    try:
        changed = merge_into(root if root is not None else root_from_state(sys.stdin.read()), library)
    except PreloadError as error:
        raise CommandError(str(error)) from error
    del changed  # a hook says nothing when all is well
