"""A real browser, driven by the W3C WebDriver protocol: Chromium and its driver, as distributions package them."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Nothing but this machine can be reached, whatever a page asks for.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's key of an element
_SECONDS = 60


def missing() -> str:
    """Why there is no browser; "" when there is one."""
    wanted = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(wanted)}: apt-get install chromium chromium-driver" if wanted else ""


class Browser:
    """One window. Use as a context manager."""

    def __init__(self, directory: Path, *, width: int = 1200, height: int = 900) -> None:
        self._directory = directory
        self._size = f"--window-size={width},{height}"

    def __enter__(self) -> Browser:
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._driver.stdout is not None
        port = ""
        for line in self._driver.stdout:
            if found := re.search(r"on port (\d+)", line):
                port = found[1]
                if "successfully" in line:
                    break
        self._base = f"http://127.0.0.1:{port}"
        arguments = [*FLAGS, self._size, f"--user-data-dir={self._directory}"]
        options = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self._base += f"/session/{made['sessionId']}"
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(30)
            if self._driver.stdout is not None:
                self._driver.stdout.close()

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What the script returns; its arguments are arguments[0] and so on."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def click_at(self, x: float, y: float) -> None:
        """A real click at a place of the window."""
        moves = [
            {"type": "pointerMove", "duration": 0, "x": int(x), "y": int(y)},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": moves}
        self._call("POST", "/actions", {"actions": [mouse]})

    def type_into(self, selector: str, text: str) -> None:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{found[_ELEMENT]}/value", {"text": text})

    def complaints(self) -> list[str]:
        """What the browser's console says: errors, and what the page's policy forbids."""
        found = self._call("POST", "/se/log", {"type": "browser"})
        # Advice about speed is none; reading pixels, which only tests do, gets some.
        return [entry["message"] for entry in found if entry["level"] == "SEVERE"]

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def _call(self, method: str, path: str, content: Any = None) -> Any:
        body = None if content is None else json.dumps(content).encode()
        request = Request(self._base + path, data=body, method=method, headers={"Content-Type": "application/json"})
        with urlopen(request, timeout=_SECONDS) as response:
            return json.load(response)["value"]
