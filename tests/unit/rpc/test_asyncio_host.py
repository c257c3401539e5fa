"""The asyncio loop inside trio: results, errors, cancellation and crashes cross, and no thread is left."""

# ruff: noqa: PT012 - what is tested is the block

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
import trio
import trio.lowlevel

from hypervisor.rpc.asyncio_host import HANDOVER_SECONDS, AsyncioHost, HostClosing, open_asyncio_host


def run(body, *arguments):
    """Run in trio with a deadline; afterwards no thread of the host may be left."""

    async def bounded():
        with trio.fail_after(10):
            return await body(*arguments)

    result = trio.run(bounded)
    assert "grpc-loop" not in [thread.name for thread in threading.enumerate()]
    return result


def test_call_returns_and_raises() -> None:
    async def double(value: int) -> int:
        await asyncio.sleep(0)
        return value * 2

    async def fail() -> None:
        raise KeyError("there")

    async def body() -> None:
        async with open_asyncio_host() as host:
            assert await host.call(double, 21) == 42
            with pytest.raises(KeyError, match="there"):
                await host.call(fail)
            with pytest.raises(TypeError):
                await host.call(double)  # wrong arguments are the caller's error, and end nothing
            assert await host.call(double, 1) == 2

    run(body)


def test_cancelling_a_call_cancels_the_task_and_waits_for_it() -> None:
    async def body() -> None:
        begun, ended = trio.Event(), []
        token = trio.lowlevel.current_trio_token()

        async def sleep() -> None:
            try:
                token.run_sync_soon(begun.set)
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        async with open_asyncio_host() as host, trio.open_nursery() as nursery:
            nursery.start_soon(host.call, sleep)
            await begun.wait()
            nursery.cancel_scope.cancel()
        assert ended == [True]

    run(body)


def test_a_call_cancelled_before_it_begins() -> None:
    async def body() -> None:
        called = []

        async def record() -> None:
            called.append(True)

        async with open_asyncio_host() as host:
            with trio.CancelScope() as scope:
                scope.cancel()
                await host.call(record)
            assert called == []

    run(body)


def test_many_calls_at_once() -> None:
    async def body() -> None:
        results: list[int] = []

        async def echo(value: int) -> int:
            await asyncio.sleep(0)
            return value

        async def one(host: AsyncioHost, value: int) -> None:
            results.append(await host.call(echo, value))

        async with open_asyncio_host() as host, trio.open_nursery() as nursery:
            for value in range(200):
                nursery.start_soon(one, host, value)
        assert sorted(results) == list(range(200))

    run(body)


def test_the_way_back() -> None:
    async def body() -> None:
        async def in_trio(value: int) -> int:
            await trio.lowlevel.checkpoint()
            if value < 0:
                raise ValueError("negative")
            return value + 1

        async with open_asyncio_host() as host:

            async def ask(value: int) -> int:
                return await host.call_trio(in_trio, value)

            assert await host.call(ask, 1) == 2
            with pytest.raises(ValueError, match="negative"):
                await host.call(ask, -1)

    run(body)


def test_cancelling_the_asker_cancels_the_trio_task() -> None:
    async def body() -> None:
        entered, cancelled = trio.Event(), trio.Event()

        async def wait_long() -> None:
            entered.set()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                cancelled.set()
                raise

        async with open_asyncio_host() as host:

            async def ask() -> None:
                await host.call_trio(wait_long)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.call, ask)
                await entered.wait()
                nursery.cancel_scope.cancel()
            await cancelled.wait()

    run(body)


def test_a_crash_on_the_loop_ends_the_block_with_its_exception() -> None:
    async def body() -> None:
        def crash() -> None:
            raise ZeroDivisionError("on the loop")

        with pytest.raises(ZeroDivisionError, match="on the loop"):
            async with open_asyncio_host() as host:
                host.post(crash)
                await trio.sleep_forever()

    run(body)


def test_a_crash_on_the_loop_ends_calls_in_flight() -> None:
    async def body() -> None:
        async def wait_long() -> None:
            await asyncio.Event().wait()

        def crash() -> None:
            raise ZeroDivisionError("on the loop")

        with pytest.raises(ZeroDivisionError):
            async with open_asyncio_host() as host:
                host.post(crash)
                await host.call(wait_long)

    run(body)


def test_what_the_block_raises_comes_out_as_it_is() -> None:
    async def body() -> None:
        with pytest.raises(LookupError, match="in the block"):
            async with open_asyncio_host():
                raise LookupError("in the block")

    run(body)


def test_a_loop_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("no file descriptors left")

    monkeypatch.setattr(asyncio, "run", lambda main: (main.close(), refuse()))

    async def body() -> None:
        with pytest.raises(OSError, match="no file descriptors"):
            async with open_asyncio_host():
                raise AssertionError("the block must not run")

    run(body)


def test_calls_after_the_end_are_refused() -> None:
    async def body() -> None:
        async def nothing() -> None:
            return None

        async with open_asyncio_host() as host:
            pass
        host.post(list)  # nobody hears it, and nothing is raised
        with pytest.raises(HostClosing):
            await host.call(nothing)

    run(body)


def test_the_interpreter_is_handed_over_soon_while_there_are_two_threads() -> None:
    async def body() -> None:
        before = sys.getswitchinterval()
        async with open_asyncio_host():
            assert sys.getswitchinterval() == pytest.approx(HANDOVER_SECONDS, rel=0.01)
        assert sys.getswitchinterval() == before

    run(body)
