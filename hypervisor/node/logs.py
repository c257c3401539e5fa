"""Structured logs on stderr: one JSON object a line, or readable lines at a terminal.

Fields are what the daemon itself says; settings are logged by name only, so that no secret gets here.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import msgspec
import structlog


def set_up(level: str, *, stream: TextIO | None = None) -> None:
    """Configure structlog, and route the standard library's loggers through it. level: debug to error."""
    output = sys.stderr if stream is None else stream
    renderer: Any = _JSON
    if output.isatty():
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    processors = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([] if output.isatty() else [structlog.processors.format_exc_info]),
        renderer,
    ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_LoggerFactory(output),
        cache_logger_on_first_use=False,  # a reload may change the level
    )
    root = logging.getLogger()
    root.handlers[:] = [_Forward()]
    root.setLevel(logging.WARNING if level in {"debug", "info"} else level.upper())


class _Logger:
    """Writes lines to one stream. A reader that has gone away (a closed pipe) loses the log and ends nothing else."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def msg(self, line: str) -> None:
        try:
            self._output.write(line + "\n")
            self._output.flush()
        except (OSError, ValueError):
            return  # a broken pipe, a full disk, a closed stream: there is nowhere left to say so

    debug = info = warning = error = critical = exception = log = msg


class _LoggerFactory:
    """Loggers of structlog; the name that is given to get_logger() is for the reader of the code."""

    def __init__(self, output: TextIO) -> None:
        self._logger = _Logger(output)

    def __call__(self, *_: Any) -> _Logger:
        return self._logger


class _Forward(logging.Handler):
    """Records of libraries (asyncio, grpc, trio), in our format."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info or None
        )


def _encode(event: dict[str, Any], **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=repr).decode()


_JSON = structlog.processors.JSONRenderer(serializer=_encode)
