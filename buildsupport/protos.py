"""Generates hypervisor/v1/*_pb2*.py from protos/, with the generator that the build pins."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"


def generate(target: Path = ROOT) -> None:
    """Write the code below `target`, so that it imports as hypervisor.v1; does nothing when it is current.

    Raises SystemExit with the generator's own message when a .proto file is wrong.
    """
    sources = sorted(PROTOS.glob("hypervisor/v1/*.proto"))
    kubelet = sorted(PROTOS.glob("kubelet/*.proto"))
    newest = max(path.stat().st_mtime_ns for path in [*sources, *kubelet, Path(__file__)])
    outputs = [target / "hypervisor/v1" / f"{path.stem}_pb2.py" for path in [*sources, *kubelet]]
    if all(path.exists() and path.stat().st_mtime_ns >= newest for path in outputs):
        return
    import grpc_tools
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    status = protoc.main(
        [
            "protoc",
            f"-I{PROTOS}",
            # Kubelet's APIs lie apart and are generated beside ours.
            f"-Ihypervisor/v1={PROTOS / 'kubelet'}",
            f"-I{well_known}",
            f"--python_out={target}",
            f"--pyi_out={target}",
            f"--grpc_python_out={target}",
            *map(str, sources),
            *(f"hypervisor/v1/{path.name}" for path in kubelet),
        ]
    )
    if status != 0:
        sys.exit("protos/ could not be compiled; the generator's message stands above")
