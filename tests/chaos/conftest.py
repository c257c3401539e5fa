"""Chaos tests of the limiter use the fixtures of its integration tests."""

from __future__ import annotations

from tests.integration.limiter.conftest import build, limit_files, pod

__all__ = ["build", "limit_files", "pod"]
