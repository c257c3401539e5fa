"""`hypervisor version`."""

from __future__ import annotations

import platform

import click

import hypervisor


@click.command()
def version() -> None:
    """Print the version of the product and of what it runs on."""
    click.echo(f"hypervisor {hypervisor.__version__}, Python {platform.python_version()}, {platform.machine()}")
