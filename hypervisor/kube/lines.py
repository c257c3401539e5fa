"""The lines of a watch. An HTTP client's own notion of a line is that of text, where half a dozen characters end one
besides the newline; of these the API server escapes some only, so that a user's annotation could cut a line in two."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

# Twice what the API server keeps of an object at most, with room for what its JSON escapes.
LONGEST_LINE = 16 * 2**20


class LongLineError(ValueError):
    """A line that does not end."""


async def lines_of(pieces: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """The lines that are not empty, as they become whole; also a last one without its end. Raises LongLineError, and
    what the pieces raise."""
    held: list[bytes] = []
    length = 0
    async with aclosing(pieces):
        async for piece in pieces:
            first, *others = piece.split(b"\n")
            held.append(first)
            length += len(first)
            for each in others:
                if line := b"".join(held):
                    yield line
                held, length = [each], len(each)
            if length > LONGEST_LINE:
                raise LongLineError(f"a line has more than {LONGEST_LINE} bytes")
    if line := b"".join(held):
        yield line
