"""The daemon's way to limit the VRAM of control groups through NVML (driver 615 and newer).

What comes together is set by one reader: starting one takes longer than many limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hypervisor.gpu import wire
from hypervisor.gpu.codes import SUCCESS, words
from hypervisor.gpu.errand import NO_CODE, ErrandError, Errands, ask_of, exchange
from hypervisor.gpu.pipe import ReaderGoneError, ReaderHungError, ReaderProcess, open_reader_process

FIRST_BRANCH = 615  # NVML's list of changes between 610 and 615


def has_memory_limits(driver_version: str) -> bool | None:
    """Whether a driver of this version has the calls, None for one that is not known yet; whether they work on this
    machine only they can say."""
    if not driver_version:
        return None
    branch = driver_version.partition(".")[0]
    return branch.isdecimal() and int(branch) >= FIRST_BRANCH


@dataclass(slots=True, eq=False)
class _Wanted:
    bus_id: str
    cgroup: Path
    hard_bytes: int | None
    told: wire.MemoryLimitTold | ErrandError | None = None


@dataclass(slots=True)
class MemoryLimits:
    """Sets limits, and reads them back; in trio."""

    errands: Errands
    _waiting: list[_Wanted] = field(default_factory=list)

    async def limit(self, bus_id: str, cgroup: Path, hard_bytes: int | None) -> wire.MemoryLimitTold:
        """Limit a group on a card, None: no more; what was read back. Raises ErrandError. Cancelling stops the
        waiting; the limit may have been set."""
        wanted = _Wanted(bus_id, cgroup, hard_bytes)
        self._waiting.append(wanted)
        try:
            async with self.errands.turn:
                if wanted.told is None:
                    await self._serve()
        finally:
            if wanted in self._waiting:
                self._waiting.remove(wanted)
        if isinstance(wanted.told, ErrandError):
            raise wanted.told
        if wanted.told is None:
            raise AssertionError("whoever has the turn serves all that wait")
        if wanted.told.code != SUCCESS:
            raise ErrandError(wanted.told.code, f"{wanted.told.step} says: {words(wanted.told.code)}")
        return wanted.told

    async def _serve(self) -> None:
        """Everything that waits now; a reader that hangs or dies ends it for all."""
        async with open_reader_process(self.errands.environment, self.errands.lingering) as process:
            batch = list(self._waiting)
            try:
                await exchange(process, wire.Open(), wire.Opened)
                for each in batch:
                    each.told = await _set(process, each)
            except (ErrandError, ReaderHungError, ReaderGoneError) as error:
                failed = error if isinstance(error, ErrandError) else ErrandError(NO_CODE, f"the driver: {error}")
                for each in batch:
                    each.told = each.told or failed


async def _set(process: ReaderProcess, wanted: _Wanted) -> wire.MemoryLimitTold | ErrandError:
    def request(slot: str) -> wire.Request:
        return wire.MemoryLimit(slot, str(wanted.cgroup), wanted.hard_bytes)

    try:
        return await ask_of(process, wanted.bus_id, request, wire.MemoryLimitTold)
    except ErrandError as error:
        return error
