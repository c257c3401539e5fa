"""Who may use the admin socket, by the daemon's user and groups."""

from __future__ import annotations

import grp
import os
from types import SimpleNamespace

import pytest

from hypervisor.rpc.listening import ADMIN_GROUP, admin_access

GROUP = 900


@pytest.mark.parametrize(
    ("user", "groups", "access"),
    [
        (0, [0], (0o660, GROUP)),
        (900, [GROUP], (0o660, GROUP)),  # as the unit runs it
        (1000, [1000, GROUP], (0o660, GROUP)),
        (1000, [1000], (0o600, -1)),
    ],
)
def test_the_group_may_where_the_daemon_can_give_it_the_socket(
    monkeypatch: pytest.MonkeyPatch, user: int, groups: list[int], access: tuple[int, int]
) -> None:
    known = {ADMIN_GROUP: SimpleNamespace(gr_gid=GROUP)}
    monkeypatch.setattr(grp, "getgrnam", known.__getitem__)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(os, "getegid", lambda: groups[0])
    monkeypatch.setattr(os, "getgroups", lambda: groups[1:])
    assert admin_access() == access
    known.clear()
    assert admin_access() == (0o600, -1)
