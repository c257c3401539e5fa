"""Ten thousand nodes that report: a program in C, fed with messages that are made here.

AGGREGATOR_NODES=N sets their number, AGGREGATOR_SECONDS how long is measured. The aggregator has one core, the load and
those who watch have the other.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypervisor.certificates import signing
from hypervisor.model.peer import Identity, Role
from hypervisor.v1 import node_pb2, report_pb2
from tests.fleet import messages as m
from tests.fleet.process import AggregatorProcess

NODES = int(os.environ.get("AGGREGATOR_NODES", "10000"))
SECONDS = float(os.environ.get("AGGREGATOR_SECONDS", "20"))
HEARTBEAT_SECONDS = 5.0
GPUS = 8
AGGREGATOR_CORE, LOAD_CORE = "0", "1"
SOURCES = sorted((Path(__file__).parent / "report_load").glob("*.c"))
# Stands for the node in the messages; the digits are the hole. None of these occurs by chance.
_NAME, _NODE, _BASE, _REVISION, _READING = "load-99999", b"99999", 1_234_567, 1_765_432, 12_345.678


def node_name(number: int) -> str:
    return f"load-{number:05d}"


def build(directory: Path) -> Path:
    """Compile the load. Raises RuntimeError where something is missing."""
    program = directory / "report_load"
    command = ["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", *map(str, SOURCES), "-lssl", "-lcrypto"]
    done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the load can't be built, it needs gcc and libssl-dev: {done.stderr[-500:]}")
    return program


def write_templates(path: Path) -> None:
    """Hello, snapshot and delta, each with the places of its holes."""
    gpus = [m.gpu(_NAME, index) for index in range(GPUS)]
    for gpu in gpus:
        gpu.readings.temperature_celsius.value = _READING
    delta = m.delta(m.revision(1, _BASE), m.revision(1, _REVISION), node_pb2.NodeDelta(gpus=gpus))
    snapshot = m.snapshot(m.revision(1, _BASE), m.state(_NAME, gpus=gpus))
    with path.open("wb") as file:
        for message in (m.hello(_NAME), snapshot, delta):
            _write(file, message)


def _write(file: Any, message: report_pb2.ReportRequest) -> None:
    raw = message.SerializeToString()
    holes = (_NODE, _varint(_BASE), _varint(_REVISION), struct.pack("<d", _READING))
    file.write(struct.pack("<I", len(raw)) + raw)
    for hole in holes:
        places = [at for at in range(len(raw)) if raw.startswith(hole, at)]
        file.write(struct.pack(f"<I{len(places)}I", len(places), *places))


def _varint(value: int) -> bytes:
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))


def write_certificates(directory: Path, nodes: int) -> tuple[str, str, str, Path]:
    """Authority, certificates of all nodes and their common key for the load, and the aggregator's folder."""
    ca_key, key = signing.new_key(), signing.new_key()
    ca = signing.authority_certificate(ca_key, "bench", days=2)
    aggregator = directory / "aggregator"
    aggregator.mkdir()

    def issue(identity: Identity, addresses: tuple[str, ...]) -> bytes:
        return signing.certificate_bytes(
            signing.identity_certificate(identity, addresses, key, authority=ca, authority_key=ca_key, days=2)
        )

    paths = (directory / "ca.crt", directory / "nodes.crt", directory / "nodes.key")
    paths[0].write_bytes(signing.certificate_bytes(ca))
    with paths[1].open("wb") as file:
        for number in range(nodes):
            file.write(issue(Identity(Role.NODE, node_name(number)), ()))
    paths[2].write_bytes(signing.key_bytes(key))
    shutil.copy(paths[0], aggregator / "ca.crt")
    (aggregator / "tls.crt").write_bytes(issue(Identity(Role.AGGREGATOR, "hub"), ("127.0.0.1",)))
    (aggregator / "tls.key").write_bytes(signing.key_bytes(key))
    return str(paths[0]), str(paths[1]), str(paths[2]), aggregator


@contextmanager
def aggregator_on_a_core(directory: Path, nodes: int, tls: Path | None = None) -> Iterator[AggregatorProcess]:
    """An aggregator that takes so many nodes, on one core."""
    flags = ("--max-nodes", str(nodes + 100), "--streams-per-peer", "20000", "--log-level", "warning")
    aggregator = AggregatorProcess(directory, *flags, heartbeat_seconds=HEARTBEAT_SECONDS, tls=tls)
    aggregator.prefix = ("taskset", "-c", AGGREGATOR_CORE)
    aggregator.start()
    try:
        yield aggregator
    finally:
        aggregator.close()


class Load:
    """The running program; its lines, one a second."""

    def __init__(self, process: subprocess.Popen[str], nodes: int) -> None:
        self._process = process
        self._nodes = nodes
        self._lines: list[dict[str, Any]] = []
        self._news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def lines(self) -> list[dict[str, Any]]:
        with self._news:
            return list(self._lines)

    def wait_until_acknowledged(self, *, after: float, seconds: float) -> float:
        """The time, by CLOCK_MONOTONIC and to a second, at which all nodes' states were acknowledged."""

        def found() -> float | None:
            whole = (line for line in self._lines if line["acknowledged"] == self._nodes and line["at"] > after)
            return next((float(line["at"]) for line in whole), None)

        with self._news:
            if not self._news.wait_for(found, timeout=seconds):
                last = self._lines[-1:] or "nothing was said"
                raise RuntimeError(f"not all were acknowledged within {seconds:g} s: {last}")
            at = found()
            assert at is not None
            return at

    def wait_for_lines(self, count: int) -> list[dict[str, Any]]:
        """So many more lines, that is, seconds."""
        with self._news:
            begin = len(self._lines)
            if not self._news.wait_for(lambda: len(self._lines) >= begin + count, timeout=count + 30):
                raise RuntimeError("the load has fallen silent")
            return self._lines[begin:]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._lines.append(json.loads(line))
                self._news.notify_all()


@contextmanager
def load_on_a_core(
    directory: Path,
    aggregator: AggregatorProcess,
    nodes: int,
    *,
    open_seconds: float,
    certificates: tuple[str, ...] = (),
) -> Iterator[Load]:
    """Nodes that report for as long as the block runs."""
    templates = directory / "templates"
    write_templates(templates)
    command = ["taskset", "-c", LOAD_CORE, str(build(directory)), "127.0.0.1", str(aggregator.port), str(templates)]
    command += [str(nodes), str(HEARTBEAT_SECONDS), str(open_seconds), *certificates]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Load(process, nodes)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(pid: int) -> int:
    """The most that was ever resident."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def now() -> float:
    return time.monotonic()
