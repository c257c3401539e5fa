"""Puts a service on a server, so that a request that is no message is refused like any other bad request.

The generated registration leaves that to gRPC, which answers UNKNOWN without a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Stands in for a request that could not be decoded; handlers made by answering.py refuse it."""

    why: str


class TakesHandlers(Protocol):
    """A server, or what collects handlers for one."""

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler], /) -> None:
        """Add them to what answers calls."""
        ...


def add_service(server: TakesHandlers, descriptor: ServiceDescriptor, service: object) -> None:
    """Serve each method of the descriptor by the service's method of that name, made by answering.py."""
    handlers = {}
    for method in descriptor.methods:
        make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        if method.client_streaming:
            raise TypeError(f"{method.full_name} takes a stream, for which there is no handler here")
        handlers[method.name] = make(
            getattr(service, method.name),
            request_deserializer=_decoder(GetMessageClass(method.input_type)),
            response_serializer=_encode,
        )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(descriptor.full_name, handlers),))


def _decoder(message: type[Message]) -> Callable[[bytes], Any]:
    def decode(raw: bytes) -> Message | Undecodable:
        try:
            return message.FromString(raw)
        except DecodeError as error:
            return Undecodable(str(error) or "it is cut off or of another type")

    return decode


def _encode(message: Message) -> bytes:
    return message.SerializeToString()
