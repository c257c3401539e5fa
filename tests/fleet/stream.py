"""One report stream, driven by hand: what the test sends, and all that came back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import grpc

from hypervisor.v1 import report_pb2
from tests.fleet.process import channel_to, wait_until

METHOD = "/hypervisor.v1.ReportService/Report"


class ReportStream:
    """A stream on a connection of its own. Requests may be raw bytes, for those that can't be parsed."""

    def __init__(self, address: str, tls: Path | None = None) -> None:
        self._channel = channel_to(address, tls)
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.received: list[report_pb2.ReportResponse] = []
        self.error: grpc.RpcError | None = None
        report = self._channel.stream_stream(
            METHOD, request_serializer=None, response_deserializer=report_pb2.ReportResponse.FromString
        )
        self._call = report(self._requests())
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> ReportStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, *requests: report_pb2.ReportRequest | bytes) -> None:
        for request in requests:
            self._queue.put(request if isinstance(request, bytes) else request.SerializeToString())

    def wait(self, matches: Callable[[report_pb2.ReportResponse], bool], what: str) -> report_pb2.ReportResponse:
        """The first response that matches."""
        return wait_until(lambda: next((found for found in list(self.received) if matches(found)), None), what)

    def wait_for(self, kind: str) -> report_pb2.ReportResponse:
        return self.wait(lambda response: response.WhichOneof("content") == kind, f"a response of kind {kind}")

    def wait_for_revision(self, epoch: int, revision: int) -> None:
        self.wait(
            lambda r: (r.ack.revision.epoch, r.ack.revision.revision) >= (epoch, revision),
            f"ack of revision {epoch}.{revision}",
        )

    def wait_for_event(self, epoch: int, sequence: int) -> None:
        self.wait(
            lambda r: (r.ack.event_epoch, r.ack.event_sequence) >= (epoch, sequence), f"ack of event {epoch}.{sequence}"
        )

    def finish(self) -> None:
        """End our side, and wait for the server's end."""
        self._queue.put(None)
        self._reader.join(30)
        assert not self._reader.is_alive()

    def wait_for_error(self) -> grpc.RpcError:
        return wait_until(lambda: self.error, "the end of the stream")

    def close(self) -> None:
        self._queue.put(None)
        self._call.cancel()
        self._channel.close()
        self._reader.join(30)

    def _requests(self) -> Iterator[bytes]:
        return iter(self._queue.get, None)  # type: ignore[arg-type]

    def _read(self) -> None:
        try:
            for response in self._call:
                self.received.append(response)
        except grpc.RpcError as error:
            self.error = error
