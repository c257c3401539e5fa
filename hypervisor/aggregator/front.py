"""What stands before the services: addresses, certificates, who may call, and whether this replica answers at all."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import grpc

from hypervisor.aggregator.cluster_service import DESCRIPTOR as CLUSTER_SERVICE
from hypervisor.aggregator.gate import Gate
from hypervisor.aggregator.listeners import Listeners
from hypervisor.aggregator.report_service import SERVICE as REPORT_SERVICE
from hypervisor.aggregator.settings import AggregatorSettings
from hypervisor.aggregator.token_review import open_token_review
from hypervisor.aggregator.tokens import Accounts, Tokens
from hypervisor.model import Refusal, RefusalReason
from hypervisor.model.peer import Role
from hypervisor.rpc.channel_options import SERVER_OPTIONS
from hypervisor.rpc.guard import Guard, IdentifyToken, Limits
from hypervisor.rpc.ports import server_certificates
from hypervisor.rpc.standing_services import add_standing_services

# Ten thousand streams open within a second or two after a restart; by default gRPC would reset some of them.
_SERVER_OPTIONS = tuple(
    {
        **dict(SERVER_OPTIONS),
        "grpc.server.max_pending_requests": 20_000,
        "grpc.server.max_pending_requests_hard_limit": 30_000,
    }.items()
)
_STOP_GRACE_SECONDS = 1.0
_SERVICES = (REPORT_SERVICE, CLUSTER_SERVICE.full_name)


class Front:
    """One server. closing is set when the process stops."""

    def __init__(
        self, settings: AggregatorSettings, *, identify_token: IdentifyToken | None, refusal: Callable[[], Refusal]
    ) -> None:
        """identify_token: how a ServiceAccount token becomes an identity. refusal: the answer while the gate is shut.
        Raises ListenError."""
        self._settings = settings
        self.closing = asyncio.Event()
        self.certificates = server_certificates(settings.tls_dir)
        self.guard = Guard(
            {REPORT_SERVICE: frozenset({Role.NODE}), CLUSTER_SERVICE.full_name: frozenset({Role.READER})},
            Limits(
                requests_per_second=settings.requests_per_second,
                requests_at_once=2 * settings.requests_per_second,
                streams=settings.streams_per_peer,
            ),
            identify_token=identify_token,
            certificates=self.certificates,
        )
        self.gate = Gate(_SERVICES, refusal)
        self._listeners = Listeners(
            grpc.aio.server(interceptors=(self.guard,), options=_SERVER_OPTIONS), self.certificates
        )

    async def listen(self) -> tuple[str, ...]:
        """Bind and serve; returns the addresses. Raises ListenError, and then nothing is bound."""
        server = self._listeners.server
        server.add_generic_rpc_handlers((self.gate,))
        add_standing_services(server, _SERVICES, self.closing, opened=self.gate.opened)
        for text in self._settings.listen:
            self._listeners.bind(text, insecure=self._settings.insecure)
        for text in self._settings.token_listen:
            self._listeners.bind_for_tokens(text)
        await server.start()
        return self._listeners.addresses

    async def stop(self) -> None:
        """End what is open, and let go of the addresses."""
        self.closing.set()
        await self._listeners.stop(_STOP_GRACE_SECONDS)


@contextlib.asynccontextmanager
async def open_front(settings: AggregatorSettings, *, refusal: Callable[[], Refusal]) -> AsyncIterator[Front]:
    """A server that does not listen yet; it is stopped when the block is left. Raises ListenError."""
    async with contextlib.AsyncExitStack() as stack:
        identify_token = None
        if settings.token_listen:
            review = await stack.enter_async_context(open_token_review(settings.kubeconfig))
            accounts = Accounts(
                reporters=frozenset(settings.reporter_accounts), readers=frozenset(settings.reader_accounts)
            )
            identify_token = Tokens(review, accounts, monotonic=time.monotonic).identify
        front = Front(settings, identify_token=identify_token, refusal=refusal)
        try:
            yield front
        finally:
            await front.stop()


def not_yet() -> Refusal:
    """The answer before what is stored has been read."""
    return Refusal(RefusalReason.NOT_READY, "the aggregator is starting", remedy="connect again in a moment")
