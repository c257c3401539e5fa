"""What can be wrong with a limit file, as a type: raised where it is seen, turned into words at the edge."""

from __future__ import annotations

from enum import Enum


class Finding(Enum):
    """Kinds of trouble with the two files of an allocation."""

    MISSING = "missing"
    REPLACED = "replaced"
    NOT_REGULAR = "not a regular file"
    LINKED = "linked elsewhere"
    WRONG_SIZE = "wrong size"
    PUNCHED = "punched"
    WRONG_HEADER = "wrong header"
    OTHER_MAJOR = "other major version"
    OTHER_BOOT = "other boot"
    WRONG_LAYOUT = "wrong layout"
    IMPOSSIBLE = "impossible content"
    UNREADABLE = "unreadable"
    PAGE_LOST = "page lost"
    NO_SPACE = "no space"
    BAD_NAME = "bad name"
    EXISTS = "exists already"


class LimitFileError(Exception):
    """Something is wrong with a limit file, or it could not be made. message says what was found and where."""

    def __init__(self, finding: Finding, message: str) -> None:
        super().__init__(message)
        self.finding = finding
        self.message = message
