"""Whatever a node sends is taken or refused with a reason: nothing else is raised, what is kept can be stored, summed
and shown, and another node's objects stay as they are."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hypervisor.v1 import node_pb2, report_pb2, types_pb2
from tests.fleet import messages as m
from tests.unit.aggregator.parts import Aborted, Parts

# Hundreds of stores are made and thrown away: where there is one, on a file system without fsync.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

SNAPSHOT = m.snapshot(
    m.revision(1, 1), m.state("a", gpus=[m.gpu("a", 0, peers=2), m.gpu("a", 1, peers=2)])
).SerializeToString()
DELTA = m.delta(
    m.revision(1, 1),
    m.revision(1, 2),
    node_pb2.NodeDelta(
        node=m.node("a"),
        gpus=[m.gpu("a", 1, peers=2)],
        allocations=[m.allocation("job", [m.uuid("a", 0)])],
        removed_gpu_uuids=[m.uuid("a", 0)],
    ),
).SerializeToString()
EVENTS = m.events(m.event("a", 1, 1), m.event("a", 1, 2)).SerializeToString()
HEARTBEAT = report_pb2.ReportRequest(
    heartbeat=report_pb2.ReportHeartbeat(revision=m.revision(1, 1), uptime_seconds=1)
).SerializeToString()

numbers = st.integers(0, 255)
mutation = st.tuples(
    st.sampled_from([SNAPSHOT, DELTA, EVENTS, HEARTBEAT]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from("xid"), numbers), max_size=4),
)


def mutated(data: bytes, changes: list[tuple[float, str, int]]) -> bytes:
    """The message with bytes replaced, inserted and deleted."""
    made = bytearray(data)
    for place, kind, value in changes:
        at = int(place * len(made))
        if kind == "x":
            made[at] = value
        elif kind == "i":
            made.insert(at, value)
        else:
            del made[at]
    return bytes(made)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.one_of(mutation.map(lambda pair: mutated(*pair)), st.binary(max_size=60)), max_size=6))
@example([b"", b"\xff", SNAPSHOT, DELTA, EVENTS])
def test_any_bytes(messages: list[bytes]) -> None:
    async def main(directory: Path) -> None:
        parts = Parts(directory)
        other = m.snapshot(m.revision(1, 1), m.state("b")).SerializeToString()
        await parts.send(m.hello("b").SerializeToString(), other)
        before = {name: gpu.latest for name, gpu in parts.registry.gpus.items()}
        context = await parts.send(m.hello("a").SerializeToString(), *messages)
        # Answered, not ended: the stream read all of them.
        assert context.all_read.is_set()
        assert all(response.WhichOneof("content") for response in context.written)
        await parts.writer.step()
        assert parts.writer.failing == ""
        parts.show_everything()
        assert {name: parts.registry.gpus[name].latest for name in before} == before
        await parts.writer.close()

    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        asyncio.run(main(Path(directory)))


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=200))
def test_any_first_message(first: bytes) -> None:
    async def main(directory: Path) -> None:
        parts = Parts(directory)
        try:
            await parts.send(first, SNAPSHOT)
        except Aborted as aborted:
            ended = aborted.code
        else:
            # An empty stream, or by chance a hello.
            ended = grpc.StatusCode.INVALID_ARGUMENT
        assert ended is grpc.StatusCode.INVALID_ARGUMENT
        assert not parts.registry.gpus
        await parts.writer.close()

    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        asyncio.run(main(Path(directory)))


def _huge(gpu: types_pb2.Gpu) -> None:
    gpu.serial = "x" * 70_000


def _far(gpu: types_pb2.Gpu) -> None:
    gpu.conditions.add(type="T").last_transition_at.seconds = 1 << 60


def _odd_uuid(gpu: types_pb2.Gpu) -> None:
    gpu.uuid = "GPU-a\n0"


def _infinite(gpu: types_pb2.Gpu) -> None:
    gpu.capacity.available_tflops.value = float("inf")


def _negative(gpu: types_pb2.Gpu) -> None:
    gpu.capacity.requested_tflops = -1


def _enormous(gpu: types_pb2.Gpu) -> None:
    gpu.capacity.vram.bytes = (1 << 64) - 1


@pytest.mark.parametrize("spoil", [_huge, _far, _odd_uuid, _infinite, _negative, _enormous])
def test_what_would_spoil_an_answer_is_refused(tmp_path: Path, spoil: Any) -> None:
    async def main() -> None:
        parts = Parts(tmp_path)
        gpu = m.gpu("a", 0)
        spoil(gpu)
        message = m.snapshot(m.revision(1, 1), m.state("a", gpus=[m.gpu("a", 1), gpu]))
        await parts.send(m.hello("a").SerializeToString(), message.SerializeToString())
        assert not parts.registry.gpus
        assert parts.reports.statistics().refused
        await parts.writer.close()

    asyncio.run(main())


def test_what_nobody_needs_to_know_is_kept_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        parts = Parts(tmp_path)
        gpu = m.gpu("a", 0)
        gpu.health = 77  # type: ignore[assignment]  # from a newer version
        gpu.readings.power_watts.value = float("nan")
        gpu.readings.power_watts.age_seconds = float("-inf")
        message = m.snapshot(m.revision(1, 1), m.state("a", gpus=[gpu]))
        await parts.send(m.hello("a").SerializeToString(), message.SerializeToString())
        assert parts.registry.gpus[m.name("a", 0)].phase == "Pending"
        parts.show_everything()
        await parts.writer.close()

    asyncio.run(main())
