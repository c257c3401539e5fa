"""What holds for all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# How long an example takes is the machine's matter; what must be quick is measured by benches.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure() -> None:
    """Programs under test inherit nothing from the developer's shell that makes them behave otherwise."""
    # A program that forgets to flush its output is found here too, and not only where this is not set.
    os.environ.pop("PYTHONUNBUFFERED", None)
    # What a shell starts in the background ignores SIGINT.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
