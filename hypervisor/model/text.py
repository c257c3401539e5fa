"""How much room text takes on a terminal, which is not its length: names of programs may be in any script; pure."""

from __future__ import annotations

from unicodedata import category, east_asian_width

# Marks that stand on the letter before them, and marks that are not seen.
_WITHOUT_ROOM = frozenset({"Mn", "Me", "Cf"})


def text_width(text: str) -> int:
    """The columns that a terminal needs for it."""
    return len(text) if text.isascii() else sum(map(_letter_width, text))


def first_columns(text: str, width: int) -> str:
    """As much of the text, from its beginning, as fits into so many columns."""
    if text.isascii():
        return text[: max(0, width)]
    left = width
    for at, letter in enumerate(text):
        left -= _letter_width(letter)
        if left < 0:
            return text[:at]
    return text


def _letter_width(letter: str) -> int:
    if letter.isascii():
        return 1
    if category(letter) in _WITHOUT_ROOM:
        return 0
    return 2 if east_asian_width(letter) in "WF" else 1
