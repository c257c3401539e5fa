"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """What a shell starts in the background ignores SIGINT; programs under test must not inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
