"""Requests and responses as plain values, apart from the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for. path has no query and is percent-decoded; header names are in lower case."""

    path: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What is answered. The protocol adds lengths, dates and connection handling."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def json_response(status: int, value: Any) -> Response:
    """A JSON body, with a line end for people at a terminal."""
    return Response(status=status, content_type="application/json", body=msgspec.json.encode(value) + b"\n")


def error_response(status: int, what: str) -> Response:
    """An error as the compatible API has it."""
    return json_response(status, {"error": what})
