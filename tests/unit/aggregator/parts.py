"""The aggregator's parts without its servers, and a stream that a test drives."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format

from hypervisor.aggregator import rows
from hypervisor.aggregator.event_log import EventLog
from hypervisor.aggregator.liveness import LivenessWheel
from hypervisor.aggregator.pools import sum_pools
from hypervisor.aggregator.recorder import Recorder
from hypervisor.aggregator.registry import Registry
from hypervisor.aggregator.report_service import ReportService
from hypervisor.aggregator.settings import AggregatorSettings
from hypervisor.aggregator.sqlite_store import SqliteStore
from hypervisor.aggregator.store import EventQuery
from hypervisor.aggregator.views import Moment, cluster_gpu, cluster_node, node_view
from hypervisor.aggregator.writer import Writer
from hypervisor.rpc.guard import Peer
from hypervisor.v1 import report_pb2


class Aborted(Exception):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class FakeContext:
    """A stream that brings these messages, and then ends or stays open until end()."""

    def __init__(self, *messages: bytes, keep_open: bool = False) -> None:
        self._messages = list(messages)
        self.written: list[report_pb2.ReportResponse] = []
        self.all_read = asyncio.Event()
        self._ended = asyncio.Event()
        if not keep_open:
            self._ended.set()

    def end(self) -> None:
        self._ended.set()

    async def read(self) -> Any:
        await asyncio.sleep(0)
        if self._messages:
            return self._messages.pop(0)
        self.all_read.set()
        await self._ended.wait()
        return grpc.aio.EOF

    async def write(self, message: report_pb2.ReportResponse) -> None:
        self.written.append(message)

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: object) -> None:
        raise Aborted(code, details)

    def peer(self) -> str:
        return "test"


async def anybody(_: object) -> Peer:
    """As on a unix socket, whose mode has decided."""
    return Peer(None, "")


class Parts:
    """The aggregator without its servers."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        options = AggregatorSettings(listen=(), store=directory / "store.db", allow_simulated=True, **settings)
        self.store = SqliteStore(options.store, tombstone_limit=10)
        stored = self.store.load()
        clocks: Any = {"monotonic": time.monotonic, "wall": time.time}
        events = EventLog(last_number=0)
        recorder = Recorder(events.add, store_id="s", start=stored.start, wall=time.time)
        self.registry = Registry(
            store_id="s",
            version=stored.version,
            resumable=(0, 0),
            tombstone_limit=10,
            record=recorder.record,
            **clocks,
        )
        self.writer = Writer(self.store, self.registry, events, options, **clocks)
        liveness = LivenessWheel(self.registry, late_after=10, lost_after=60, monotonic=time.monotonic)
        self.reports = ReportService(self.registry, events, self.writer, liveness, options, who=anybody, **clocks)

    async def send(self, *messages: bytes) -> FakeContext:
        context = FakeContext(*messages)
        await self.reports.report(None, context)  # type: ignore[arg-type]
        return context

    def show_everything(self) -> None:
        """All that a client could ask for."""
        now = Moment(time.monotonic(), time.time())
        for node in self.registry.nodes.values():
            json_format.MessageToJson(cluster_node(node_view(node), now))
        for gpu in self.registry.gpus.values():
            json_format.MessageToJson(cluster_gpu(gpu, now))
        for pool in sum_pools(self.registry.nodes.values()):
            json_format.MessageToJson(pool)
        for stored in self.store.read_events(EventQuery()):
            json_format.MessageToJson(rows.event_message(stored.row))
