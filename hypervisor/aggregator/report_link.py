"""What goes back to a node on its stream: latest-wins, written by a task that lives only while there is something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from hypervisor.aggregator.records import NodeRecord, Position
from hypervisor.model import Refusal
from hypervisor.v1 import report_pb2, types_pb2

# A node that reads nothing for so long is gone, or its stream ends with its connection.
SETTLE_SECONDS = 2.0


class ReportLink:
    """An open stream of a node. Only the loop's tasks call it, the stream's own handler among them.

    owned_name: the only name that the node may have, "" for any. has_reported: a snapshot was taken from this stream.
    ended_because: set when we end the stream ourselves.
    """

    __slots__ = (
        "_ack",
        "_closed",
        "_context",
        "_handler",
        "_refusal",
        "_resend",
        "_spread",
        "_welcome",
        "_writing",
        "ended_because",
        "has_reported",
        "node",
        "owned_name",
    )

    def __init__(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        node: NodeRecord,
        *,
        owned_name: str,
        spread: Callable[[], float],
    ) -> None:
        """To be made in the handler's task. spread: over how many seconds nodes should come back, as of now."""
        self._spread = spread
        self.node = node
        self.owned_name = owned_name
        self.has_reported = False
        self.ended_because: Refusal | None = None
        self._context = context
        self._handler = asyncio.current_task()
        self._welcome: report_pb2.Welcome | None = None
        self._ack: report_pb2.Ack | None = None
        self._resend: report_pb2.Resend | None = None
        self._refusal: types_pb2.Refusal | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    def send_welcome(self, welcome: report_pb2.Welcome) -> None:
        """The answer to the hello."""
        self._welcome = welcome
        self._begin()

    def acknowledge(self, revision: Position, events: Position) -> None:
        """Tell what is durable; replaces an acknowledgement that was not written yet."""
        ack = report_pb2.Ack(event_epoch=events[0], event_sequence=events[1], reconnect_spread_seconds=self._spread())
        if revision[0]:
            ack.revision.epoch, ack.revision.revision = revision
        self._ack = ack
        self._begin()

    def ask_for_snapshot(self, reason: str) -> None:
        """Ask the node for everything."""
        self._resend = report_pb2.Resend(reason=reason)
        self._begin()

    def refuse(self, refusal: types_pb2.Refusal) -> None:
        """Tell that the last message can't be used."""
        self._refusal = refusal
        self._begin()

    def end(self, because: Refusal) -> None:
        """End the stream from our side: its handler answers with this refusal."""
        if self.ended_because is None and self._handler is not None and not self._closed:
            self.ended_because = because
            self._handler.cancel()

    async def settle(self) -> None:
        """Begin to write nothing more, and wait for what is being written: gRPC sends no status beside it, and a stream
        whose status was not sent stays open at the other side."""
        self._closed = True
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=SETTLE_SECONDS)

    def close(self) -> None:
        """The handler is leaving: write nothing more."""
        self._closed = True
        if self._writing is not None:
            self._writing.cancel()

    def _begin(self) -> None:
        if self._writing is None and not self._closed:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        try:
            while not self._closed and (response := self._next()) is not None:
                await self._context.write(response)
        except (grpc.RpcError, grpc.aio.InternalError, grpc.aio.UsageError, asyncio.InvalidStateError):
            # The stream has gone while we wrote; its handler finds out by itself.
            self._closed = True
        finally:
            self._writing = None

    def _next(self) -> report_pb2.ReportResponse | None:
        if (welcome := self._welcome) is not None:
            self._welcome = None
            return report_pb2.ReportResponse(welcome=welcome)
        if (refusal := self._refusal) is not None:
            self._refusal = None
            return report_pb2.ReportResponse(refused=refusal)
        if (resend := self._resend) is not None:
            self._resend = None
            return report_pb2.ReportResponse(resend=resend)
        if (ack := self._ack) is not None:
            self._ack = None
            return report_pb2.ReportResponse(ack=ack)
        return None
