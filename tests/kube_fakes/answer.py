"""How the fake API servers say no."""

from __future__ import annotations


class Answer(Exception):
    """An answer that is no success."""

    def __init__(self, code: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.code, self.headers = code, headers
