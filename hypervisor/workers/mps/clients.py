"""Who uses a card through its MPS server, and who is left of a server that has ended; kept over restarts of ours.

A process is a pid with its start time: a number that the machine has given to somebody else withholds no card.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec
import structlog

from hypervisor.durable import write_whole
from hypervisor.workers.identity import ProcessIdentity, alive, boot_id, identify
from hypervisor.workers.shim_files import read_plain

log = structlog.get_logger("mps")
_MOST_BYTES = 2**20


class _File(msgspec.Struct, frozen=True, kw_only=True):
    boot_id: str
    server: ProcessIdentity | None
    clients: tuple[ProcessIdentity, ...]
    orphans: tuple[ProcessIdentity, ...]


class Clients:
    """Of one card."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot_id = boot_id()
        self._server: ProcessIdentity | None = None
        self._clients: tuple[ProcessIdentity, ...] = ()
        self._orphans: tuple[ProcessIdentity, ...] = ()
        self._read()

    @property
    def server(self) -> int:
        """The server that was last seen; 0 without one."""
        return self._server.pid if self._server is not None else 0

    @property
    def clients(self) -> tuple[int, ...]:
        """Its clients, as last seen."""
        return _pids(self._clients)

    @property
    def orphans(self) -> tuple[int, ...]:
        """Those of a server that has ended which still live."""
        return _pids(filter(alive, self._orphans))

    def see(self, server: int, pids: Collection[int]) -> None:
        """The server that is in force, and its clients now."""
        known = {each.pid: each for each in self._clients}
        clients = (known.get(pid) if pid in known and alive(known[pid]) else identify(pid) for pid in sorted(pids))
        self._put(
            server=self._server if self.server == server else identify(server),
            clients=tuple(each for each in clients if each is not None),
            orphans=tuple(filter(alive, self._orphans)),
        )

    def lose(self, servers: Collection[int]) -> tuple[int, ...]:
        """The server is not among those that there are: its clients can do nothing any more, and hold their memory
        until they end. Returns those that live; none where the server is there, or had none."""
        if self._server is None or (self._server.pid in servers and alive(self._server)):
            return ()
        left = tuple(filter(alive, self._clients))
        self._put(server=None, clients=(), orphans=(*filter(alive, self._orphans), *left))
        return _pids(left)

    def forget(self) -> None:
        """The card is given back."""
        self._server, self._clients, self._orphans = None, (), ()
        self._path.unlink(missing_ok=True)

    def _put(
        self,
        *,
        server: ProcessIdentity | None,
        clients: tuple[ProcessIdentity, ...],
        orphans: tuple[ProcessIdentity, ...],
    ) -> None:
        if (server, clients, orphans) == (self._server, self._clients, self._orphans):
            return
        self._server, self._clients, self._orphans = server, clients, orphans
        content = _File(boot_id=self._boot_id, server=server, clients=clients, orphans=orphans)
        try:
            # Of no use in another boot, so it need not survive a power cut.
            write_whole(self._path, msgspec.json.encode(content))
        except OSError as error:
            log.warning("the clients of a card can't be kept", path=str(self._path), why=error.strerror)

    def _read(self) -> None:
        try:
            found = msgspec.json.decode(read_plain(self._path, _MOST_BYTES), type=_File)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("the clients of a card can't be read", path=str(self._path), why=str(error))
            return
        if found.boot_id == self._boot_id:
            self._server, self._clients, self._orphans = found.server, found.clients, found.orphans


def _pids(identities: Iterable[ProcessIdentity]) -> tuple[int, ...]:
    return tuple(sorted(each.pid for each in identities))
