"""A directory of declarations in which something lies that is none."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from hypervisor.node.declarations import Declarations

GOOD = '[[allocations]]\nname = "a"\ngpu = "0"\n'


def test_what_can_not_be_read_holds_up_no_other_file(tmp_path: Path) -> None:
    """A link to nothing, a pipe nobody writes to, a folder, what no parser follows; an editor's lock counts not."""
    asked: list[str] = []

    async def allocate(spec: Any, *, dry_run: bool) -> None:
        asked.append(spec.allocation_id)
        await trio.lowlevel.checkpoint()

    commands: Any = SimpleNamespace(allocate=allocate)
    (tmp_path / "good.toml").write_text(GOOD)
    (tmp_path / "link.toml").symlink_to("nothing")
    (tmp_path / ".#good.toml").symlink_to("user@host.1234")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "deep.toml").write_text("a = " + "[" * 20_000)
    os.mkfifo(tmp_path / "pipe.toml")
    declarations = Declarations(tmp_path, commands=commands, allocations=lambda: (), workers=lambda: ())
    trio.run(declarations.step)
    assert asked == ["a"]
    told = declarations.failing.split("; ")
    assert [each.split()[0] for each in told] == ["deep.toml", "folder.toml", "link.toml", "pipe.toml"]
    assert "No such file" in told[2]
