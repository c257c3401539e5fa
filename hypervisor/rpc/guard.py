"""Who may call what, and how often: asked before each call, by the certificate, the token or the socket of the caller.

On a unix socket its mode has decided. On TCP without encryption, which is said aloud, nobody is known and everybody may
do everything; then only the limits hold, by address.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import structlog

from hypervisor.model import Refusal, RefusalReason
from hypervisor.model.peer import Identity, Role, parse_uri
from hypervisor.rpc.answering import Context, abort_with
from hypervisor.rpc.open_streams import OpenStream, OpenStreams
from hypervisor.rpc.rates import PeerRates, PeerStreams
from hypervisor.rpc.server_certificates import ServerCertificates
from hypervisor.rpc.standing import Standing

log = structlog.get_logger("guard")

# A node has one stream; a second one takes its place, and the first is ended.
NODE_STREAMS = 4
_BEARER = "Bearer "
# A peer that is refused again and again is a line of the log this often; the metric counts each time.
_TOLD_SECONDS = 60.0
_TOLD_PEERS = 1_000

IdentifyToken = Callable[[str], Awaitable[Identity]]


@dataclass(frozen=True, slots=True)
class Peer:
    """The caller. identity: None where the socket says enough. key: by which its calls are counted; "" for a unix
    socket, where all callers look alike."""

    identity: Identity | None
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one peer may do."""

    requests_per_second: float = 500.0
    requests_at_once: float = 1_000.0
    streams: int = 1_000


class Guard(grpc.aio.ServerInterceptor):
    """One a server.

    roles: service -> who may call it; a service that is not named is open to all who are known. identify_token: how a
    bearer token becomes an identity, or raises Refusal; None: tokens are not taken. certificates: those that callers
    are measured by also after their connection was opened; None where there is no TLS.
    """

    def __init__(
        self,
        roles: Mapping[str, frozenset[Role]],
        limits: Limits,
        *,
        identify_token: IdentifyToken | None = None,
        certificates: ServerCertificates | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        # How many requests one of a method counts as: a list of everything costs more than one object.
        self.weigh: Callable[[str, Any], float] = lambda _method, _request: 1.0
        self._roles = roles
        self._limits = limits
        self._identify_token = identify_token
        self._rates = PeerRates(
            per_second=limits.requests_per_second, at_once=limits.requests_at_once, monotonic=monotonic
        )
        self._streams = PeerStreams()
        self._certificates = certificates
        self._standing = Standing(lambda: certificates.authority) if certificates is not None else None
        self._trusted = certificates.authority if certificates is not None else b""
        self._open = OpenStreams(self._authorities_changed)
        self._refused: Counter[str] = Counter()
        self._told: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._monotonic = monotonic

    def refused(self) -> tuple[tuple[str, int], ...]:
        """Calls that were refused here since the start, by reason."""
        return tuple(sorted(self._refused.items()))

    async def who(self, context: Context) -> Peer:
        """The caller. Raises Refusal for one that can't be known."""
        address = str(context.peer())
        if address.startswith("unix:"):
            return Peer(None, "")
        properties = context.auth_context()
        if properties.get("transport_security_type") != [b"ssl"]:
            return Peer(None, address.rpartition(":")[0])
        names = properties.get("x509_subject_alternative_name", ())
        found = [identity for name in names if (identity := parse_uri(name.decode("utf-8", "replace"))) is not None]
        if len(found) > 1:
            raise _unauthenticated("the certificate says more than one identity")
        if found and self._standing is not None:
            self._standing.check(_chain(properties))
        identity = found[0] if found else await self._by_token(context)
        return Peer(identity, str(identity))

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """As gRPC calls it, once a call: the handler, with the questions before it."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        _, service, method = str(handler_call_details.method).split("/", 2)
        if handler.response_streaming:
            return self._streaming(service, handler)
        return self._unary(service, method, handler)

    # --- inside

    def _unary(self, service: str, method: str, handler: Any) -> Any:
        behavior = handler.stream_unary if handler.request_streaming else handler.unary_unary

        async def answer(request: Any, context: Context) -> Any:
            try:
                await self._admit(service, context, self.weigh(method, request))
            except Refusal as refusal:
                await self._refuse(context, refusal)
            answered = behavior(request, context)
            return await answered if inspect.isawaitable(answered) else answered

        make: Any = (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
        return make(answer, handler.request_deserializer, handler.response_serializer)

    def _streaming(self, service: str, handler: Any) -> Any:
        behavior = handler.stream_stream if handler.request_streaming else handler.unary_stream
        make: Any = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )

        async def generate(request: Any, context: Context) -> AsyncIterator[Any]:
            with ExitStack() as held:
                try:
                    self._hold(held, await self._admit(service, context), service)
                    stream = held.enter_context(self._open.hold(self._until(context)))
                except Refusal as refusal:
                    await self._refuse(context, refusal)
                try:
                    async for response in behavior(request, context):
                        yield response
                except asyncio.CancelledError:
                    await self._end(context, stream)

        async def converse(request: Any, context: Context) -> None:
            with ExitStack() as held:
                try:
                    self._hold(held, await self._admit(service, context), service)
                    stream = held.enter_context(self._open.hold(self._until(context)))
                except Refusal as refusal:
                    await self._refuse(context, refusal)
                try:
                    await behavior(request, context)
                except asyncio.CancelledError:
                    await self._end(context, stream)

        answer = generate if inspect.isasyncgenfunction(behavior) else converse
        return make(answer, handler.request_deserializer, handler.response_serializer)

    async def _admit(self, service: str, context: Context, weight: float = 1.0) -> Peer:
        peer = await self.who(context)
        if peer.key:
            self._rates.take(peer.key, weight)
        allowed = self._roles.get(service)
        if peer.identity is not None and allowed is not None and peer.identity.role not in allowed:
            wanted = " or ".join(sorted(role.value for role in allowed))
            raise Refusal(
                RefusalReason.FORBIDDEN,
                f"{peer.identity} may not call {service}: that is for the role {wanted}",
                remedy=f"use a certificate of that role, made with 'hypervisor certs {wanted}'",
            )
        return peer

    def _hold(self, held: ExitStack, peer: Peer, service: str) -> None:
        if peer.identity is not None and peer.identity.role is Role.NODE:
            held.enter_context(self._streams.hold(peer.key, at_most=NODE_STREAMS))
        elif peer.key and Role.NODE not in self._roles.get(service, frozenset()):
            # Unknown nodes may share an address; their streams are bounded by the number of nodes that is taken.
            held.enter_context(self._streams.hold(peer.key, at_most=self._limits.streams))

    def _until(self, context: Context) -> Callable[[], float]:
        """Until when the caller of a stream is who it was, by its certificate or its token."""
        properties = context.auth_context()
        names = properties.get("x509_subject_alternative_name", ())
        standing = self._standing
        if standing is None:
            return lambda: float("inf")
        if any(parse_uri(name.decode("utf-8", "replace")) for name in names):
            chain = _chain(properties)
            return lambda: standing.check(chain)
        expires = token_expiry(_token(context))
        return lambda: _unless_over(expires)

    def _authorities_changed(self) -> bool:
        if self._certificates is None:
            return False
        self._certificates.refresh()
        before, self._trusted = self._trusted, self._certificates.authority
        return self._trusted != before

    async def _end(self, context: Context, stream: OpenStream) -> None:
        """Of a cancelled stream: tell why, where it was ended here."""
        if stream.ended_because is None:
            raise asyncio.CancelledError
        # gRPC must not see a cancellation of ours.
        if stream.task is not None:
            stream.task.uncancel()
        await self._refuse(context, stream.ended_because)

    async def _by_token(self, context: Context) -> Identity:
        token = _token(context)
        if not token:
            raise _unauthenticated("the caller shows neither a certificate with a role nor a token")
        if self._identify_token is None:
            raise _unauthenticated("tokens are not taken here")
        return await self._identify_token(token)

    async def _refuse(self, context: Context, refusal: Refusal) -> None:
        reason, host = refusal.reason.value, str(context.peer()).rpartition(":")[0]
        self._refused[reason] += 1
        now = self._monotonic()
        if self._told.get((host, reason), -_TOLD_SECONDS) + _TOLD_SECONDS <= now:
            self._told[host, reason] = now
            log.warning("calls are refused", peer=context.peer(), error=str(refusal))
        if len(self._told) > _TOLD_PEERS:
            self._told.popitem(last=False)
        await abort_with(context, refusal)


def _token(context: Context) -> str:
    """The bearer token of a call; "" for none."""
    authorization = dict(context.invocation_metadata() or ()).get("authorization", "")
    if not isinstance(authorization, str) or not authorization.startswith(_BEARER):
        return ""
    return authorization.removeprefix(_BEARER).strip()


def token_expiry(token: str) -> float:
    """When a JSON web token expires, in wall time; never, for one that doesn't say. Whoever issued it has checked it:
    what it says is only used to end a stream sooner."""
    part = token.split(".")[1:2]
    try:
        claims = json.loads(base64.urlsafe_b64decode(part[0] + "=" * (-len(part[0]) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError, OverflowError):
        return float("inf")


def _unless_over(expires: float) -> float:
    if time.time() >= expires:
        raise Refusal(
            RefusalReason.UNAUTHENTICATED, "the token has expired", remedy="connect again with one that is good now"
        )
    return expires


def _chain(properties: Mapping[str, Any]) -> bytes:
    """The caller's certificate in PEM form, with those that it has shown besides."""
    for name in ("x509_pem_cert_chain", "x509_pem_cert"):
        if found := properties.get(name):
            return bytes(found[0])
    return b""


def _unauthenticated(why: str) -> Refusal:
    return Refusal(
        RefusalReason.UNAUTHENTICATED,
        why,
        remedy="make a certificate with 'hypervisor certs' and name its directory with --tls-dir",
    )
