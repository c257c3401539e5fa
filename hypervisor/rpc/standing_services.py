"""grpc.health.v1 and reflection, in a form whose open streams end when the server closes."""

# ruff: noqa: N802 - the names are those of the protos

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import _async, reflection, reflection_pb2, reflection_pb2_grpc

from hypervisor.rpc.answering import Context

T = TypeVar("T")
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Health of the services of this server: serving from when it is open until it closes."""

    def __init__(self, services: Sequence[str], closing: asyncio.Event, opened: asyncio.Event) -> None:
        self._services = frozenset(("", *services))
        self._closing = closing
        self._opened = opened

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this server doesn't offer that service")
        serving = self._opened.is_set() and not self._closing.is_set()
        return health_pb2.HealthCheckResponse(status=_SERVING if serving else _NOT_SERVING)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        known = request.service in self._services
        if known and not self._opened.is_set():
            yield health_pb2.HealthCheckResponse(status=_NOT_SERVING)
            if not await _opened_before(self._opened, self._closing):
                return
        yield health_pb2.HealthCheckResponse(status=_SERVING if known else _UNKNOWN)
        await self._closing.wait()
        if known:
            yield health_pb2.HealthCheckResponse(status=_NOT_SERVING)


class ReflectionService(_async.ReflectionServicer):  # type: ignore[misc]
    """Reflection that doesn't outlive the server."""

    def __init__(self, services: Sequence[str], closing: asyncio.Event) -> None:
        super().__init__(services)
        self._closing = closing

    async def ServerReflectionInfo(
        self, requests: AsyncIterator[reflection_pb2.ServerReflectionRequest], context: Context
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        answers = super().ServerReflectionInfo(_until(self._closing, requests), context)
        async for answer in answers:
            yield answer


def add_standing_services(
    server: grpc.aio.Server, services: Sequence[str], closing: asyncio.Event, *, opened: asyncio.Event | None = None
) -> None:
    """Add health and reflection for these services; their streams end when closing is set. opened: set from when on
    the services answer; None: from the start."""
    if opened is None:
        opened = asyncio.Event()
        opened.set()
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    health_pb2_grpc.add_HealthServicer_to_server(HealthService(services, closing, opened), server)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(ReflectionService(names, closing), server)


async def _opened_before(opened: asyncio.Event, closing: asyncio.Event) -> bool:
    """Wait for either; False when it was closing."""
    waiting = [asyncio.ensure_future(event.wait()) for event in (opened, closing)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
    return not closing.is_set()


async def _until(closing: asyncio.Event, items: AsyncIterator[T]) -> AsyncIterator[T]:
    """The items until there are no more, or closing is set."""
    closed = asyncio.ensure_future(closing.wait())
    iterator = aiter(items)
    try:
        while not closing.is_set():
            following: asyncio.Future[Any] = asyncio.ensure_future(anext(iterator))
            try:
                await asyncio.wait((following, closed), return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    return
                item = following.result()
            except StopAsyncIteration:
                return
            finally:
                following.cancel()
            yield item
    finally:
        closed.cancel()
