"""The page on security names every mode that the daemon gives to sockets and files, each where it is given."""

from __future__ import annotations

import os
import re

import pytest

from hypervisor.aggregator import listeners
from hypervisor.limits.creation import Access
from hypervisor.rpc import device_plugin, listening, pod_resources_proxy
from tests.documentation.blocks import DOCS


def _modes(subject: str) -> set[int]:
    """The modes in the row of a table that begins with these words."""
    text = (DOCS / "security.md").read_text(encoding="utf-8")
    (row,) = [line for line in text.splitlines() if line.startswith(f"| {subject}")]
    return {int(mode, 8) for mode in re.findall(r"\b0[0-7]{3}\b", row.split("|")[2])}


@pytest.mark.parametrize(
    ("subject", "modes"),
    [
        ("read (", {listening.READ_MODE}),
        ("owner (", {listening.OWNER_MODE}),
        ("admin (", {0o660, 0o600}),  # each case: tests/unit/rpc/test_admin_access.py
        ("device plugin (", {device_plugin.SOCKET_MODE}),
        ("real GPUs for exporters (", {pod_resources_proxy.MODE}),
        ("aggregator (", {listeners._SOCKET_MODE}),
    ],
)
def test_sockets(subject: str, modes: set[int]) -> None:
    assert _modes(subject) == modes


def test_usage_files(monkeypatch: pytest.MonkeyPatch) -> None:
    given = set()
    for daemon in (0, 900):
        monkeypatch.setattr(os, "geteuid", lambda daemon=daemon: daemon)
        accesses = (Access(owner_uid=1000), Access(owner_uid=daemon), Access(ours=True), Access(mounted_only=True))
        given |= {access.mode for access in accesses}
    assert _modes("usage ") == given
