"""What is written to a node's stream, and its end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from hypervisor.aggregator import report_link
from hypervisor.aggregator.report_link import ReportLink
from hypervisor.v1 import report_pb2


class Stream:
    """A stream of gRPC on which a write takes until it is let go."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.let_go = asyncio.Event()

    async def write(self, response: Any) -> None:
        await self.let_go.wait()
        self.written.append(response)


def link_on(stream: Stream) -> ReportLink:
    return ReportLink(stream, SimpleNamespace(), owned_name="", spread=lambda: 0.0)  # type: ignore[arg-type]


async def turns() -> None:
    """Let everything else go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_stream_settles_when_what_is_being_written_is_out() -> None:
    """gRPC refuses to send a status beside a write, and the stream then stays open for ever."""

    async def body() -> None:
        stream = Stream()
        link = link_on(stream)
        link.send_welcome(report_pb2.Welcome())
        await turns()
        link.acknowledge((1, 1), (1, 1))  # behind the welcome: not begun any more
        settling = asyncio.create_task(link.settle())
        await turns()
        assert not settling.done()
        stream.let_go.set()
        await settling
        link.ask_for_snapshot("late")
        await turns()
        assert [each.WhichOneof("content") for each in stream.written] == ["welcome"]

    asyncio.run(body())


def test_a_node_that_reads_nothing_holds_nobody_up(monkeypatch) -> None:
    monkeypatch.setattr(report_link, "SETTLE_SECONDS", 0.01)

    async def body() -> None:
        link = link_on(Stream())
        link.send_welcome(report_pb2.Welcome())
        await turns()
        await link.settle()
        link.close()
        await turns()

    asyncio.run(body())


def test_where_nothing_is_written_there_is_nothing_to_wait_for() -> None:
    async def body() -> None:
        await link_on(Stream()).settle()

    asyncio.run(body())
