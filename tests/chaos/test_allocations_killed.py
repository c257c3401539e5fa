"""kill -9 of a daemon that grants, changes and releases without end: what was answered holds, and nothing is half."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from buildsupport.native import ROOT
from hypervisor.allocations import Allocations
from hypervisor.limits import LimitDirectory
from tests.unit.allocations.builders import BOOT, CARD_BYTES, GIB, Node, device, inventory, named, percent, request

ROUNDS = 8
STOCK = inventory(device(0), device(1))


def run_and_kill(root: Path, epoch: int, after_seconds: float) -> list[list[object]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.allocating_daemon", str(root), str(epoch)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        first = worker.stdout.readline()
        time.sleep(after_seconds)  # the random moment of the kill
        worker.kill()
        lines = [first, *worker.stdout.read().splitlines(keepends=True)]
    # The last line may be cut where the process was.
    return [json.loads(line) for line in lines if line.endswith("\n")]


class Expected:
    """What the answers so far promise: by name, (uid, share) or None; absent where a question had no answer."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[object, object] | None] = {}

    def follow(self, lines: list[list[object]]) -> None:
        for word, *rest in lines:
            if not rest:
                continue
            name = str(rest[0])
            if word == "asks":
                self.asked, self.before = name, self.known.pop(name, "absent")
            elif word in ("granted", "changed"):
                self.known[name] = (rest[1], rest[2])
            elif word == "released":
                self.known[name] = None
            elif self.before != "absent":  # refused: as it was
                self.known[name] = self.before  # type: ignore[assignment]

    def check(self, allocations: Allocations) -> None:
        held = {entry.spec.allocation_id: (entry.uid, entry.grants[0].limit_share_ppm) for entry in allocations.all}
        assert len(held) == len(allocations.all)
        for name, promise in self.known.items():
            assert held.get(name) == promise, name
        for name, now in held.items():
            self.known[name] = now


def check_files(node: Node, allocations: Allocations) -> None:
    uids = sorted(entry.uid for entry in allocations.all)
    assert sorted(path.name for path in (node.base / "by-uid").iterdir()) == uids
    assert sorted(path.name for path in node.records.iterdir()) == [f"{uid}.json" for uid in uids]
    directory = LimitDirectory(node.base, boot_id=BOOT, node_epoch=0)
    for entry in allocations.all:
        msgspec.json.decode((node.records / f"{entry.uid}.json").read_bytes())
        files = directory.open(entry.uid)
        assert files.finding is None
        assert files.shm.state.armed
        assert files.shm.limits.devices[0].limit_share_ppm == entry.grants[0].limit_share_ppm
        files.close()
    for index in range(2):
        grants = [entry.grants[0] for entry in allocations.all if entry.grants[0].gpu_index == index]
        assert sum(grant.request_share_ppm for grant in grants) <= 1_000_000
        assert sum(grant.request_vram_bytes for grant in grants) <= CARD_BYTES


@pytest.mark.parametrize("seed", [1])
def test_whatever_was_answered_holds_after_kill_9(tmp_path: Path, seed: int) -> None:
    chance, node, expected, answers = random.Random(seed), Node(tmp_path), Expected(), 0
    for epoch in range(1, ROUNDS + 1):
        lines = run_and_kill(tmp_path, epoch, chance.uniform(0.0, 0.15))
        answers += len(lines)
        expected.follow(lines)
        allocations = node.start()
        expected.check(allocations)
        check_files(node, allocations)
        assert "RecordSetAside" not in node.reasons()
        allocations.allocate(named(f"after-{epoch}", request("", compute=percent(1), vram=GIB)), STOCK)
        allocations.release(f"after-{epoch}")
        allocations.close()
    assert answers > ROUNDS * 10
