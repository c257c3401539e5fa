"""`hypervisor sim`: machines with simulated GPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from hypervisor.cli.failure import EXIT_USAGE, CommandError

Command = TypeVar("Command", bound=Callable[..., Any])

_COMMAND_NOT_FOUND = 127
_GIB = 1 << 30


def machine_option(command: Command) -> Command:
    """The machine file that a command is about."""
    option = click.option(
        "--machine",
        "machine_path",
        type=click.Path(path_type=Path),
        required=True,
        envvar="SIM_MACHINE",
        show_envvar=True,
        metavar="PATH",
        help="The machine file.",
    )
    return option(command)


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Turn what can go wrong with a machine into the command's one line."""
    try:
        from hypervisor.simulation.document import DocumentError
        from hypervisor.simulation.environment import SimulatorMissingError
        from hypervisor.simulation.machine import MachineError
    except ImportError as error:
        raise CommandError(
            f"this installation has no simulator ({error.name} is missing); install the product from its source tree"
        ) from None
    try:
        yield
    except DocumentError as error:
        raise CommandError(str(error), status=EXIT_USAGE) from None
    except (MachineError, SimulatorMissingError) as error:
        raise CommandError(str(error)) from None


@click.group()
def sim() -> None:
    """Make, use and break machines with simulated GPUs."""


@sim.command()
@click.argument("profile_or_file", metavar="PROFILE|FILE.yaml")
@machine_option
@click.option("--seed", metavar="TEXT", help="Makes UUIDs and serial numbers of its own; else the profile's name does.")
def create(profile_or_file: str, machine_path: Path, seed: str | None) -> None:
    """Write a machine file from a profile or from your own description."""
    with told_in_one_line():
        from hypervisor.simulation.machine import create as create_machine
        from hypervisor.simulation.profiles import load_description

        spec = load_description(profile_or_file, seed=seed)
        create_machine(machine_path, spec)
    click.echo(f"{machine_path}: {len(spec.gpus)} x {spec.gpus[0].name}, driver {spec.system.driver_version}")


@sim.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@machine_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(machine_path: Path, command: tuple[str, ...]) -> None:
    """Run a program on the machine; its exit status is ours."""
    with told_in_one_line():
        from hypervisor.simulation.environment import environment
        from hypervisor.simulation.machine import opened

        with opened(machine_path):  # refuse a missing or damaged machine before the program starts
            pass
        variables = environment(machine_path)
    try:
        os.execvpe(command[0], command, variables)
    except OSError as error:
        raise CommandError(f"{command[0]} can't be run: {error.strerror}", status=_COMMAND_NOT_FOUND) from None


@sim.command()
@machine_option
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--check", is_flag=True, help="Check the machine's invariants instead; fail when one is broken.")
def show(machine_path: Path, output: str, *, check: bool) -> None:
    """Show what is on the machine: GPUs, memory, processes, faults."""
    with told_in_one_line():
        from hypervisor.simulation.machine import opened

        with opened(machine_path) as machine:
            breaches = machine.check() if check else []
            shown = {} if check else machine.show()
    if check:
        if output == "json":
            click.echo(json.dumps({"sound": not breaches, "breaches": breaches}))
        elif not breaches:
            click.echo(f"machine {machine_path}: sound")
        if breaches:
            raise CommandError(f"machine {machine_path}: {len(breaches)} invariants broken: {'; '.join(breaches)}")
    elif output == "json":
        click.echo(json.dumps(shown, indent=2))
    else:
        for line in table(shown):
            click.echo(line)


def table(shown: dict[str, Any]) -> Iterator[str]:
    """The machine for people, within 80 columns."""
    clock = shown["clock"]
    yield f"{shown['profile']}, driver {shown['driver_version']}, {clock['mode']} clock {clock['now_ns'] / 1e9:.1f} s"
    yield f"{'GPU':<4}{'NAME':<28}{'UTIL':>5}{'USED/TOTAL GiB':>16}{'PEAK GiB':>10}{'BUSY s':>9}  STATE"
    for gpu in shown["gpus"]:
        memory = gpu["memory"]
        state = "lost" if gpu["lost"] else "vanished" if gpu["vanished"] else "ok"
        used = f"{memory['used_bytes'] / _GIB:.1f}/{memory['total_bytes'] / _GIB:.1f}"
        yield (
            f"{gpu['index']:<4}{gpu['name'][:27]:<28}{gpu['utilization_percent']:>4}%{used:>16}"
            f"{memory['peak_bytes'] / _GIB:>10.1f}{gpu['busy_ns'] / 1e9:>9.2f}  {state}"
        )
        for instance in gpu["mig"]["instances"]:
            held = f"{instance['used_bytes'] / _GIB:.1f}/{instance['memory_bytes'] / _GIB:.1f}"
            slices = f"slices {instance['start']}-{instance['start'] + instance['slices'] - 1}"
            busy = instance["busy_ns"] / 1e9
            yield f"    MIG {instance['profile']:<11}{slices:<13}{held:>21}{busy:>19.2f}  gi {instance['id']}"
    if shown["processes"]:
        yield f"{'PID':<9}{'GPU':<4}{'USED GiB':>9}{'BUSY s':>9}  {'GROUP':<20}PROGRAM"
    for process in shown["processes"]:
        for gpu, usage in process["gpus"].items():
            yield (
                f"{process['pid']:<9}{gpu:<4}{usage['bytes'] / _GIB:>9.2f}{usage['busy_ns'] / 1e9:>9.2f}  "
                f"{process['group'][-19:]:<20}{Path(process['name']).name[:24]}"
            )
    for fault in shown["faults"]:
        yield f"fault {fault['id']}: {_told(fault)}"


# Faults of a device that have a figure to them; of the others it means nothing.
_WITH_FIGURE = {"xid": "Xid {value}", "lost": "lost with Xid {value}", "renumber": "enumerated at index {value}"}


def _told(fault: dict[str, Any]) -> str:
    """What a fault does, and where."""
    action, value = fault["action"], fault["value"]
    gpu = "any GPU" if fault["gpu"] is None else f"GPU {fault['gpu']}"
    if action == "driver":
        return f"driver changed from {fault['call']}" if fault["applied"] else f"driver to become {fault['call']}"
    if action == "set":
        return f"{fault['call']} of {gpu} is {value}"
    if action in ("vanish", "reset") or (action == "lost" and not value):
        return f"{action} on {gpu}"
    if action in _WITH_FIGURE:
        return f"{_WITH_FIGURE[action].format(value=value)} on {gpu}"
    figure = f" {value}" if action in ("return", "value") else ""
    if action in ("delay", "hang", "hang_lock"):
        figure = f" {value / 1e6:g} ms" if value else " for ever"
    return f"{action}{figure} in {fault['call']} on {gpu}, {fault['hits']} times so far"


@sim.command()
@machine_option
@click.argument("fault_text", metavar="[FAULT]", required=False)
@click.option("--clear", metavar="ID|all", help="Switch a fault off, or all.")
def fault(machine_path: Path, fault_text: str | None, clear: str | None) -> None:
    """Switch a fault on or off: gpu=3,xid=79,lost or gpu=0,set=remap_pending,value=1 or call=nvml*,return=15,for=9s."""
    if (fault_text is None) == (clear is None):
        raise click.UsageError("Give a fault to switch on, or --clear with its number or 'all'.")
    with told_in_one_line():
        from hypervisor.simulation.calls import known_calls
        from hypervisor.simulation.faults import parse_fault_text
        from hypervisor.simulation.machine import opened

        with opened(machine_path) as machine:
            if fault_text is not None:
                parsed = parse_fault_text(fault_text, machine.gpu_count, machine.link_counts, known_calls())
                click.echo(machine.add_fault(parsed))
            elif clear == "all":
                machine.clear_faults()
            elif clear is not None and clear.isdecimal():
                machine.clear_fault(int(clear))
            else:
                raise click.UsageError("--clear takes the number of a fault, or 'all'.")


@sim.command()
@machine_option
@click.argument("duration")
def step(machine_path: Path, duration: str) -> None:
    """Move a virtual clock on by a DURATION like 5ms."""
    with told_in_one_line():
        from hypervisor.simulation.document import parse_duration
        from hypervisor.simulation.machine import opened

        nanoseconds = parse_duration(duration)
        if nanoseconds is None:
            raise click.UsageError(
                f"'{duration}' is no time with a unit (ns, us, ms, s, m), like 5ms, of at most 1000 days."
            )
        with opened(machine_path) as machine:
            machine.step(nanoseconds)


@sim.command()
@machine_option
def destroy(machine_path: Path) -> None:
    """Remove the machine file; what runs on it keeps it until it ends."""
    with told_in_one_line():
        from hypervisor.simulation.machine import destroy as destroy_machine

        destroy_machine(machine_path)
