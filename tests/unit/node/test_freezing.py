"""What is frozen is known in any case: after a kill in the middle, a driver without an answer, and a new boot."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trio

from hypervisor.model import Refusal
from hypervisor.node.freezing import Freezing
from hypervisor.workers.checkpoint import FreezeError
from tests import builders


class Killed(BaseException):
    """The daemon ends here, as by kill -9."""


@dataclass
class Driver:
    """Freezes and thaws numbers; before may raise after it was done."""

    frozen: set[int] = field(default_factory=set)
    after: Callable[[], None] = lambda: None

    async def freeze(self, pids: Sequence[int]) -> None:
        await trio.lowlevel.checkpoint()
        self.frozen |= set(pids)
        self.after()

    async def thaw(self, pids: Sequence[int]) -> None:
        await trio.lowlevel.checkpoint()
        self.frozen -= set(pids)
        self.after()


@dataclass
class Node:
    path: Path
    pid: int
    driver: Driver = field(default_factory=Driver)

    def start(self) -> Freezing:
        usage = builders.make_usage("a")
        usage = replace(usage, processes=(replace(usage.processes[0], host_pid=self.pid),))
        snapshot = replace(
            builders.make_snapshot(), allocations=(builders.make_allocation("a"),), usages=(usage,), workers=()
        )
        return Freezing(
            self.driver,  # type: ignore[arg-type]
            path=self.path,
            snapshot=lambda: snapshot,
            emit=lambda *_: None,
            idle_seconds=lambda: 0.0,
        )


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen(["sleep", "60"])
    yield made
    made.kill()
    made.wait()


@pytest.fixture
def node(tmp_path: Path, program: subprocess.Popen[bytes]) -> Node:
    return Node(tmp_path / "frozen.json", program.pid)


def freeze(freezing: Freezing) -> None:
    trio.run(lambda: freezing.snapshot(allocation_id="a", worker_id=""))


def resume(freezing: Freezing) -> None:
    trio.run(lambda: freezing.resume(allocation_id="a", worker_id=""))


def dies() -> None:
    raise Killed


def hangs() -> None:
    raise FreezeError("the driver has not done it within 60 s", uncertain=True)


@pytest.mark.parametrize(("after", "raised"), [(dies, Killed), (hangs, Refusal)])
def test_what_may_have_been_frozen_can_be_resumed(
    node: Node, after: Callable[[], None], raised: type[BaseException]
) -> None:
    node.driver.after = after
    with pytest.raises(raised) as caught:
        freeze(node.start())
    if raised is Refusal:
        assert "'hypervisor resume a' lets all of them go on" in str(caught.value)
    node.driver.after = lambda: None
    resume(node.start())
    assert node.driver.frozen == set()


def test_what_was_not_frozen_is_not_said_to_be(node: Node) -> None:
    def refuses() -> None:
        node.driver.frozen.clear()
        raise FreezeError("CUDA error 1")

    node.driver.after = refuses
    with pytest.raises(Refusal, match="CUDA error 1"):
        freeze(node.start())
    with pytest.raises(Refusal, match="is not frozen"):
        resume(node.start())


def test_a_number_that_was_given_to_somebody_else_is_left_alone(node: Node) -> None:
    freeze(node.start())
    kept = json.loads(node.path.read_text())
    kept["a"]["starts"] = [kept["a"]["starts"][0] - 100]
    node.path.write_text(json.dumps(kept))
    resume(node.start())
    assert node.driver.frozen == {node.pid}  # the driver was not asked to do anything to it


@pytest.mark.parametrize("gone", ["ended", "rebooted"])
def test_what_has_ended_is_frozen_no_more(
    node: Node, program: subprocess.Popen[bytes], gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hypervisor.node.freezing.LOOK_SECONDS", 0.01)
    freeze(node.start())
    if gone == "ended":
        program.kill()
        program.wait()
    else:
        kept = json.loads(node.path.read_text())
        kept["a"]["boot_id"] = "another"
        node.path.write_text(json.dumps(kept))

    async def body() -> None:
        freezing = node.start()
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(freezing.run)
                while freezing.frozen:  # noqa: ASYNC110 - nothing tells it
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()

    trio.run(body)


def test_what_an_earlier_version_froze_can_be_resumed(node: Node) -> None:
    freeze(node.start())
    kept = json.loads(node.path.read_text())
    del kept["a"]["starts"], kept["a"]["boot_id"]
    node.path.write_text(json.dumps(kept))
    resume(node.start())
    assert node.driver.frozen == set()
