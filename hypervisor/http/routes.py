"""What answers which path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hypervisor.http import api, page
from hypervisor.http.message import Request, Response, error_response, json_response
from hypervisor.model import NodeSnapshot

_PREFIX = "/api/v1/devices/"
_PATHS = ("/", "/metrics", "/healthz", "/readyz", "/api/v1/devices", "/api/v1/workers", "/api/v1/pod")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unready:
    """One reason why the node is not ready: a code for machines and words for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPage:
    """A rendered /metrics page. encoding is "gzip" or ""."""

    content_type: str
    encoding: str
    body: bytes


class NodeView(Protocol):
    """What the routes need of the node; both are plain reads."""

    def snapshot(self) -> NodeSnapshot:
        """The current state."""

    def unready(self) -> Sequence[Unready]:
        """Why the node is not ready; empty when it is."""


RenderMetrics = Callable[[str, str], Awaitable[MetricsPage]]


class Routes:
    """Answers requests; render_metrics gets the Accept and the Accept-Encoding header."""

    def __init__(self, node: NodeView, render_metrics: RenderMetrics) -> None:
        self._node = node
        self._render_metrics = render_metrics

    async def answer(self, request: Request) -> Response:
        """The answer to one request. Cancelling is safe: nothing changes here."""
        if request.path == "/metrics":
            return await self._metrics(request)
        return self._page(request.path)

    def _page(self, path: str) -> Response:
        match path:
            case "/":
                return page.render(self._node.snapshot())
            case "/healthz":
                return json_response(200, {"status": "ok"})
            case "/readyz":
                return self._readiness()
            case "/api/v1/devices":
                return json_response(200, {"data": api.devices(self._node.snapshot())})
            case "/api/v1/workers":
                return json_response(200, {"data": api.workers(self._node.snapshot())})
            case "/api/v1/pod":
                return json_response(200, {"pods": api.pods(self._node.snapshot())})
        if path.startswith(_PREFIX):
            return self._device(path.removeprefix(_PREFIX))
        return error_response(404, f"nothing is served at this path; there is {', '.join(_PATHS)}")

    def _readiness(self) -> Response:
        reasons = [{"code": reason.code, "message": reason.message} for reason in self._node.unready()]
        status = "not ready" if reasons else "ok"
        return json_response(503 if reasons else 200, {"status": status, "reasons": reasons})

    def _device(self, uuid: str) -> Response:
        device = api.device(self._node.snapshot(), uuid)
        if device is None:
            return error_response(404, "no GPU of this node has this UUID; /api/v1/devices lists them")
        return json_response(200, {"data": device})

    async def _metrics(self, request: Request) -> Response:
        made = await self._render_metrics(request.headers.get("accept", ""), request.headers.get("accept-encoding", ""))
        headers: tuple[tuple[str, str], ...] = (("Vary", "Accept, Accept-Encoding"),)
        if made.encoding:
            headers = (*headers, ("Content-Encoding", made.encoding))
        return Response(status=200, content_type=made.content_type, body=made.body, headers=headers)
