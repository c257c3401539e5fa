"""Who is at the other end of a connection: a role and a name, as certificates and tokens say it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

_SCHEME = "hypervisor"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


class Role(Enum):
    """What somebody may do: report one node, read everything, or be reported to."""

    NODE = "node"
    READER = "reader"
    AGGREGATOR = "aggregator"


@dataclass(frozen=True, slots=True)
class Identity:
    """A role and the name of who has it; of a node its node name."""

    role: Role
    name: str

    def __str__(self) -> str:
        return f"{self.role.value} {self.name}"

    @property
    def uri(self) -> str:
        """The subject alternative name of a certificate that says so: hypervisor:ROLE:NAME."""
        return f"{_SCHEME}:{self.role.value}:{self.name}"


def is_name(text: str) -> bool:
    """Whether this can be the name of a node or of a reader: letters, digits, dots, dashes and underscores."""
    return _NAME.fullmatch(text) is not None


def parse_uri(uri: str) -> Identity | None:
    """The identity that a URI of a certificate says; None for one that is not ours."""
    scheme, _, rest = uri.partition(":")
    role, _, name = rest.partition(":")
    if scheme != _SCHEME or role not in {each.value for each in Role} or not is_name(name):
        return None
    return Identity(Role(role), name)
