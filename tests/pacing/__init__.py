"""Loads under the limiter on the simulator's virtual clock: deterministic, and faster than time.

A cell says which Pods run what; `run` gives what the simulator's ledger saw of the first one. The limiter is the
shipped one but for its clock, which lies in a file of its own; the daemon's part is played with the shipped control
logic and limit files.
"""

from tests.pacing.cell import Cell, Load
from tests.pacing.result import Result
from tests.pacing.run import run

__all__ = ["Cell", "Load", "Result", "run"]
