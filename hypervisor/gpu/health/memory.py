"""What stands against the cards, kept over a restart of the daemon and forgotten by one of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from hypervisor.durable import write_atomically
from hypervisor.gpu.health.machine import CardHealth, Standing
from hypervisor.model.health import HealthCode, HealthState

_VERSION = 1
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


class _Standing(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    code: HealthCode
    state: HealthState
    text: str
    since: float
    last: float
    sticky: bool
    pulse: bool
    asked: bool


class _Card(msgspec.Struct, frozen=True, kw_only=True):
    standings: list[_Standing]
    relapses: list[float]
    failed_owners: list[tuple[float, str]]
    binding: int | None = None  # older files have none


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    boot_id: str
    log_sequence: int | None
    cards: dict[str, _Card]


class HealthMemory:
    """The file health.json of the state directory. One that can't be used counts as none: it is a cache of verdicts."""

    def __init__(self, path: Path | None, *, boot_id_file: Path = BOOT_ID_FILE) -> None:
        self._path = path
        self._boot_id = _boot_id(boot_id_file)
        self._stored: object = None
        self.failure = ""  # why the last store failed

    def load(self) -> tuple[dict[str, tuple[CardHealth, int | None]], int | None]:
        """By UUID what stood against each card in this boot, with its binding to the driver then, and the last record
        of the kernel's log that counted."""
        if self._path is None:
            return {}, None
        try:
            record = msgspec.json.decode(self._path.read_bytes(), type=_Record)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}, None
        if record.version != _VERSION or record.boot_id != self._boot_id:
            return {}, None
        return {uuid: (_health(card), card.binding) for uuid, card in record.cards.items()}, record.log_sequence

    def store(self, cards: Mapping[str, tuple[CardHealth, int | None]], log_sequence: int | None) -> None:
        """Keep it, if it says something else than what is kept. After a failure, told in words, the next time tries."""
        kept = {uuid: (health, binding) for uuid, (health, binding) in cards.items() if health.confirmed}
        outline = {
            uuid: (binding, *((each.key, each.state, each.asked, each.text) for each in health.confirmed))
            for uuid, (health, binding) in kept.items()
        }
        if self._path is None or outline == self._stored or (self._stored is None and not outline):
            return
        record = _Record(
            version=_VERSION,
            boot_id=self._boot_id,
            log_sequence=log_sequence,
            cards={uuid: _card(health, binding) for uuid, (health, binding) in kept.items()},
        )
        try:
            write_atomically(self._path, msgspec.json.encode(record))
        except OSError as error:
            self.failure = f"{self._path}: {error.strerror or error}"
            return
        self.failure = ""
        self._stored = outline


def _boot_id(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _card(health: CardHealth, binding: int | None) -> _Card:
    return _Card(
        binding=binding,
        standings=[
            _Standing(
                key=each.key,
                code=each.code,
                state=each.state,
                text=each.text,
                since=each.since,
                last=each.last,
                sticky=each.sticky,
                pulse=each.pulse,
                asked=each.asked,
            )
            for each in health.confirmed
        ],
        relapses=list(health.relapses),
        failed_owners=list(health.failed_owners),
    )


def _health(card: _Card) -> CardHealth:
    return CardHealth(
        standings=tuple(
            Standing(confirmed=True, **{name: getattr(each, name) for name in _Standing.__struct_fields__})
            for each in card.standings
        ),
        relapses=tuple(card.relapses),
        failed_owners=tuple(card.failed_owners),
    )
