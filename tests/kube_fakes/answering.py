"""What the fake API servers' requests share: answers with a length, and watches in chunks."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

END: dict[str, Any] = {}  # ends a watch


class AnsweringHandler(BaseHTTPRequestHandler):
    """A request that is answered as an API server answers."""

    protocol_version = "HTTP/1.1"

    def reply(self, code: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def stream(
        self, changes: queue.Queue[dict[str, Any]], seconds: float, wanted: Callable[[dict[str, Any]], bool]
    ) -> None:
        """The wanted changes for so long, or until END or an error among them."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        ends_at = time.monotonic() + seconds
        try:
            while time.monotonic() < ends_at:
                try:
                    change = changes.get(timeout=0.2)
                except queue.Empty:
                    continue
                if change is END:
                    break
                if wanted(change):
                    line = as_go(change) + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
                if change["type"] == "ERROR":
                    break
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True


def as_go(value: object) -> bytes:
    """JSON as the real server writes it: raw but for a few characters, of which not all end a line of text."""
    text = json.dumps(value, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode()
