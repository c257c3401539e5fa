"""Structured logs of the aggregator on stderr: one JSON object a line, or readable lines at a terminal."""

from __future__ import annotations

import logging
import sys

import structlog


def set_up(level: str) -> None:
    """Configure structlog, and keep libraries' loggers to warnings. level: debug to error."""
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if terminal else [structlog.processors.format_exc_info]),
            structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    logging.getLogger("grpc._cython.cygrpc").addFilter(_not_of_callers_who_left)


def _not_of_callers_who_left(record: logging.LogRecord) -> bool:
    """gRPC tells with a traceback of each caller who leaves while a message is on its way to it: no fault of ours, and
    no line that others may write into our log as often as they like."""
    return not record.getMessage().startswith("ExecuteBatchError")
