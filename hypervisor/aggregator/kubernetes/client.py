"""The API server, asked from asyncio; the only importer of lightkube and its HTTP client in the aggregator.

Objects are plain JSON. A failure is an ApiError with its HTTP status; what a 429 or a 503 asks to be waited for is
waited for by whoever asks next, so that a server that is overrun is left alone by all of us.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypervisor.aggregator.store import StoreError
from hypervisor.kube.lines import LongLineError, lines_of

PAGE = 500
CALL_SECONDS = 15.0
# Bookmarks come about once a minute: a watch that says nothing for so long is cut off without our knowing.
SILENT_SECONDS = 150.0
WATCH_SECONDS = 240
_LONGEST_RETRY_AFTER_SECONDS = 30.0
_CONNECTIONS = 16

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
_METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
NOT_FOUND, CONFLICT, GONE, INVALID, TOO_MANY = 404, 409, 410, 422, 429

Object = dict[str, Any]


class ApiError(Exception):
    """The API server could not be asked, or refused. code is the HTTP status, 0 where there was none; reason is the
    one word of its Status."""

    def __init__(self, text: str, *, code: int = 0, reason: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.reason = reason

    @property
    def of_object(self) -> bool:
        """Whether it says something of the one object that was sent, and not of the server, its load or our rights."""
        return self.code in (400, NOT_FOUND, CONFLICT, 413, INVALID)


@dataclass(frozen=True, slots=True)
class Change:
    """One message of a watch; kind is ADDED, MODIFIED, DELETED or BOOKMARK."""

    kind: str
    object: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatistics:
    """Requests, those that were refused by status, and how often the server was overrun."""

    requests_total: int
    failures: tuple[tuple[int, int], ...]


class KubernetesClient:
    """One API server. Made by open_client(). Only the loop's tasks call it; every method may be cancelled."""

    def __init__(self, http: Any, errors: tuple[type[Exception], ...], namespace: str) -> None:
        self._http = http
        self._errors = errors
        self.namespace = namespace
        self._not_before = 0.0
        self._requests = 0
        self._failures: dict[int, int] = {}

    async def get(self, path: str) -> Object:
        """One object. Raises ApiError."""
        return await self._json("GET", path)

    async def text(self, path: str, query: Mapping[str, str]) -> str:
        """What is no JSON, a log for instance. Raises ApiError."""
        response = await self._answered(self._request("GET", path, query=query))
        found: str = response.text
        return found

    async def list_all(
        self, path: str, query: Mapping[str, str] | None = None, *, metadata_only: bool = False
    ) -> tuple[list[Object], str]:
        """All objects of a collection, in pages, and the version they are of. Raises ApiError.

        metadata_only: a tenth of what ten thousand Node objects are. Pages of a version that is gone meanwhile begin
        anew.
        """
        while True:
            try:
                return await self._pages(path, dict(query or {}), "List" if metadata_only else "")
            except ApiError as error:
                if error.code != GONE:
                    raise

    async def create(self, path: str, body: Object) -> Object:
        """A new object. Raises ApiError, code CONFLICT when it is there."""
        return await self._json("POST", path, body=body)

    async def replace(self, path: str, body: Object) -> Object:
        """An object as a whole, with the version that it has. Raises ApiError, code CONFLICT when it has another."""
        return await self._json("PUT", path, body=body)

    async def merge(self, path: str, body: Object) -> Object:
        """Some fields of an object. Raises ApiError."""
        return await self._json("PATCH", path, body=body, content_type=MERGE)

    async def apply(self, path: str, body: Object, *, manager: str, force: bool) -> Object:
        """Server-side apply: these fields are the manager's, and those it had and doesn't name are removed.

        Raises ApiError, code CONFLICT when another manager has one of them and force is not given.
        """
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        return await self._json("PATCH", path, body=body, content_type=APPLY, query=query)

    async def delete(self, path: str, *, uid: str = "") -> None:
        """Remove an object, only if it has this UID where one is given; one that is gone is fine. Raises ApiError."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self._json("DELETE", path, body=body)
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise

    async def watch(
        self, path: str, version: str, query: Mapping[str, str] | None = None, *, metadata_only: bool = False
    ) -> AsyncIterator[Change]:
        """Changes after a version, until the server ends the watch. Raises ApiError, code GONE for a version that is
        too old."""
        asked = {
            **(query or {}),
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        accept = _METADATA.format("") if metadata_only else ""
        request = self._request("GET", path, query=asked, silent_seconds=SILENT_SECONDS, accept=accept)
        response = await self._answered(request, stream=True)
        try:
            async for line in lines_of(response.aiter_bytes()):
                yield _change(line)
        except self._errors as error:
            raise ApiError(f"the watch was cut off: {error or type(error).__name__}") from error
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Let go of all connections."""
        await self._http.aclose()

    def statistics(self) -> ClientStatistics:
        """Counters since the start."""
        return ClientStatistics(requests_total=self._requests, failures=tuple(sorted(self._failures.items())))

    # --- inside

    async def _pages(self, path: str, query: dict[str, str], metadata: str) -> tuple[list[Object], str]:
        found: list[Object] = []
        query["limit"] = str(PAGE)
        while True:
            page = await self._json("GET", path, query=query, accept=_METADATA.format(metadata) if metadata else "")
            found += page.get("items") or []
            place = page.get("metadata") or {}
            if not place.get("continue"):
                return found, str(place.get("resourceVersion", ""))
            query["continue"] = place["continue"]

    async def _json(self, method: str, path: str, **parts: Any) -> Object:
        response = await self._answered(self._request(method, path, **parts))
        try:
            found = json.loads(response.content)
        except ValueError as error:
            raise ApiError(f"the API server's answer to {method} {path} is no JSON") from error
        if not isinstance(found, dict):
            raise ApiError(f"the API server's answer to {method} {path} is no object")
        return found

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
        silent_seconds: float = CALL_SECONDS,
        accept: str = "",
    ) -> Any:
        timeout = importlib.import_module("httpx2").Timeout(CALL_SECONDS, read=silent_seconds)
        content = json.dumps(body, separators=(",", ":")).encode() if body is not None else None
        headers = {"Content-Type": content_type} if body is not None else {}
        if accept:
            headers["Accept"] = accept
        return self._http.build_request(
            method, path, params=dict(query or {}), content=content, headers=headers, timeout=timeout
        )

    async def _answered(self, request: Any, *, stream: bool = False) -> Any:
        loop = asyncio.get_running_loop()
        if (wait := self._not_before - loop.time()) > 0:
            await asyncio.sleep(wait)
        self._requests += 1
        try:
            response = await self._http.send(request, stream=stream)
            if response.status_code < 400:
                return response
            await response.aread()
            await response.aclose()
        except self._errors as error:
            self._failures[0] = self._failures.get(0, 0) + 1
            raise ApiError(f"{request.url.host}: {error or type(error).__name__}") from error
        code = int(response.status_code)
        self._failures[code] = self._failures.get(code, 0) + 1
        wait_text = response.headers.get("Retry-After", "")
        if code in (TOO_MANY, 503) and wait_text.isdigit():
            self._not_before = loop.time() + min(float(wait_text), _LONGEST_RETRY_AFTER_SECONDS)
        raise _error(f"{request.method} {request.url.path}", code, response.content)


def open_client(kubeconfig: str, *, namespace: str) -> KubernetesClient:
    """The API server of a kubeconfig, or of the service account of this Pod. Raises StoreError.

    namespace: where our own objects lie; "" takes that of the kubeconfig or the service account.
    """
    try:
        adapter = importlib.import_module("lightkube.config.client_adapter")
        config = importlib.import_module("lightkube.config.kubeconfig")
        exceptions = importlib.import_module("lightkube.core.exceptions")
        http = importlib.import_module("httpx2")
    except ImportError as error:
        raise StoreError(
            f"this installation can't talk to Kubernetes ({error.name} is missing); install it with the extra "
            "'kubernetes', or use a SQLite store"
        ) from error
    try:
        found = (
            config.KubeConfig.from_file(Path(kubeconfig)) if kubeconfig else config.KubeConfig.from_service_account()
        ).get()
        parameters = adapter.ConnectionParams(timeout=http.Timeout(CALL_SECONDS), trust_env=False).httpx_params(found)
        limits = http.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS)
        client = http.AsyncClient(**parameters, limits=limits)
    except (exceptions.ConfigError, OSError, ValueError, KeyError, TypeError) as error:
        where = f"the kubeconfig {kubeconfig}" if kubeconfig else "the service account of this Pod"
        raise StoreError(
            f"{where} can't be used: {error}; name a kubeconfig with --kubeconfig, or use a SQLite store"
        ) from error
    errors = (http.HTTPError, http.StreamError, exceptions.ConfigError, OSError, LongLineError)
    return KubernetesClient(client, errors, namespace or found.namespace or "default")


def _change(line: bytes) -> Change:
    try:
        found = json.loads(line)
        kind, content = found["type"], found["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise ApiError("a line of a watch can't be read") from error
    if kind == "ERROR":
        raise ApiError(
            f"the watch ended: {content.get('message') or content.get('code')}",
            code=int(content.get("code") or 0),
            reason=str(content.get("reason") or ""),
        )
    return Change(kind, content)


def _error(what: str, code: int, content: bytes) -> ApiError:
    try:
        status = json.loads(content)
        words, reason = str(status.get("message") or ""), str(status.get("reason") or "")
    except (ValueError, AttributeError):
        words = reason = ""
    return ApiError(f"{what}: {code} {words or reason}".rstrip(), code=code, reason=reason)
