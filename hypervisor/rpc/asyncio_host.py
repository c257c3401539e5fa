"""One asyncio loop on a thread of its own, owned by a trio block; a crash on either side ends both.

Rules: exactly one loop in a process may touch grpc.aio; what crosses is an immutable value, never a lock; nothing but
the end of the loop itself is shielded from cancellation.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar, TypeVarTuple

import outcome
import trio

# The interpreter goes from one thread that computes to the other at least so often.
HANDOVER_SECONDS = 0.0005

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class HostClosing(Exception):  # noqa: N818 - it is an answer, not a fault
    """The other side is going away and cancelled what it was asked for; not our own cancellation."""


class AsyncioHost:
    """The asyncio side, as seen from trio, and the way back. Made by open_asyncio_host()."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._trio = trio.lowlevel.current_trio_token()
        self._closing = False
        self._ready = trio.Event()
        self._ended = trio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        # Trio tasks that wait in call(). Touched in trio only.
        self._calling: set[trio.lowlevel.Task] = set()
        self._cleanups: list[Callable[[], Coroutine[Any, Any, None]]] = []

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop. Only its own thread may do more with it than call_soon_threadsafe."""
        if self._loop is None:
            raise RuntimeError("the asyncio loop has not started")
        return self._loop

    def post(self, function: Callable[[*Arguments], object], *arguments: *Arguments) -> None:
        """Run a plain function on the loop, soon and in order, from any thread. An exception in it ends the host.

        Once the loop has ended this does nothing: nobody is left to hear it.
        """
        try:
            self.loop.call_soon_threadsafe(lambda: self._guarded(function, *arguments))
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    async def call(self, function: Callable[[*Arguments], Coroutine[Any, Any, T]], *arguments: *Arguments) -> T:
        """Await function(*arguments) on the loop; to be called from trio.

        Cancelling the caller cancels the asyncio task and waits until it is gone. Raises HostClosing when the loop
        cancelled it by itself.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        caller = trio.lowlevel.current_task()
        task: asyncio.Task[T] | None = None
        raise_cancelled: Callable[[], Any] | None = None

        async def run() -> T:
            return await function(*arguments)  # here, so that wrong arguments are the caller's error

        def start() -> None:
            nonlocal task
            task = self.loop.create_task(run())
            task.add_done_callback(finish)

        def finish(done: asyncio.Task[T]) -> None:
            error = HostClosing() if done.cancelled() else done.exception()
            result: outcome.Outcome[T] = outcome.Error(error) if error else outcome.Value(done.result())
            self._trio.run_sync_soon(self._answer, caller, result)

        def cancel() -> None:
            if task is not None:
                task.cancel()

        def abort(raise_fn: Callable[[], Any]) -> trio.lowlevel.Abort:
            nonlocal raise_cancelled
            raise_cancelled = raise_fn
            self.post(cancel)  # queued behind start()
            return trio.lowlevel.Abort.FAILED

        if self._ended.is_set():
            raise HostClosing
        self._calling.add(caller)
        self.post(start)
        try:
            result: T = await trio.lowlevel.wait_task_rescheduled(abort)
        except HostClosing:
            if raise_cancelled is not None:
                raise_cancelled()
            raise
        return result

    async def call_trio(self, function: Callable[[*Arguments], Awaitable[T]], *arguments: *Arguments) -> T:
        """Await function(*arguments) in trio; to be called on the loop.

        Cancelling the caller cancels the trio task, without waiting for it: the host's block owns it. Raises
        HostClosing when trio is ending.
        """
        future: asyncio.Future[outcome.Outcome[T]] = self.loop.create_future()
        scope = trio.CancelScope()

        def finish(result: outcome.Outcome[T]) -> None:
            if not future.done():
                future.set_result(result)

        async def run() -> None:
            result: outcome.Outcome[T] = outcome.Error(HostClosing())
            try:
                with scope:
                    try:
                        result = outcome.Value(await function(*arguments))
                    except Exception as error:  # noqa: BLE001 - carried to the caller, who raises it
                        result = outcome.Error(error)
            finally:
                self.post(finish, result)

        def spawn() -> None:
            if self._closing:
                self.post(finish, outcome.Error(HostClosing()))
            else:
                self._nursery.start_soon(run)

        self._trio.run_sync_soon(spawn)
        try:
            result = await future
        except asyncio.CancelledError:
            self._trio.run_sync_soon(scope.cancel)
            raise
        return result.unwrap()

    def _answer(self, caller: trio.lowlevel.Task, result: outcome.Outcome[Any]) -> None:
        if caller in self._calling:
            self._calling.remove(caller)
            trio.lowlevel.reschedule(caller, result)

    def fail(self, error: BaseException) -> None:
        """End the host, whose block then raises the error; to be called on the loop."""
        self._failure = self._failure or error
        if self._stop is not None:
            self._stop.set()

    def at_end(self, cleanup: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await cleanup() on the loop before it ends, also when it ends by a failure; to be called on the loop."""
        self._cleanups.append(cleanup)

    def _guarded(self, function: Callable[..., object], *arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException as error:  # noqa: BLE001 - ends the loop, and with it the block, which raises it
            self.fail(error)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._trio.run_sync_soon(self._ready.set)
        await self._stop.wait()
        for cleanup in reversed(self._cleanups):
            await cleanup()

    def _thread(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised by the block that owns the thread
            self._failure = self._failure or error
        finally:
            self._trio.run_sync_soon(self._end)

    def _end(self) -> None:
        """In trio, after the loop: without the loop there is nothing left for the block to do."""
        self._ready.set()
        self._ended.set()
        for caller in tuple(self._calling):  # posted when the loop no longer listened
            self._answer(caller, outcome.Error(HostClosing()))
        if not self._closing:
            self._nursery.cancel_scope.cancel()

    async def _wait_ready(self) -> None:
        with trio.CancelScope(shield=True):
            await self._ready.wait()

    async def _close(self, thread: threading.Thread) -> None:
        self._closing = True
        self._nursery.cancel_scope.cancel()
        if self._stop is not None:
            self.post(self._stop.set)
        with trio.CancelScope(shield=True):
            await self._ended.wait()
        thread.join()  # it has nothing left to do
        if self._failure is not None:
            raise self._failure


@contextmanager
def quick_handover() -> Iterator[None]:
    """Two threads with Python's work hand the interpreter over soon, for as long as the block runs.

    A call needs the loop's thread some three times, and each time it would wait for the other's 5 ms to be over.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(HANDOVER_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@asynccontextmanager
async def open_asyncio_host() -> AsyncIterator[AsyncioHost]:
    """An asyncio loop for as long as the block runs.

    Leaving the block, by cancellation too, ends the loop and waits for its thread. When the loop fails, the block is
    cancelled and the loop's exception raised. What the block raises is raised as it is.
    """
    try:
        async with trio.open_nursery() as nursery:
            host = AsyncioHost(nursery)
            thread = threading.Thread(target=host._thread, name="grpc-loop")  # noqa: SLF001 - one unit with the class
            with quick_handover():
                thread.start()
                try:
                    await host._wait_ready()  # noqa: SLF001
                    if not host._ended.is_set():  # noqa: SLF001
                        yield host
                finally:
                    await host._close(thread)  # noqa: SLF001
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
