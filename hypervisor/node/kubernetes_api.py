"""The API server, asked by lightkube; the only importer of it. All methods are awaited in trio and are cancel-safe."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hypervisor.kube.lines import LongLineError, lines_of
from hypervisor.kube.pod import PodObject
from hypervisor.node.failure import StartError

PAGE = 500
CALL_SECONDS = 10.0
# Bookmarks come about once a minute: a watch that says nothing for so long is cut off without our knowing.
SILENT_SECONDS = 150.0
GONE = 410
CONFLICT = 409


class ApiFailure(Exception):  # noqa: N818 - it is an answer, not a fault of ours
    """The API server could not be asked, or refused. code is the HTTP status, 0 where there was none."""

    def __init__(self, text: str, *, code: int = 0, retry_after_seconds: float | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class Change:
    """One message of a watch; kind is ADDED, MODIFIED, DELETED or BOOKMARK."""

    kind: str
    pod: PodObject


class _List(msgspec.Struct):
    items: list[PodObject]
    metadata: _ListMetadata


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class KubernetesApi:
    """One API server. Made by open_api()."""

    def __init__(self, client: Any, pod: type, event: type) -> None:
        self._client = client
        self._pod = pod
        self._event = event
        self.requests = 0

    async def list_pods(self, node: str) -> tuple[tuple[PodObject, ...], str]:
        """All Pods of a node, in pages, and the version they are of. Raises ApiFailure."""
        found: list[PodObject] = []
        params: dict[str, Any] = {"fieldSelector": f"spec.nodeName={node}", "limit": PAGE}
        while True:
            page = _decoded(await self._send("list", self._pod, params=params), _List)
            found += page.items
            if not page.metadata.continue_:
                return tuple(found), page.metadata.resource_version
            params["continue"] = page.metadata.continue_

    @asynccontextmanager
    async def watch_pods(self, node: str, version: str, seconds: float) -> AsyncIterator[AsyncIterator[Change]]:
        """Changes after a version, until the server ends the watch. Raises ApiFailure, code GONE for a version that
        is too old."""
        params = {
            "fieldSelector": f"spec.nodeName={node}",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(seconds)),
        }
        request = self._request("list", self._pod, params=params, watch=True, silent_seconds=SILENT_SECONDS)
        response = await self._answered(request, stream=True)
        try:
            yield self._changes(response)
        finally:
            await response.aclose()

    async def create_event(self, namespace: str, event: Mapping[str, Any]) -> None:
        """Write an event. Raises ApiFailure."""
        document: Any = msgspec.json.decode(msgspec.json.encode(event), type=self._event)
        await self._send("post", self._event, namespace=namespace, obj=document)

    async def count_event(self, namespace: str, name: str, change: Mapping[str, Any]) -> None:
        """Change a few fields of an event. Raises ApiFailure."""
        headers = {"Content-Type": "application/merge-patch+json"}
        await self._send("patch", self._event, namespace=namespace, name=name, obj=dict(change), headers=headers)

    async def _changes(self, response: Any) -> AsyncIterator[Change]:
        http = importlib.import_module("httpx2")
        try:
            failure: ApiFailure | None = None
            async with aclosing(lines_of(response.aiter_bytes())) as lines:  # type: ignore[type-var]
                async for line in lines:
                    try:
                        change = read_change(line) if failure is None else None
                    except ApiFailure as error:
                        if not error.code:
                            raise
                        failure = error  # the server ends the stream after it, and the client reads it to its end
                        continue
                    if change is not None:
                        yield change
            if failure is not None:
                raise failure
        except (http.HTTPError, LongLineError) as error:
            raise ApiFailure(f"the watch was cut off: {error or type(error).__name__}") from error

    async def _send(self, method: str, resource: type, **parts: Any) -> bytes:
        response = await self._answered(self._request(method, resource, **parts), stream=False)
        content: bytes = response.content
        return content

    def _request(
        self, method: str, resource: type, *, silent_seconds: float | None = None, namespace: str = "*", **parts: Any
    ) -> Any:
        wanted = self._client.prepare_request(method, resource, namespace=namespace, **parts)
        if silent_seconds is not None:
            http = importlib.import_module("httpx2")
            wanted.timeout = http.Timeout(CALL_SECONDS, read=silent_seconds)
        return self._client.build_adapter_request(wanted)

    async def _answered(self, request: Any, *, stream: bool) -> Any:
        http = importlib.import_module("httpx2")
        exceptions = importlib.import_module("lightkube.core.exceptions")
        self.requests += 1
        try:
            response = await self._client.send(request, stream=stream)
            if response.status_code >= 400:
                await response.aread()
                await response.aclose()
                raise _failure(response)
        except http.HTTPError as error:
            raise ApiFailure(f"{request.url.host}: {error or type(error).__name__}") from error
        except (exceptions.ConfigError, OSError) as error:
            raise ApiFailure(str(error)) from error
        return response


@asynccontextmanager
async def open_api(kubeconfig: str) -> AsyncIterator[KubernetesApi]:
    """The API server of a kubeconfig, or of the service account. Raises StartError where that can't be read."""
    try:
        generic = importlib.import_module("lightkube.core.generic_client")
        adapter = importlib.import_module("lightkube.config.client_adapter")
        config = importlib.import_module("lightkube.config.kubeconfig")
        core = importlib.import_module("lightkube.resources.core_v1")
        exceptions = importlib.import_module("lightkube.core.exceptions")
        http = importlib.import_module("httpx2")
    except ImportError as error:
        raise StartError(
            f"this installation can't talk to Kubernetes ({error.name} is missing); install it with the extra "
            "'kubernetes', or run without --kubernetes"
        ) from error
    try:
        found = (
            config.KubeConfig.from_file(Path(kubeconfig)) if kubeconfig else config.KubeConfig.from_service_account()
        )
        connection = adapter.ConnectionParams(timeout=http.Timeout(CALL_SECONDS), trust_env=False)
        client = generic.GenericAsyncClient(connection, found.get(), namespace="default")
    except (exceptions.ConfigError, OSError, ValueError, KeyError, TypeError) as error:
        where = f"the kubeconfig {kubeconfig}" if kubeconfig else "the service account of this Pod"
        raise StartError(
            f"{where} can't be used: {error}; name a kubeconfig with --kubeconfig, or run without --kubernetes"
        ) from error
    try:
        yield KubernetesApi(client, core.Pod, core.Event)
    finally:
        await client.close()


def read_change(text: bytes) -> Change:
    """One line of a watch. Raises ApiFailure, with the code of the server's status where the line is one."""
    line = _decoded(text, _Line)
    if line.type == "ERROR":
        status = _decoded(bytes(line.object), _Status)
        raise ApiFailure(f"the watch ended: {status.message or status.code}", code=status.code)
    return Change(line.type, _decoded(bytes(line.object), PodObject))


def _failure(response: Any) -> ApiFailure:
    wait = response.headers.get("Retry-After", "")
    try:
        status = msgspec.json.decode(response.content, type=_Status)
        words = status.message
    except msgspec.DecodeError:
        words = ""
    return ApiFailure(
        f"{response.status_code} {words or response.reason_phrase}",
        code=response.status_code,
        retry_after_seconds=float(wait) if wait.isdigit() else None,
    )


def _decoded(content: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise ApiFailure(f"the API server's answer can't be read: {error}") from error
