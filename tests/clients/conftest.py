"""Machines for clients: the same as for the simulator's own tests."""

from tests.integration.simulation.conftest import simulate

__all__ = ["simulate"]
