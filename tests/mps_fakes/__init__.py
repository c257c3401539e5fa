"""A control daemon of MPS for simulated machines: speaks the control protocol, and really caps what its clients use."""

from __future__ import annotations

from pathlib import Path

CONTROL = Path(__file__).parent / "nvidia-cuda-mps-control"
