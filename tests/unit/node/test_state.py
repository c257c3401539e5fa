"""One writer, immutable snapshots, revisions that only grow, and the latest wins."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio
import trio.testing

from hypervisor.model import Condition, ConditionStatus, HealthCode, NodeIdentity, Revision
from hypervisor.node.derive import Ratios
from hypervisor.node.revisions import Revisions
from hypervisor.node.state import NodeState, Parts
from tests import node_values as v

FOREIGN = {v.uuid(0): 0}


def make(path: Path, *, inventory=None, epoch: int = 1) -> NodeState:
    return NodeState(
        identity=NodeIdentity(name="node", uid="uid", boot_id="boot"),
        version="0",
        started_at=1.0,
        revisions=Revisions(path / "revision", epoch=epoch, block=8),
        parts=Parts(
            inventory=inventory or v.inventory(v.device()), ratios=Ratios(tflops=1.0, vram=1.0), foreign=FOREIGN
        ),
        wall_clock=lambda: 50.0,
    )


def with_allocations(state: NodeState, *allocations) -> Parts:
    parts = state.parts
    return Parts(inventory=parts.inventory, ratios=parts.ratios, foreign=parts.foreign, allocations=allocations)


def test_same_parts_publish_nothing(tmp_path: Path) -> None:
    state = make(tmp_path)
    before = state.snapshot
    assert state.update(state.parts) is False
    assert state.snapshot is before
    assert (state.statistics().published_total, state.statistics().unchanged_total) == (1, 1)


def test_change_has_a_higher_revision_than_all_before(tmp_path: Path) -> None:
    state = make(tmp_path)
    first = state.snapshot
    handed_out = state.next_revision()
    assert state.update(with_allocations(state, v.allocation("b"), v.allocation("a")))
    assert state.snapshot.revision > handed_out > first.revision
    assert state.snapshot.gpus[0].revision == state.snapshot.revision
    assert [a.spec.allocation_id for a in state.snapshot.allocations] == ["a", "b"]


def test_revisions_only_grow_over_restarts_and_are_reserved_in_blocks(tmp_path: Path) -> None:
    last = Revision(0, 0)
    writes = set()
    for epoch in (1, 2, 3):
        revisions = Revisions(tmp_path / "revision", epoch=epoch, block=8)
        for _ in range(21):
            revision = revisions.next()
            assert revision > last
            assert revision.revision > last.revision
            last = revision
            writes.add((tmp_path / "revision").read_text())
    assert len(writes) < 21


def test_revisions_go_on_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revisions = Revisions(tmp_path / "revision", epoch=1, block=4)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("hypervisor.node.revisions.write_atomically", full)
        handed = [revisions.next().revision for _ in range(10)]
        assert handed == list(range(1, 11))
        assert revisions.failure is not None
        assert revisions.failure.errno == errno.ENOSPC
    assert revisions.next().revision == 11
    assert revisions.failure is None
    assert Revisions(tmp_path / "revision", epoch=2, block=4).next().revision > 11


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"-3", b"9" * 40])
def test_damaged_revision_file_is_set_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "revision").write_bytes(content)
    revisions = Revisions(tmp_path / "revision", epoch=2)
    assert "was damaged" in revisions.mended
    assert revisions.next() == Revision(2, 1)
    assert (tmp_path / "revision.damaged").read_bytes() == content
    assert Revisions(tmp_path / "revision", epoch=3).mended == ""


def test_waiter_gets_the_latest_and_skips_what_lies_between(tmp_path: Path) -> None:
    async def main() -> None:
        state = make(tmp_path)
        seen = []

        async def watch() -> None:
            seen.append(await state.wait(state.snapshot.revision))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.testing.wait_all_tasks_blocked()
            assert state.statistics().waiting == 1
            state.update(with_allocations(state, v.allocation("a")))
            state.update(with_allocations(state, v.allocation("b")))
        assert seen == [state.snapshot]
        assert state.statistics().waiting == 0
        assert await state.wait(Revision(0, 0)) is state.snapshot

    trio.run(main)


def test_cancelled_wait_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        state = make(tmp_path)
        with trio.CancelScope() as scope:
            scope.cancel()
            await state.wait(state.snapshot.revision)
        assert scope.cancelled_caught
        assert state.statistics().waiting == 0

    trio.run(main)


def test_subscribers_are_told_until_they_end_it(tmp_path: Path) -> None:
    state = make(tmp_path)
    seen = []
    end = state.subscribe(seen.append)
    state.update(with_allocations(state, v.allocation("a")))
    end()
    end()
    state.update(with_allocations(state))
    assert [len(snapshot.allocations) for snapshot in seen] == [1]


def test_node_is_not_ready_without_a_driver_and_says_what_to_do(tmp_path: Path) -> None:
    missing = Condition(
        type="DriverReady",
        status=ConditionStatus.FALSE,
        code=HealthCode.DRIVER_NOT_LOADED,
        message="no NVIDIA driver is loaded",
        last_transition_at=0.0,
    )
    state = make(tmp_path, inventory=v.inventory(conditions=(missing,)))
    ready = state.snapshot.conditions[0]
    assert (ready.type, ready.status, ready.code) == ("Ready", ConditionStatus.FALSE, HealthCode.DRIVER_NOT_LOADED)
    assert "no NVIDIA driver is loaded; load the NVIDIA driver" in ready.message
    assert ready.last_transition_at == 50.0
