"""The page of one object, kept as it is now: made anew in a thread, so that no server that hangs holds up the keys."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hypervisor.top.content import Content
from hypervisor.top.interfaces import Outside, Unavailable


class Detail:
    """Makes the page of an object again whenever the server has told another state of it; used by one thread."""

    def __init__(self, outside: Outside, *, kind: str, key: str, message: Any, changed: Callable[[], None]) -> None:
        self._outside = outside
        self._kind = kind
        self._key = key
        # Of which the last page was made, or is being made.
        self._message = message
        self._changed = changed
        self._lock = threading.Lock()
        self._made: tuple[str, ...] | None = None
        self._working = False

    def gone(self, content: Content) -> bool:
        """Whether the object is no longer among those that the server has; what is not heard of may still be there."""
        return content.known and not content.trouble and self._now(content) is None

    def newer(self, content: Content) -> tuple[str, ...] | None:
        """The page, where there is one since the last time; begins another one where the object has changed."""
        message = self._now(content)
        with self._lock:
            made, self._made = self._made, None
            begin = message is not None and message is not self._message and not self._working and not content.trouble
            if begin:
                self._message, self._working = message, True
        if begin:
            threading.Thread(target=self._make, args=(message,), name="detail", daemon=True).start()
        return made

    def _now(self, content: Content) -> Any:
        rows: tuple[Any, ...] = {"gpus": content.gpus, "pods": content.pods, "nodes": content.nodes}[self._kind]
        return next((row.message for row in rows if row.key == self._key), None)

    def _make(self, message: Any) -> None:
        page: tuple[str, ...] | None = None
        try:
            page = tuple(self._outside.describe(self._kind, message))
        except Unavailable:
            # The watches notice too, and tell; the last page stands.
            page = None
        with self._lock:
            self._made, self._working = page, False
        self._changed()
