"""Lines of a watch, however they come."""

from __future__ import annotations

import pytest
import trio

from hypervisor.kube.lines import LONGEST_LINE, LongLineError, lines_of


def lines(*pieces: bytes) -> list[bytes]:
    async def source():
        for piece in pieces:
            yield piece

    async def collect() -> list[bytes]:
        return [line async for line in lines_of(source())]

    return trio.run(collect)


def test_only_a_newline_ends_a_line() -> None:
    text = "a\x85b\u2028c\rd\x0be\x1cf".encode()
    assert lines(text + b"\n" + text) == [text, text]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_pieces_may_end_anywhere(size: int) -> None:
    whole = "first\n\nsecond ä\nthird".encode()
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert lines(*pieces) == [b"first", "second ä".encode(), b"third"]


def test_nothing_is_no_line() -> None:
    assert lines() == lines(b"") == lines(b"\n\n") == []


def test_a_line_that_does_not_end_is_told() -> None:
    with pytest.raises(LongLineError):
        lines(*[b"x" * (LONGEST_LINE // 2)] * 3)
