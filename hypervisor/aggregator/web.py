"""What the HTTP port shows people and scripts: the page, the map behind it, metrics and health. Read-only."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from importlib import resources
from urllib.parse import unquote

from hypervisor.aggregator.map import ClusterMap
from hypervisor.aggregator.metrics import MetricsPage
from hypervisor.http.message import Request, Response, error_response, json_response

_NODES = "/api/v1/nodes/"


class WebPages:
    """Answers requests. reasons: why the aggregator is not ready, none when it is."""

    def __init__(self, metrics: MetricsPage, cluster_map: ClusterMap, reasons: Callable[[], Sequence[str]]) -> None:
        self._metrics = metrics
        self._map = cluster_map
        self._reasons = reasons
        self._page = _page(resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))

    async def answer(self, request: Request) -> Response:
        """The answer to a path."""
        path = request.path
        if path == "/":
            return self._page
        if path == "/metrics":
            content_type, body = self._metrics.render(request.headers.get("accept", ""))
            return Response(status=200, content_type=content_type, body=body)
        if path == "/healthz":
            return Response(status=200, content_type="text/plain; charset=utf-8", body=b"ok\n")
        if path == "/readyz":
            reasons = list(self._reasons())
            return json_response(503 if reasons else 200, {"ready": not reasons, "reasons": reasons})
        if path == "/api/v1/map":
            return Response(status=200, content_type="application/json", body=await self._map.cells())
        if path.startswith(_NODES):
            found = self._map.node(unquote(path.removeprefix(_NODES)))
            return (
                error_response(404, "no node of this name has reported") if found is None else json_response(200, found)
            )
        return error_response(404, "there are /, /metrics, /healthz, /readyz, /api/v1/map and /api/v1/nodes/NAME")


def _page(html: str) -> Response:
    """The page, allowed nothing but its own script and style, and to ask this port."""
    policy = "; ".join(
        [
            "default-src 'none'",
            "connect-src 'self'",
            "img-src data:",
            f"script-src '{_hash(html, 'script')}'",
            f"style-src '{_hash(html, 'style')}'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
    return Response(
        status=200,
        content_type="text/html; charset=utf-8",
        body=html.encode(),
        headers=(("Content-Security-Policy", policy), ("X-Content-Type-Options", "nosniff")),
    )


def _hash(html: str, element: str) -> str:
    found = re.search(f"<{element}>(.*?)</{element}>", html, re.DOTALL)
    assert found is not None
    return "sha256-" + base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
