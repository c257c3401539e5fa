"""One card under MPS: its control daemon kept, its limits applied and read back, and when it may be offered."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
import structlog
import trio

from hypervisor.durable import write_atomically
from hypervisor.model import EventType, IsolationMode, Probe, Refusal, RestartPolicy, WorkerPhase, WorkerSpec
from hypervisor.workers.mps.clients import Clients
from hypervisor.workers.mps.control import Control, ControlError
from hypervisor.workers.mps.settings import MpsSettings
from hypervisor.workers.mps.shares import MEBIBYTE, Cut, effective_percent
from hypervisor.workers.supervisor import Supervisor

log = structlog.get_logger("mps")
THREE_STRIKES = 3
OURS = "mps-"  # what the names of control daemons begin with, and of no other worker
GRACE_SECONDS = 5.0
_DEVICE = "0"  # the daemon is shown its one card only
_DEFAULT = "default"  # the compute mode that a driver begins with


class ComputeModes(Protocol):
    """Reads and sets the compute mode of a card; the text of an answer is "" when it was done, else why not."""

    async def read(self, uuid: str) -> tuple[str, str]:
        """(the mode now, why it could not be read)."""
        ...

    async def make_exclusive(self, uuid: str) -> tuple[str, str]:
        """(the mode before, why it could not be set)."""
        ...

    async def restore(self, uuid: str, mode: str) -> str: ...


class CardMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What must survive a restart: the cut in force, the user that is served, and the compute mode of before."""

    uuid: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    percent: Annotated[int, msgspec.Meta(ge=1, le=100)]
    memory_mebibytes: Annotated[int, msgspec.Meta(ge=0, le=2**40)] | None
    uid: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    mode_before: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardState:
    """Whether a card is offered, and why not; its server and that one's clients, as last seen."""

    offered: bool
    why: str
    server: int
    clients: tuple[int, ...]
    orphans: tuple[int, ...]


class MpsCard:
    """Keeps one card. keep() is its one task; for the trio main thread."""

    def __init__(
        self,
        memory: CardMemory,
        *,
        settings: MpsSettings,
        supervisor: Supervisor,
        modes: ComputeModes | None,
        sm_count: int | None,
        environment: dict[str, str],
        emit: Callable[[EventType, str, str], None],
    ) -> None:
        """modes None: the compute mode is left as it is. environment: what the daemon needs besides MPS's own."""
        self.memory = memory
        self.sm_count = sm_count
        self._settings = settings
        self._supervisor = supervisor
        self._modes = modes
        self._emit = emit
        self._folder = settings.directory / memory.uuid
        self._clients = Clients(self._folder / "clients.json")
        self._control = Control(
            program=settings.program,
            pipe_directory=self.pipe_directory,
            log_directory=self._folder / "log",
            environment={**environment, "CUDA_VISIBLE_DEVICES": memory.uuid, "PATH": os.environ.get("PATH", "")},
            answer_seconds=settings.answer_seconds,
        )
        self._state = CardState(offered=False, why="its limits are not applied yet", server=0, clients=(), orphans=())
        self._run: tuple[int | None, int] = (None, 0)
        self._applied_to = 0  # the server whose limits were read back
        self._faults_alone = 0
        self.offered = trio.Event()

    @property
    def worker_id(self) -> str:
        """Name of the control daemon among the workers."""
        return f"{OURS}{self.memory.uuid.removeprefix('GPU-')[:36]}"

    @property
    def pipe_directory(self) -> Path:
        """What a client must find at CUDA_MPS_PIPE_DIRECTORY."""
        return self._folder / "pipe"

    @property
    def cut(self) -> Cut:
        """What each client may use."""
        return Cut(percent=self.memory.percent, memory_mebibytes=self.memory.memory_mebibytes)

    @property
    def state(self) -> CardState:
        """As last seen."""
        return self._state

    @property
    def effective_percent(self) -> float:
        """The share of the SMs that a client can use, as the hardware rounds it."""
        return effective_percent(self.memory.percent, self.sm_count)

    async def keep(self) -> None:
        """For ever: the daemon runs, its limits are in force, and what is not as it should be withholds the card.
        Cancelling leaves everything as it is."""
        while True:
            try:
                await self._step()
            except ControlError as error:
                self._withhold(str(error))
            except (OSError, Refusal) as error:
                self._withhold(f"its control daemon can't be kept: {error}")
            await trio.sleep(self._settings.probe_seconds if self._state.offered else self._quick)

    async def end(self) -> str:
        """Stop the daemon and give the card back to everybody; why its mode could not be restored, or "".

        Raises OSError and Refusal when the disk is in the way, and then it is to be tried again."""
        self._withhold("it is given back")
        if self._supervisor.find(self.worker_id) is not None:  # else it was never begun
            try:
                await self._control.ask("quit")
            except ControlError as error:
                log.info("ended without its consent", worker=self.worker_id, why=str(error))
            await self._supervisor.stop(self.worker_id, forget=True, why="its card has no hard allocation any more")
        left = ""
        if self._modes is not None and self.memory.mode_before:
            left = await self._modes.restore(self.memory.uuid, self.memory.mode_before)
        self._clients.forget()
        (self._folder / "card.json").unlink(missing_ok=True)
        return left

    @property
    def _quick(self) -> float:
        return min(self._settings.probe_seconds, 0.1)

    async def _step(self) -> None:
        worker = self._supervisor.find(self.worker_id)
        if worker is None or worker.phase in (WorkerPhase.STOPPED, WorkerPhase.FAILED):
            await self._begin()
            worker = self._supervisor.find(self.worker_id)
        if worker is None or worker.phase is not WorkerPhase.RUNNING:
            self._withhold(f"its control daemon does not run: {worker.last_exit_reason if worker else 'not started'}")
            return
        run = (worker.pid, worker.restarts)
        if run != self._run:
            self._new_run(run)
        servers = await self._control.servers()
        if self._applied_to not in servers:
            self._note_lost_server(servers)
            servers = (await self._ensure(servers),)
        status, clients = await self._control.server(servers[0])
        self._judge(servers[0], status, clients)

    async def _begin(self) -> None:
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name in ("pipe", "log"):
            (self._folder / name).mkdir(mode=0o755, exist_ok=True)
        why = ""
        if self._modes is not None and not self.memory.mode_before:
            before, why = await self._modes.read(self.memory.uuid)
            self.memory = msgspec.structs.replace(self.memory, mode_before=before)
        # On the disk before the mode is ours: after a crash between the two it could not be told from another's.
        self._remember()
        if self._modes is not None and not why:
            _, why = await self._modes.make_exclusive(self.memory.uuid)
        if why:
            raise ControlError(f"the card can't be put into exclusive-process mode: {why}")
        await self._supervisor.start(self.spec(), looks={"liveness": self._look}, before_start=self.clean)

    def _remember(self) -> None:
        write_atomically(self._folder / "card.json", msgspec.json.encode(self.memory))

    def spec(self) -> WorkerSpec:
        """The control daemon as a worker."""
        flags = ("-multiuser-server",) if self._settings.multiuser else ()
        memory = self.memory.memory_mebibytes
        variables = self._control.variables
        # In force from its first moment: a client may be quicker than our commands.
        variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(self.memory.percent)
        if memory is not None:
            variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"{_DEVICE}={memory}M"
        return WorkerSpec(
            worker_id=self.worker_id,
            command=(self._settings.program, "-f", *flags),
            environment=tuple(sorted(variables.items())),
            gpu_uuids=(self.memory.uuid,),
            isolation=IsolationMode.HARD,
            effective_sm_percent=round(self.effective_percent),
            memory_limit_bytes=memory * MEBIBYTE if memory is not None else None,
            restart_policy=RestartPolicy.ALWAYS,
            liveness=Probe(
                command=(self._settings.program,),
                initial_delay_seconds=self._settings.probe_seconds,
                period_seconds=self._settings.probe_seconds,
                timeout_seconds=self._settings.answer_seconds + 1,
                failure_threshold=THREE_STRIKES,
            ),
            grace_seconds=GRACE_SECONDS,
        )

    def adopt(self) -> None:
        """Take up a daemon that outlived ours: its probes are code, and code is not kept in a record."""
        if self._supervisor.find(self.worker_id) is not None:
            self._supervisor.give(self.worker_id, looks={"liveness": self._look}, before_start=self.clean)
            if self._modes is not None and not self.memory.mode_before:
                # What was remembered is lost, and the mode is ours: a card that nobody gives back refuses everybody.
                self.memory = msgspec.structs.replace(self.memory, mode_before=_DEFAULT)
                try:
                    self._remember()
                except OSError as error:
                    log.warning("a card's memory can't be written", worker=self.worker_id, why=error.strerror)

    def clean(self) -> None:
        """Before each start: what a killed daemon left would keep the next one from starting; and a client that may
        write there may have put anything in its place. The directory itself stays, for containers have it mounted."""
        self.pipe_directory.mkdir(mode=0o755, exist_ok=True)
        with os.scandir(self.pipe_directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    Path(entry.path).unlink(missing_ok=True)

    async def _look(self) -> str:
        """A strike: the daemon does not answer, or its server is in fault with nobody left to wait for."""
        try:
            await self._control.servers()
        except ControlError as error:
            return str(error)
        if self._faults_alone >= THREE_STRIKES:
            return "its server stays in FAULT after its last client has gone"
        return ""

    async def _ensure(self, servers: tuple[int, ...]) -> int:
        """A server with the limits in force: one that runs and has them, or a new one. Raises ControlError."""
        for server in servers:
            try:
                await self._check_server(server)
            except ControlError as error:
                clients = await self._control.clients(server)
                if clients:
                    who = ", ".join(map(str, clients))
                    raise ControlError(
                        f"{error}; the server {server} is replaced when its clients {who} end"
                    ) from error
            else:
                self._applied_to = server
                return server
        return await self._apply()

    async def _apply(self) -> int:
        """Set the defaults, start the server, and read both back; the server's pid. Raises ControlError."""
        cut, ask = self.cut, self._control.ask
        sets = [f"set_default_active_thread_percentage {cut.percent}"]
        if cut.memory_mebibytes is not None:
            sets.append(f"set_default_device_pinned_mem_limit {_DEVICE} {cut.memory_mebibytes}M")
        await ask("\n".join(sets))
        await self._check("get_default_active_thread_percentage", f"get_default_device_pinned_mem_limit {_DEVICE}")
        # A server that runs already has the defaults of before.
        for server in await self._control.servers():
            await ask(f"shutdown_server {server} -f")
        await ask(f"start_server -uid {self.memory.uid}")
        server = await self._first_server()
        await self._check_server(server)
        self._applied_to = server
        return server

    async def _check_server(self, server: int) -> None:
        await self._check(f"get_active_thread_percentage {server}", f"get_device_pinned_mem_limit {server} {_DEVICE}")

    async def _first_server(self) -> int:
        with trio.move_on_after(self._settings.answer_seconds):
            while True:
                servers = await self._control.servers()
                if servers and await self._control.status(servers[0]) != "INITIALIZING":
                    return servers[0]
                await trio.sleep(self._quick / 4)
        raise ControlError("its server did not start; the control log says more")

    async def _check(self, percent: str, memory: str) -> None:
        """Raises ControlError when what is in force is not what was set."""
        found, held = await self._control.limits(percent, memory)
        if not abs(found - self.cut.percent) <= 0.5:  # also of what is no number
            raise ControlError(
                f"'{percent}' says {found:g}% and {self.cut.percent}% was set: the limit is not in force"
            )
        wanted = self.cut.memory_mebibytes
        if wanted is not None and (held is None or not held.tells(wanted)):
            told = "nothing" if held is None else f"{held.mebibytes} MiB"
            raise ControlError(f"'{memory}' says {told} and {wanted} MiB was set: the limit is not in force")

    def _new_run(self, run: tuple[int | None, int]) -> None:
        if self._run != (None, 0):
            self._note_lost_server(())
        self._run = run
        self._applied_to = 0

    def _note_lost_server(self, servers: tuple[int, ...]) -> None:
        """The server whose limits were read back is not among those that there are: by this daemon's word or, after a
        restart, by what the one before has kept of it."""
        lost = self._clients.server
        left = self._clients.lose(servers)
        self._applied_to = 0
        self._faults_alone = 0
        if self._state.offered:
            self.offered = trio.Event()  # who asks for the card waits until it is offered again
        self._replace(
            server=0, clients=(), orphans=self._clients.orphans, offered=False, why="its limits are not applied yet"
        )
        if left:
            self._emit(
                EventType.WARNING,
                "MpsClientsOrphaned",
                f"the MPS server {lost} ended under its clients {', '.join(map(str, left))}: end them, for they get "
                "CUDA error 806 from now on; the card is offered again when they have gone",
            )

    def _judge(self, server: int, status: str, clients: tuple[int, ...]) -> None:
        self._clients.see(server, clients)
        orphans = self._clients.orphans
        if status == "FAULT":
            self._faults_alone = 0 if clients else self._faults_alone + 1
            who = f"clients {', '.join(map(str, clients))} must end" if clients else "no client is left"
            self._replace(server=server, clients=clients, orphans=orphans)
            self._withhold(f"its MPS server {server} is in FAULT: {who} before it takes new ones", "MpsServerFault")
            return
        self._faults_alone = 0
        self._replace(server=server, clients=clients, orphans=orphans)
        if orphans:
            self._withhold(f"processes {', '.join(map(str, orphans))} were clients of a server that has ended")
        elif not self._state.offered:
            self._replace(offered=True, why="")
            self.offered.set()
            self._emit(
                EventType.NORMAL,
                "MpsReady",
                f"MPS server {server} gives each client {self.effective_percent:.4g}% of the SMs"
                + (f" and {self.cut.memory_mebibytes} MiB" if self.cut.memory_mebibytes is not None else "")
                + ", read back",
            )

    def _withhold(self, why: str, reason: str = "MpsWithheld") -> None:
        told = why != self._state.why
        was = self._state.offered
        self._replace(offered=False, why=why)
        if was:
            self.offered = trio.Event()
        if told and (was or reason != "MpsWithheld"):
            self._emit(EventType.WARNING, reason, f"the card is not offered: {why}")

    def _replace(self, **parts: object) -> None:
        values = {name: getattr(self._state, name) for name in CardState.__slots__} | parts
        self._state = CardState(**values)
