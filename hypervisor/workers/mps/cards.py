"""All cards under MPS: which are cut and how, and what follows for allocations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

import msgspec
import structlog
import trio

from hypervisor.model import (
    Allocation,
    DeviceGrant,
    DeviceObservation,
    Enforcement,
    EventType,
    ObjectKind,
    ObjectReference,
    Owner,
    OwnerKind,
    Refusal,
    RefusalReason,
)
from hypervisor.workers.mps.card import CardMemory, ComputeModes, MpsCard
from hypervisor.workers.mps.settings import MpsSettings
from hypervisor.workers.mps.shares import Cut, cut_of, is_cut, percent_of
from hypervisor.workers.mps.support import most_clients, why_not
from hypervisor.workers.supervisor import Supervisor

log = structlog.get_logger("mps")
IDLE_SECONDS = 30.0  # a card that was prepared for a grant that did not come is given back after this


class MpsCards:
    """For the trio main thread; run by run()."""

    def __init__(
        self,
        settings: MpsSettings,
        supervisor: Supervisor,
        *,
        modes: ComputeModes | None,
        emit: Callable[..., None],
        environment: Mapping[str, str],
        cuda_version: Callable[[], str],
        sm_count: Callable[[str], int | None],
    ) -> None:
        """environment: what a control daemon needs besides MPS's own (on a simulated machine)."""
        self._settings = settings
        self._supervisor = supervisor
        self._modes = modes
        self._emit_event = emit
        self._environment = dict(environment)
        self._cuda_version = cuda_version
        self._sm_count = sm_count
        self._cards: dict[str, MpsCard] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._idle_since: dict[str, float] = {}
        self._preparing: Counter[str] = Counter()
        self._ending: dict[str, trio.Event] = {}  # cards that are being given back, until they are
        self._nursery: trio.Nursery | None = None

    # -- asked by admission

    def refusal(
        self, device: DeviceObservation, grant: DeviceGrant, *, holders: int, owner: Owner, field: str
    ) -> Refusal | None:
        """Why a grant can't be hard on a card, None when it can. holders: allocations on it already, of which each will
        have a client at least; where they have more, the server's own list counts."""
        where = f"GPU {device.identity.index} ({device.identity.uuid})"
        why = why_not(device, program=self._settings.program)
        if why:
            return Refusal(
                RefusalReason.ISOLATION_UNSUPPORTED,
                f"{where} can't give hard isolation: {why}",
                field="isolation",
                remedy="ask for soft isolation, or for another GPU",
            )
        most = most_clients(device.identity.compute_capability, self._cuda_version())
        card = self._cards.get(device.identity.uuid)
        clients = 0 if card is None else len(card.state.clients)
        if max(holders, clients) >= most:
            return Refusal(
                RefusalReason.ISOLATION_UNSUPPORTED,
                f"{where} has {holders} hard allocations and {clients} clients, and its server takes {most} clients",
                field=field,
                remedy="ask for another GPU, or wait until clients have ended",
            )
        return None if card is None else self._misfit(card, grant, owner, where, field)

    def _misfit(self, card: MpsCard, grant: DeviceGrant, owner: Owner, where: str, field: str) -> Refusal | None:
        cut, wanted = card.cut, cut_of((grant,))
        above = wanted is not None and (
            wanted.percent > cut.percent
            or (
                cut.memory_mebibytes is not None
                and (wanted.memory_mebibytes is None or wanted.memory_mebibytes > cut.memory_mebibytes)
            )
        )
        if above:
            memory = "" if cut.memory_mebibytes is None else f" and {cut.memory_mebibytes} MiB"
            return Refusal(
                RefusalReason.ISOLATION_CONFLICT,
                f"{where} is cut into hard shares of {cut.percent}%{memory}, and a share of "
                f"{percent_of(grant)}% or its memory is larger",
                field=field,
                remedy="ask for at most that, or for another GPU",
            )
        if not self._settings.multiuser and owner.kind is OwnerKind.PROCESS and owner.uid != card.memory.uid:
            return Refusal(
                RefusalReason.ISOLATION_CONFLICT,
                f"the MPS server of {where} serves user {card.memory.uid}, and user {owner.uid} would wait until its "
                "clients have gone",
                field=field,
                remedy="run the daemon as root with mps_multiuser, or ask for another GPU",
            )
        return None

    def environment(self, allocation: Allocation) -> Mapping[str, str]:
        """What a client of a hard allocation needs; what bounds it stands in the server, and here only tighter."""
        grant = allocation.grants[0]
        card = self._cards.get(grant.gpu_uuid)
        percent = percent_of(grant)
        variables = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._settings.directory / grant.gpu_uuid / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._settings.directory / grant.gpu_uuid / "log"),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent),
            "TF_CUDA_SM_PERCENT_LIMIT": str(percent),
        }
        if grant.limit_vram_bytes is not None:
            variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={grant.limit_vram_bytes // 2**20}M"
            variables["TF_GPU_MEMORY_LIMIT"] = str(grant.limit_vram_bytes // 2**20)  # MiB, as the product has it
        if card is not None and card.state.server:
            log.debug("client", card=grant.gpu_uuid, server=card.state.server)
        return variables

    def enforcement(self, allocation: Allocation) -> Enforcement:
        """Verified when the server's own limit is the allocation's and was read back."""
        grant = allocation.grants[0]
        card = self._cards.get(grant.gpu_uuid)
        if card is None or not card.state.offered:
            return Enforcement.UNVERIFIED
        if self._modes is None or not is_cut(grant, card.cut):
            return Enforcement.COOPERATIVE
        return Enforcement.VERIFIED

    def effective_percent(self, allocation: Allocation) -> float | None:
        """The share of the SMs that each process of a hard allocation can use, in percent; None without a card."""
        card = self._cards.get(allocation.grants[0].gpu_uuid)
        return None if card is None else card.effective_percent

    def withheld(self) -> Mapping[str, str]:
        """By GPU UUID, why a card under MPS is not offered now."""
        return {uuid: card.state.why for uuid, card in self._cards.items() if not card.state.offered}

    def orphans(self) -> Mapping[str, tuple[int, ...]]:
        """By GPU UUID, pids that were clients of a server that has ended."""
        return {uuid: card.state.orphans for uuid, card in self._cards.items() if card.state.orphans}

    # -- done by the node

    async def prepare(self, grant: DeviceGrant, owner: Owner) -> None:
        """Have a card ready for a grant: cut if it is not, and offered. Raises Refusal."""
        uuid = grant.gpu_uuid
        # What gives a card back ends its daemon and its exclusive mode: a new cut begins after that, or loses both.
        while uuid in self._ending:
            await self._ending[uuid].wait()
        if uuid not in self._cards:
            cut = cut_of((grant,))
            if cut is None:
                raise RuntimeError("a grant has a cut")
            self._take(_memory(uuid, cut, owner.uid if not self._settings.multiuser else 0))
        self._idle_since.pop(uuid, None)
        card = self._cards[uuid]
        # Two first grants of a card at the same time: the second meets the cut of the first.
        misfit = self._misfit(card, grant, owner, f"GPU {uuid}", "devices[0]")
        if misfit is not None:
            raise misfit
        self._preparing[uuid] += 1
        try:
            with trio.move_on_after(self._settings.prepare_seconds):
                await card.offered.wait()
        finally:
            self._preparing[uuid] -= 1
        if not card.state.offered:
            raise Refusal(
                RefusalReason.NOT_READY,
                f"GPU {uuid} can't give hard isolation now: {card.state.why}",
                field="isolation",
                remedy=f"see 'hypervisor describe worker {card.worker_id}', or ask for soft isolation",
            )

    async def run(self, hard: Callable[[], Collection[Allocation]]) -> None:
        """For ever: cards of the daemon before are taken up, those with no hard allocation are given back. Cancelling
        leaves all as it is."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for memory in self._remembered():
                self._take(memory)
            while True:
                await self._reconcile(hard())
                await trio.sleep(1)

    async def _reconcile(self, hard: Collection[Allocation]) -> None:
        """Every card with a hard allocation is kept, also one whose preparation a crash has cut short."""
        grants: dict[str, list[DeviceGrant]] = {}
        for allocation in hard:
            for grant in allocation.grants:
                grants.setdefault(grant.gpu_uuid, []).append(grant)
        for uuid, found in grants.items():
            cut = cut_of(found)
            if uuid not in self._cards and cut is not None and self._settings.program:
                self._take(_memory(uuid, cut, hard_uid(hard, uuid, multiuser=self._settings.multiuser)))
        await self._give_back(grants)

    def _remembered(self) -> list[CardMemory]:
        found = []
        for path in sorted(self._settings.directory.glob("*/card.json")):
            try:
                memory = msgspec.json.decode(path.read_bytes(), type=CardMemory)
            except (OSError, ValueError) as error:
                log.warning("a card's memory can't be read", path=str(path), why=str(error))
                continue
            if memory.uuid == path.parent.name:
                found.append(memory)
            else:
                log.warning("a card's memory is of another card", path=str(path), card=memory.uuid)
        return found

    async def _give_back(self, wanted: Collection[str]) -> None:
        now = trio.current_time()
        for uuid in [uuid for uuid in self._cards if uuid not in wanted and not self._preparing[uuid]]:
            since = self._idle_since.setdefault(uuid, now)
            if now - since < IDLE_SECONDS:
                continue
            self._scopes.pop(uuid).cancel()
            card = self._cards.pop(uuid)
            ending = self._ending[uuid] = trio.Event()
            try:
                left = await card.end()
            except (OSError, Refusal) as error:
                log.warning("a card can't be given back", card=uuid, why=str(error))
                self._keep(card)
                continue
            finally:
                del self._ending[uuid]
                ending.set()
            self._idle_since.pop(uuid, None)
            if left:
                self._emit(
                    uuid, EventType.WARNING, "ComputeModeKept", f"its compute mode could not be restored: {left}"
                )
        for uuid in wanted:
            self._idle_since.pop(uuid, None)

    def _take(self, memory: CardMemory) -> None:
        uuid = memory.uuid
        card = MpsCard(
            memory,
            settings=self._settings,
            supervisor=self._supervisor,
            modes=self._modes,
            sm_count=self._sm_count(uuid),
            environment=self._environment,
            emit=lambda kind, reason, message: self._emit(uuid, kind, reason, message),
        )
        self._keep(card)
        card.adopt()

    def _keep(self, card: MpsCard) -> None:
        """Raises Refusal."""
        if self._nursery is None:
            raise Refusal(RefusalReason.NOT_READY, "MPS is not looked after yet", remedy="try again soon")
        self._cards[card.memory.uuid] = card
        scope = self._scopes[card.memory.uuid] = trio.CancelScope()

        async def task() -> None:
            with scope:
                await card.keep()

        self._nursery.start_soon(task)

    def _emit(self, uuid: str, kind: EventType, reason: str, message: str) -> None:
        about = ObjectReference(kind=ObjectKind.GPU, name=uuid.lower(), uid=uuid)
        self._emit_event(kind, reason, about, message)


def _memory(uuid: str, cut: Cut, uid: int) -> CardMemory:
    return CardMemory(uuid=uuid, percent=cut.percent, memory_mebibytes=cut.memory_mebibytes, uid=uid)


def hard_uid(hard: Collection[Allocation], uuid: str, *, multiuser: bool) -> int:
    """The user that a card's server serves: root for several, else the first owner's."""
    if multiuser:
        return 0
    owners = [each.spec.owner for each in hard if any(grant.gpu_uuid == uuid for grant in each.grants)]
    return next((owner.uid for owner in owners if owner.kind is OwnerKind.PROCESS), 0)
