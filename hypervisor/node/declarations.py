"""Allocations and workers that files of a directory declare, kept as the files say. A file that can't be used changes
nothing."""

from __future__ import annotations

import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
import trio

from hypervisor.kube.declared import WORKER_PREFIX, DeclarationError, Declared, read_declarations
from hypervisor.model import (
    Allocation,
    AllocationPhase,
    AllocationSpec,
    OwnerKind,
    Refusal,
    Worker,
    WorkerPhase,
    WorkerSpec,
)
from hypervisor.node.commands import Commands

log = structlog.get_logger("node")
LOOK_SECONDS = 2.0
_SUFFIX = ".toml"
_OVER = frozenset({WorkerPhase.STOPPED, WorkerPhase.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclarationsStatistics:
    """Files and what they declare now, and what could not be done at the last look."""

    files: int
    declared: int
    failing: int


class Declarations:
    """One directory. For the trio main thread."""

    def __init__(
        self,
        directory: Path,
        *,
        commands: Commands,
        allocations: Callable[[], tuple[Allocation, ...]],
        workers: Callable[[], tuple[Worker, ...]],
    ) -> None:
        self._directory = directory
        self._commands = commands
        self._allocations = allocations
        self._workers = workers
        self._files: dict[str, tuple[tuple[int, int, int], Declared | None]] = {}
        self._failures: dict[str, str] = {}

    @property
    def failing(self) -> str:
        """What is wrong, "" for nothing."""
        return "; ".join(self._failures[key] for key in sorted(self._failures))

    async def run(self) -> None:
        """Look for ever. Cancel-safe."""
        while True:
            await self.step()
            await trio.sleep(LOOK_SECONDS)

    async def step(self) -> None:
        """Read what has changed, then do what is missing."""
        failures: dict[str, str] = {}
        wanted = self._read(failures)
        if wanted is not None:
            await self._bring_about(wanted, failures)
            await self._bring_workers_about(failures)
        for key in sorted(failures):
            if failures[key] != self._failures.get(key):
                log.warning("a declaration can't be carried out", reason=failures[key])
        self._failures = failures

    def statistics(self) -> DeclarationsStatistics:
        """As of the last look."""
        return DeclarationsStatistics(
            files=len(self._files),
            declared=sum(len(found.allocations) + len(found.workers) for _, found in self._files.values() if found),
            failing=len(self._failures),
        )

    def _read(self, failures: dict[str, str]) -> Mapping[str, AllocationSpec] | None:
        """By id, what is declared; None when the directory can't be read, which says nothing."""
        try:
            # A hidden one is an editor's.
            found = sorted(self._directory.glob(f"*{_SUFFIX}"))
            paths = {path.name: path for path in found if not path.name.startswith(".")}
            if not paths:
                self._directory.stat()  # is it empty, or not there?
            read = {name: self._read_file(path, failures) for name, path in paths.items()}
        except OSError as error:
            failures[""] = f"declarations in {self._directory} can't be read: {error.strerror}"
            return None
        self._files = read
        wanted: dict[str, AllocationSpec] = {}
        for name, (_, specs) in read.items():
            for spec in specs.allocations if specs else ():
                if spec.allocation_id in wanted:
                    other = wanted[spec.allocation_id].owner.name
                    failures[name] = f"{name}: declares {spec.allocation_id!r}, which {other} declares too"
                else:
                    wanted[spec.allocation_id] = spec
        return wanted

    def _read_file(self, path: Path, failures: dict[str, str]) -> tuple[tuple[int, int, int], Declared | None]:
        """What a file says; of one that can't be used, what it said before, None when it never could be."""
        before, state = self._files.get(path.name), (0, 0, 0)
        try:
            found = path.stat()
            state = (found.st_ino, found.st_mtime_ns, found.st_size)
            if before is not None and before[0] == state and path.name not in self._failures:
                return before
            if not stat.S_ISREG(found.st_mode):
                raise DeclarationError(f"{path.name} is no plain file")  # noqa: TRY301 - and reading it may never end
            return state, _declared(path, writable_by_others=bool(found.st_mode & 0o022))
        except (DeclarationError, UnicodeDecodeError) as error:
            failures[path.name] = str(error)
        except OSError as error:
            failures[path.name] = f"{path.name} can't be read: {error.strerror}"
        return state, before[1] if before is not None else None

    async def _bring_about(self, wanted: Mapping[str, AllocationSpec], failures: dict[str, str]) -> None:
        ours = {
            each.spec.allocation_id: each
            for each in self._allocations()
            if each.spec.owner.kind is OwnerKind.DECLARED and each.phase is AllocationPhase.ACTIVE
        }
        # What a file that never could be read has declared in an earlier life is not known; it is kept.
        unread = {name for name, (_, specs) in self._files.items() if specs is None}
        for name, allocation in ours.items():
            if name not in wanted and allocation.spec.owner.name not in unread:
                await self._tried(name, failures, self._commands.release, name)
        for name, spec in wanted.items():
            held = ours.get(name)
            if held is None:
                await self._tried(name, failures, self._allocate, spec)
            elif held.spec != spec:
                await self._tried(name, failures, self._change, held, spec)

    async def _bring_workers_about(self, failures: dict[str, str]) -> None:
        ours = {each.worker_id: each for each in self._workers() if each.worker_id.startswith(WORKER_PREFIX)}
        wanted: dict[str, WorkerSpec] = {}
        for name, (_, found) in self._files.items():
            for spec in found.workers if found else ():
                if spec.worker_id in wanted:
                    failures[name] = f"{name}: declares a worker that another file declares too: {spec.worker_id}"
                wanted.setdefault(spec.worker_id, spec)
        unread = any(found is None for _, found in self._files.values())
        for worker_id in ours:
            if worker_id not in wanted and not unread:
                await self._tried(worker_id, failures, self._stop, worker_id)
        for worker_id, spec in wanted.items():
            held = ours.get(worker_id)
            if held is not None and (held.command, held.allocation_id) != (spec.command, spec.allocation_id):
                await self._tried(worker_id, failures, self._stop, worker_id)
                held = None
            if held is None or held.phase in _OVER:
                await self._tried(worker_id, failures, self._commands.start_worker, spec)

    async def _stop(self, worker_id: str) -> None:
        await self._commands.stop_worker(worker_id, grace_seconds=None, forget=True)

    async def _allocate(self, spec: AllocationSpec) -> None:
        await self._commands.allocate(spec, dry_run=False)

    async def _change(self, held: Allocation, spec: AllocationSpec) -> None:
        """Other figures are put in force; what else differs takes a new allocation."""
        same_cards = [each.gpu for each in held.spec.devices] == [each.gpu for each in spec.devices]
        if same_cards and replace(held.spec, devices=spec.devices) == spec:
            changed = await self._commands.update_limits(spec.allocation_id, spec.devices, None)
            if changed.spec == spec:
                return
        await self._commands.release(spec.allocation_id)
        await self._commands.allocate(spec, dry_run=False)

    async def _tried(
        self, name: str, failures: dict[str, str], action: Callable[..., Awaitable[object]], *arguments: object
    ) -> None:
        try:
            await action(*arguments)
        except Refusal as refusal:
            failures[f"object {name}"] = f"the declared '{name}' is not as it should be: {refusal}"


def _declared(path: Path, *, writable_by_others: bool) -> Declared:
    """What a file declares. Raises DeclarationError, UnicodeDecodeError or OSError."""
    found = read_declarations(path.read_text(encoding="utf-8"), file=path.name)
    if found.workers and writable_by_others:
        raise DeclarationError(f"{path.name}: declares a worker, and others may write the file; chmod go-w {path}")
    return found
