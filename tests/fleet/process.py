"""A real aggregator process for tests: started on free ports, killed or stopped, started again on the same store."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.request import urlopen

import grpc

from hypervisor.rpc.tls import channel_credentials
from hypervisor.v1 import cluster_pb2, cluster_pb2_grpc

# Far beyond what anything here takes on an idle machine: a busy one must not fail a test.
DEADLINE_SECONDS = 90.0
PROGRAM = [sys.executable, "-c", "from hypervisor.cli import main; main()"]
T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], what: str, *, seconds: float = DEADLINE_SECONDS) -> T:
    """The condition's first true value. Fails the test after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def channel_to(address: str, tls: Path | None = None) -> grpc.Channel:
    """A connection of its own, with the certificates of a folder where there is one."""
    # Else gRPC would lend connections of equal credentials to one another.
    options = (("grpc.use_local_subchannel_pool", 1),)
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, channel_credentials(tls), options=options)


class AggregatorProcess:
    """One aggregator with a fixed address and store, so that it can be started again."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        heartbeat_seconds: float = 0.5,
        tls: Path | None = None,
        kubeconfig: Path | None = None,
    ) -> None:
        """tls: its folder of certificates; without one, TCP is open to everybody. kubeconfig: of the API server that
        is its store; without one, its store is a file."""
        self.prefix: tuple[str, ...] = ()  # a command that execs its arguments
        self._security = ["--insecure"] if tls is None else ["--tls-dir", str(tls)]
        self.store = directory / "store.db"
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.unix = f"unix:{directory}/aggregator.sock"
        self.log = directory / "aggregator.log"
        self.http = ""
        self._store = ["--store", str(self.store)]
        if kubeconfig is not None:
            self._store = ["--kubernetes", "--kubeconfig", str(kubeconfig)]
        self._flags = [*flags, "--allow-simulated", "--heartbeat-seconds", str(heartbeat_seconds)]
        self._process: subprocess.Popen[str] | None = None

    def flags_without(self, flag: str) -> None:
        """Start without this flag from now on."""
        self._flags.remove(flag)

    def start(self, *flags: str) -> None:
        """Start, with flags for this time only, and wait until it serves."""
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [
                    *self.prefix,
                    *PROGRAM,
                    "aggregator",
                    "--listen",
                    self.address,
                    "--listen",
                    self.unix,
                    *self._security,
                    *self._store,
                    "--http-listen",
                    "127.0.0.1:0",
                    *self._flags,
                    *flags,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("HTTP on "):
                self.http = line.removeprefix("HTTP on ").strip()
                return
        raise AssertionError(f"the aggregator did not start: {self.log.read_text()}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """Until it ends by itself; returns the exit status."""
        assert self._process is not None
        process, self._process = self._process, None
        status = process.wait(DEADLINE_SECONDS)
        assert process.stdout is not None
        process.stdout.close()
        return status

    def close(self) -> None:
        if self._process is not None:
            self.kill()

    def get(self, path: str) -> str:
        """A page of the HTTP port."""
        with urlopen(f"{self.http}{path}", timeout=DEADLINE_SECONDS) as response:
            return str(response.read().decode())

    @contextmanager
    def cluster(self, address: str = "", tls: Path | None = None) -> Iterator[cluster_pb2_grpc.ClusterServiceStub]:
        with channel_to(address or self.address, tls) as channel:
            yield cluster_pb2_grpc.ClusterServiceStub(channel)

    def _end(self, number: int) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        os.kill(process.pid, number)
        status = process.wait(DEADLINE_SECONDS)
        assert process.stdout is not None
        process.stdout.close()
        return status


def all_gpus(stub: cluster_pb2_grpc.ClusterServiceStub, size: int = 0) -> dict[str, cluster_pb2.ClusterGpu]:
    """Every GPU object, page by page."""
    found: dict[str, cluster_pb2.ClusterGpu] = {}
    request = cluster_pb2.ClusterListGpusRequest()
    request.page.size = size
    while True:
        response = stub.ListGpus(request, timeout=DEADLINE_SECONDS)
        for gpu in response.gpus:
            assert gpu.name not in found
            found[gpu.name] = gpu
        if not response.next_page_token:
            return found
        request.page.token = response.next_page_token


def all_events(stub: cluster_pb2_grpc.ClusterServiceStub) -> list[tuple[str, int, int]]:
    """(node UID, epoch, sequence) of every event of the tests' nodes, in order of arrival."""
    found: list[tuple[str, int, int]] = []
    request = cluster_pb2.ClusterListEventsRequest()
    request.page.size = 1000
    while True:
        response = stub.ListEvents(request, timeout=DEADLINE_SECONDS)
        found += [
            (event.node_uid, event.epoch, event.sequence)
            for event in response.events
            if event.node_uid.startswith("uid-")
        ]
        if not response.next_page_token:
            return found
        request.page.token = response.next_page_token
