"""Which server the command line asks where none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypervisor.cli import connection


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "system"
    place.mkdir()
    monkeypatch.setattr(connection, "_SYSTEM_DIRECTORY", place)
    return place


def test_the_system_s_daemon_is_asked_where_the_user_has_none(system: Path, tmp_path: Path) -> None:
    own = tmp_path / "owner.sock"
    assert connection.own_or_system(f"unix:{own}") == f"unix:{own}"
    (system / "owner.sock").touch()
    assert connection.own_or_system(f"unix:{own}") == f"unix:{system / 'owner.sock'}"
    own.touch()
    assert connection.own_or_system(f"unix:{own}") == f"unix:{own}"
    assert connection.own_or_system("gpu-1:50051") == "gpu-1:50051"
