"""`hypervisor run`: the daemon put together, from the locks to the last task, and taken apart in time.

Every part is owned by a block or by the nursery. Limits are adopted and the sockets serve before the driver has
answered; a task that fails ends the process.
"""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
import trio

from hypervisor.allocations import Allocations
from hypervisor.config import Settings
from hypervisor.gpu import open_gpu_reader
from hypervisor.http import open_listeners
from hypervisor.node import simulated
from hypervisor.node.core import NodeCore
from hypervisor.node.diagnosing import Diagnosing
from hypervisor.node.identity import begin
from hypervisor.node.journal import Journal
from hypervisor.node.lock import locked
from hypervisor.node.notify import Notifier
from hypervisor.node.noting import log_event
from hypervisor.node.reporter import Reporter, report_way
from hypervisor.node.revisions import Revisions
from hypervisor.node.signals import serve_signals
from hypervisor.node.stopping import Deadline
from hypervisor.rpc import open_node_server, serve_owners
from hypervisor.rpc.holder import tcp_port_holder

log = structlog.get_logger("node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the daemon can be met. machine is the file of a simulated machine, "" on a real driver."""

    grpc: tuple[str, ...]
    owner: str
    http: str
    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the daemon is started with, besides its settings.

    read_settings reads them anew for SIGHUP and raises SettingsError. announce is called once all is served.
    """

    read_settings: Callable[[], Settings]
    environment: Mapping[str, str]
    announce: Callable[[Addresses], None]


async def run(settings: Settings, surroundings: Surroundings) -> None:
    """Run until SIGTERM or SIGINT, or until something fails.

    Raises StartError, and what the rooms raise when they can't begin, possibly in groups.
    """
    deadline, notifier = Deadline(settings.shutdown_seconds), Notifier(surroundings.environment)
    try:
        with ExitStack() as stack:
            stack.enter_context(locked(settings.state_path, "state directory"))
            # No namespace can be called .lock, so this name is free among the links for people.
            stack.enter_context(locked(settings.base_path, "base directory", mode=0o755, name=".lock"))
            await _run_locked(settings, surroundings, deadline, notifier)
    finally:
        deadline.cancel()
        notifier.close()


async def _run_locked(settings: Settings, surroundings: Surroundings, deadline: Deadline, notifier: Notifier) -> None:
    start = begin(settings.state_path, name=settings.node_name or socket.gethostname())
    machine = None
    if settings.simulate:
        machine = simulated.prepare(settings.simulate, settings.state_path, start.identity)
    environment = surroundings.environment
    if machine is not None:
        environment = simulated.environment(machine, environment)
    revisions = Revisions(settings.state_path / "revision", epoch=start.epoch)
    async with AsyncExitStack() as stack:
        journal = Journal.open(
            settings.state_path, identity=start.identity, epoch=start.epoch, capacity=settings.journal_events
        )
        stack.enter_context(closing(journal))
        stack.callback(journal.subscribe(log_event))
        journal.simulated = machine is not None
        allocations = Allocations.open(
            settings=settings,
            identity=start.identity,
            epoch=start.epoch,
            next_revision=revisions.next,
            emit=journal.emit,
        )
        stack.callback(allocations.close)
        reader = await stack.enter_async_context(
            open_gpu_reader(settings, environment=environment, memory=settings.state_path / "health.json")
        )
        journal.simulated = reader.inventory.simulated  # also when the machine came with the environment
        node = NodeCore(
            settings,
            start=start,
            reader=reader,
            allocations=allocations,
            journal=journal,
            revisions=revisions,
            machine=machine,
        )
        await stack.enter_async_context(node.open_workers())
        diagnosing = Diagnosing(node.snapshot, journal, lambda: node.settings)
        inspecting = node.inspect_with(lambda: diagnosing.diagnose(""))
        listeners, url = await open_listeners(settings.http_listen, settings.http_port, holder=tcp_port_holder)
        server = await stack.enter_async_context(
            open_node_server(
                settings,
                snapshot=node.snapshot(),
                commands=node.commands,
                events=journal,
                diagnose=diagnosing.diagnose,
            )
        )
        stack.callback(node.state.subscribe(server.publish))
        node.add_feed("rpc", server)
        reporter = None
        if settings.report_to:
            reporter = Reporter(report_way(settings), state=node.state, journal=journal, host=server.host)
            node.report_through(reporter)
        kubernetes = None
        if settings.kubernetes:
            kubernetes = await stack.enter_async_context(node.open_kubernetes(server.host))
            node.serve_pods(kubernetes)
        # Runs first when the tasks have ended for whatever reason: what follows has a deadline too.
        stack.callback(deadline.start, "the daemon's tasks have ended", status=1)
        async with trio.open_nursery() as nursery:
            await nursery.start(
                partial(
                    serve_signals,
                    node,
                    read_settings=surroundings.read_settings,
                    notifier=notifier,
                    deadline=deadline,
                    stop=nursery.cancel_scope,
                )
            )
            await nursery.start(serve_owners, settings.owner_address, node.commands)
            nursery.start_soon(deadline.guard(node.http.serve), listeners)
            nursery.start_soon(deadline.guard(node.control.run), notifier.alive)
            nursery.start_soon(deadline.guard(node.housekeeping), notifier)
            nursery.start_soon(deadline.guard(node.occurrences.run))
            nursery.start_soon(deadline.guard(inspecting.run))
            nursery.start_soon(deadline.guard(node.partitioning.run))
            if settings.allocations_dir:
                nursery.start_soon(deadline.guard(node.keep_declarations(Path(settings.allocations_dir)).run))
            if kubernetes is not None:
                nursery.start_soon(deadline.guard(kubernetes.run))
            if reporter is not None:
                nursery.start_soon(deadline.guard(reporter.run))
            node.started()
            gc.freeze()  # what was made for the start stays: looking through it for garbage would be a pause of 0.1 s
            notifier.ready(node.status())
            addresses = Addresses(
                grpc=server.addresses, owner=settings.owner_address, http=url, machine=str(machine or "")
            )
            log.info("serving", **{name: getattr(addresses, name) for name in Addresses.__slots__})
            surroundings.announce(addresses)
