"""TokenReview as an API server answers it: tokens that are known, for whom and for which audience."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"


@dataclass(frozen=True)
class KnownToken:
    """Whose a token is; node: where the Pod runs that it is bound to, "" for none."""

    account: str  # NAMESPACE/NAME
    audience: str
    node: str = ""


class TokenReviews:
    """Plain HTTP on loopback."""

    def __init__(self) -> None:
        self.tokens: dict[str, KnownToken] = {}
        self.asked = 0
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                code, answer = (201, fake.review(body)) if self.path == _PATH else (404, {"message": "not here"})
                content = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self, path: Path) -> Path:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def review(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to one question, as recorded from a real server: which audience, and which node."""
        self.asked += 1
        spec = body["spec"]
        known = self.tokens.get(spec["token"])
        if known is None or known.audience not in spec["audiences"]:
            return {**body, "status": {"user": {}, "error": "[invalid bearer token, token lookup failed]"}}
        namespace, _, name = known.account.partition("/")
        extra = {"authentication.kubernetes.io/credential-id": ["JTI=1"]}
        if known.node:
            extra |= {
                "authentication.kubernetes.io/node-name": [known.node],
                "authentication.kubernetes.io/pod-name": [f"pod-of-{known.node}"],
            }
        user = {
            "username": f"system:serviceaccount:{namespace}:{name}",
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "extra": extra,
        }
        return {**body, "status": {"authenticated": True, "audiences": [known.audience], "user": user}}
