"""A fleet's certificates for tests, made by the room that makes them for people."""

from __future__ import annotations

from pathlib import Path

from hypervisor.certificates import Authority, Issued
from hypervisor.model.peer import Identity, Role


class FleetCertificates:
    """An authority in a directory; each identity's folder is made when it is asked for."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority.create(directory, days=30)
        self._issued: dict[Identity, Issued] = {}

    def aggregator(self) -> Path:
        return self._folder(Identity(Role.AGGREGATOR, "aggregator"), ("127.0.0.1", "localhost"))

    def node(self, name: str) -> Path:
        return self._folder(Identity(Role.NODE, name), (name, "127.0.0.1"))

    def reader(self, name: str = "ops") -> Path:
        return self._folder(Identity(Role.READER, name), ())

    def renew(self, folder: Path) -> None:
        issued = next(each for each in self._issued.values() if each.folder == folder)
        self.authority.renew(issued, days=30)

    def _folder(self, identity: Identity, addresses: tuple[str, ...]) -> Path:
        if identity not in self._issued:
            self._issued[identity] = self.authority.issue(identity, addresses, days=30)
        return self._issued[identity].folder
