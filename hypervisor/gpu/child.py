"""The gpu-reader process: one loop that answers requests over pipes, and nothing else.

It judges nothing and keeps nothing that matters: the daemon may end it at any moment, and its end gives back every
handle of the driver.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping

import msgspec

from hypervisor.gpu import library, nvml_memory_limits, nvml_mig, survey, wire
from hypervisor.gpu.codes import SUCCESS, UNINITIALIZED
from hypervisor.gpu.events import EventWatch
from hypervisor.gpu.nvml import Nvml, NvmlUnusableError
from hypervisor.gpu.nvml_gpm import GpmWatch


class Reader:
    """Answers requests. NVML is loaded by the first Open; each further one starts it anew, without any card."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._nvml: Nvml | None = None
        self._cards: dict[str, survey.Card] = {}
        self._watch: EventWatch | None = None
        self._gpm = GpmWatch()

    def reply(self, request: wire.Request) -> wire.Reply:
        """The one reply to a request."""
        if isinstance(request, wire.Open):
            return self._open()
        if self._nvml is None:
            return wire.Failed(UNINITIALIZED, "order", "nothing was opened")
        match request:
            case wire.Attach():
                return self._attach(self._nvml, request)
            case wire.Survey(slot):
                return survey.place(self._nvml, self._cards[slot], self._cards)
            case wire.Read(slot):
                return survey.read(self._nvml, self._cards[slot])
            case wire.Sampling(slot) | wire.Gpm(slot):
                return self._sampled(self._nvml, self._cards[slot], request)
            case wire.Health(slot):
                return self._health(self._nvml, self._cards[slot])
            case wire.Events():
                return self._watch.take(self._cards.values()) if self._watch else wire.EventsDone([])
            case wire.MigLook(slot) | wire.MigCreate(slot) | wire.MigDestroy(slot) | wire.MigEnable(slot):
                return nvml_mig.reply(self._nvml, self._cards[slot].device, request)
            case wire.MemoryLimit(slot):
                return nvml_memory_limits.reply(self._nvml, self._cards[slot].device, request)
            case wire.Count():
                return wire.Counted(self._nvml.take_calls())

    def _open(self) -> wire.Reply:
        if self._nvml is not None:
            if self._watch is not None:
                self._watch.close()
            self._nvml.close()
            self._nvml, self._watch = None, None
            self._cards.clear()
        try:
            nvml = self._nvml = Nvml.open(self._environment)
        except NvmlUnusableError as error:
            return wire.Failed(error.code, error.stage, error.detail)
        return wire.Opened(
            driver_version=nvml.driver_version(),
            nvml_version=nvml.nvml_version(),
            cuda_version=nvml.cuda_version(),
            count=nvml.count(),
            library=nvml.path,
            simulated=library.is_simulated(),
        )

    def _sampled(self, nvml: Nvml, card: survey.Card, request: wire.Sampling | wire.Gpm) -> wire.Reply:
        if isinstance(request, wire.Gpm):
            return self._gpm.take(nvml, card, request.targets)
        return survey.samples(nvml, card, whole=request.card)

    def _health(self, nvml: Nvml, card: survey.Card) -> wire.HealthDone:
        if self._watch is None:
            self._watch = EventWatch(nvml)
        # First the events and then the state: what happens in between is told twice and not never.
        watched = self._watch.add(card)
        return survey.health(nvml, card, watched)

    def _attach(self, nvml: Nvml, request: wire.Attach) -> wire.Reply:
        handle = nvml.take_handle(index=request.index, bus_id=request.bus_id)
        if handle.code != SUCCESS:
            return wire.Attached(handle.code)
        card, attached = survey.attach(nvml, handle.value, request)
        self._cards[attached.slot] = card
        return attached


def serve_pipes() -> None:
    """Serve stdin and stdout until stdin closes; the process then ends at once, also out of a call that hangs."""
    # What any library prints must not get between the frames.
    replies = os.dup(1)
    os.dup2(2, 1)
    # An interrupt from the terminal is for the daemon, which ends us when it is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(0, requests.put), name="requests", daemon=True).start()
    reader = Reader(os.environ)
    while True:
        try:
            request = wire.request_decoder.decode(requests.get())
        except msgspec.DecodeError as error:
            sys.exit(f"hypervisor gpu-reader: a request can't be read: {error}")
        _send(replies, wire.frame(reader.reply(request)))


def _receive(source: int, put: Callable[[bytes], None]) -> None:
    while True:
        head = _exactly(source, wire.LENGTH.size)
        length = wire.LENGTH.unpack(head)[0]
        if length > wire.MAX_FRAME_BYTES:
            os._exit(1)
        put(_exactly(source, length))


def _exactly(source: int, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(source, count - len(parts))
        if not part:
            # The daemon is gone. The main thread may hang in the driver, so nobody else could end this process.
            os._exit(0)
        parts += part
    return bytes(parts)


def _send(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BrokenPipeError:
            os._exit(0)
