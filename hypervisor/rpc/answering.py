"""How a handler's outcome becomes an answer: refusals with details, anything else INTERNAL, and each call counted.

No exception of a handler reaches gRPC, which would print it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
import structlog

from hypervisor.model import Refusal, RefusalReason
from hypervisor.rpc.asyncio_host import HostClosing
from hypervisor.rpc.refusals import DETAILS_KEY, STATUS_CODES, status_of
from hypervisor.rpc.registration import Undecodable
from hypervisor.rpc.statistics import CallCounter

Request = TypeVar("Request")
Response = TypeVar("Response")
Context = grpc.aio.ServicerContext[Any, Any]


class Counting(Protocol):
    """A servicer that counts its calls."""

    calls: CallCounter


Service = TypeVar("Service", bound=Counting)


def unary(
    method: Callable[[Service, Request], Awaitable[Response]],
) -> Callable[[Service, Request, Context], Awaitable[Response]]:
    """Make a handler of a method that takes a request and returns a response or raises Refusal."""

    @functools.wraps(method)
    async def answer(self: Service, request: Request, context: Context) -> Response:
        try:
            _check_decoded(request)
            response = await method(self, request)
        except asyncio.CancelledError:
            self.calls.count(method.__name__, "CANCELLED")
            raise
        except Exception as error:  # noqa: BLE001 - turned into an answer
            await _fail(self, method.__name__, context, error)
        self.calls.count(method.__name__, "OK")
        return response

    return answer


def streaming(
    method: Callable[[Service, Request], AsyncIterator[Response]],
) -> Callable[[Service, Request, Context], AsyncIterator[Response]]:
    """Make a handler of a method that takes a request and yields responses or raises Refusal."""

    @functools.wraps(method)
    async def answer(self: Service, request: Request, context: Context) -> AsyncIterator[Response]:
        try:
            # A watch may have nothing to say for long; this tells the client that it has begun.
            await context.send_initial_metadata(())
            _check_decoded(request)
            async with aclosing(method(self, request)) as responses:  # type: ignore[type-var]
                async for response in responses:
                    yield response
        except (asyncio.CancelledError, GeneratorExit):
            self.calls.count(method.__name__, "CANCELLED")
            raise
        except Exception as error:  # noqa: BLE001 - turned into an answer
            await _fail(self, method.__name__, context, error)
        self.calls.count(method.__name__, "OK")

    return answer


async def abort_with(context: Context, refusal: Refusal) -> NoReturn:
    """End a call with a refusal, details included."""
    status = status_of(refusal)
    await context.abort(_code(status.code), status.message, ((DETAILS_KEY, status.SerializeToString()),))


def _check_decoded(request: object) -> None:
    if isinstance(request, Undecodable):
        raise Refusal(RefusalReason.INVALID_ARGUMENT, f"the request is no message of this method: {request.why}")


async def _fail(service: Counting, method: str, context: Context, error: Exception) -> NoReturn:
    if isinstance(error, Refusal):
        service.calls.count(method, _code(STATUS_CODES[error.reason]).name)
        await abort_with(context, error)
    if isinstance(error, HostClosing):
        service.calls.count(method, "UNAVAILABLE")
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the daemon is stopping; try again in a few seconds")
    service.calls.count(method, "INTERNAL")
    structlog.get_logger().error("a call failed by a defect of ours", method=method, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, f"{method} failed by a defect of the daemon; its log says more")


@functools.cache
def _code(number: int) -> grpc.StatusCode:
    return next(code for code in grpc.StatusCode if code.value[0] == number)
