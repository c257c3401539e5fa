"""Who answers calls: nobody while another replica leads, the services while we do.

The server is bound all the time, so that who asks the wrong replica learns where the leader is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from hypervisor.model import Refusal
from hypervisor.rpc.answering import abort_with


class Gate(grpc.GenericRpcHandler):
    """A handler for a server: refuses all calls of these services until it is opened."""

    def __init__(self, services: Sequence[str], refusal: Callable[[], Refusal]) -> None:
        self._prefixes = tuple(f"/{service}/" for service in services)
        self._refusal = refusal
        self.opened = asyncio.Event()
        self._handlers: tuple[grpc.GenericRpcHandler, ...] = ()
        self._refusing: Any = grpc.stream_stream_rpc_method_handler(self._refuse)

    def open(self, register: Callable[[HandlerList], None]) -> None:
        """Let calls through to what register adds."""
        found = HandlerList()
        register(found)
        self._handlers = tuple(found.handlers)
        self.opened.set()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """The handler of one call; None for a method that is none of ours."""
        for handler in self._handlers:
            found = handler.service(details)
            if found is not None:
                return found
        if not self._handlers and details.method.startswith(self._prefixes):
            return self._refusing
        return None

    async def _refuse(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await abort_with(context, self._refusal())


class HandlerList:
    """What generated code takes for a server: it keeps the handlers that are added."""

    def __init__(self) -> None:
        self.handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """As a server has it."""
        self.handlers.extend(handlers)
