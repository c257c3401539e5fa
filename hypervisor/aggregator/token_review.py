"""TokenReview: the one question about tokens that is put to the API server, by lightkube."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from hypervisor.aggregator.tokens import AUDIENCE, Review, ReviewFailed
from hypervisor.rpc.listening import ListenError

_SECONDS = 10.0


@asynccontextmanager
async def open_token_review(kubeconfig: str) -> AsyncIterator[Callable[[str], Awaitable[Review]]]:
    """What asks, for as long as the block runs. kubeconfig: a file, "" for the account of our own Pod.

    Raises ListenError when there is no API server to ask.
    """
    try:
        lightkube = importlib.import_module("lightkube")
        resource = importlib.import_module("lightkube.resources.authentication_v1").TokenReview
        models = importlib.import_module("lightkube.models.authentication_v1")
    except ImportError as error:
        raise ListenError(
            "token_listen: tokens need the Kubernetes client; pip install 'gpu-hypervisor[kubernetes]'"
        ) from error
    core = importlib.import_module("lightkube.core.exceptions")
    http = importlib.import_module("httpx2")
    try:
        config = (
            lightkube.KubeConfig.from_file(kubeconfig) if kubeconfig else lightkube.KubeConfig.from_service_account()
        )
        client = lightkube.AsyncClient(config=config, timeout=http.Timeout(_SECONDS))
    except (core.ConfigError, OSError) as error:
        raise ListenError(
            f"token_listen: no API server is known to ask about tokens: {error}; name a --kubeconfig"
        ) from error

    async def review(token: str) -> Review:
        question: Any = resource(spec=models.TokenReviewSpec(token=token, audiences=[AUDIENCE]))
        try:
            status = (await client.create(question)).status
        except (core.ApiError, http.HTTPError) as error:
            raise ReviewFailed(str(error) or type(error).__name__) from error
        if not status.authenticated:
            return Review(error=status.error or "it is not good")
        if AUDIENCE not in (status.audiences or ()):
            return Review(error=f"it is not for the audience {AUDIENCE}")
        user = status.user
        extra = {key: tuple(values) for key, values in (user.extra or {}).items()}
        return Review(username=user.username or "", extra=extra)

    try:
        yield review
    finally:
        await client.close()
