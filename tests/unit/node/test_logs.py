"""Logs are JSON lines, whoever writes them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from hypervisor.node import logs


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.set_up("info", stream=stream)
    yield stream
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_events_are_one_json_object_a_line(output: io.StringIO) -> None:
    structlog.get_logger("node").info("serving", http="http://[::1]:1", odd=object)
    structlog.get_logger("node").debug("too much")
    (line,) = lines(output)
    assert (line["event"], line["level"], line["http"]) == ("serving", "info", "http://[::1]:1")
    assert line["timestamp"].endswith("Z")
    assert "object" in line["odd"]


def test_tracebacks_stay_on_their_line(output: io.StringIO) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        structlog.get_logger().critical("failed", exc_info=error)
    (line,) = lines(output)
    assert "ValueError: two\nlines" in line["exception"]


def test_loggers_of_libraries_come_out_the_same_way(output: io.StringIO) -> None:
    logging.getLogger("asyncio").error("a task was %s", "lost")
    logging.getLogger("asyncio").info("not asked for")
    (line,) = lines(output)
    assert (line["event"], line["level"], line["logger"]) == ("a task was lost", "error", "asyncio")


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError("nobody reads")


def test_a_reader_that_has_gone_ends_nothing(output: io.StringIO) -> None:
    logs.set_up("info", stream=Gone())
    structlog.get_logger().warning("not heard")
    logging.getLogger("asyncio").error("nor this")


def test_the_level_can_be_changed_while_loggers_exist(output: io.StringIO) -> None:
    logger = structlog.get_logger("node")
    logger.info("before")
    logs.set_up("error", stream=output)
    logger.info("after")
    assert [line["event"] for line in lines(output)] == ["before"]
