"""What the aggregator is told at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hypervisor.aggregator.selectors import NodeSelector


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Writes a second to the API server: of objects, and of events with what may come at once."""

    writes_per_second: float = 200.0
    events_per_second: float = 50.0
    events_at_once: float = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Seconds: how long a lease lasts, after how long without renewal we let go, and between two tries."""

    duration: float = 15.0
    renew_within: float = 10.0
    retry: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """The Kubernetes store. kubeconfig and namespace: "" takes those of the Pod's service account.

    address: where the other replicas and their callers find this one. max_crash_count: restarts of a hypervisor's
    container after which its Pod is made anew; 0: never.
    """

    kubeconfig: str = ""
    namespace: str = ""
    identity: str
    address: str
    max_crash_count: int = 5
    limits: StoreLimits = field(default_factory=StoreLimits)
    lease: LeaseTimes = field(default_factory=LeaseTimes)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorSettings:
    """Settings of `hypervisor aggregator`. Times are in seconds.

    listen: gRPC addresses, unix:PATH or HOST:PORT; http_listen: HOST:PORT of /metrics, port 0 takes any free one.
    """

    listen: tuple[str, ...]
    store: Path
    http_listen: str = "127.0.0.1:8002"
    # HOST:PORT where ServiceAccount tokens stand for client certificates.
    token_listen: tuple[str, ...] = ()
    tls_dir: str = ""
    insecure: bool = False
    kubeconfig: str = ""
    reporter_accounts: tuple[str, ...] = ("tensor-fusion-sys/tensor-fusion-hypervisor-sa",)
    reader_accounts: tuple[str, ...] = ()
    requests_per_second: float = 500.0
    streams_per_peer: int = 1_000
    allow_simulated: bool = False
    heartbeat_seconds: float = 5.0
    # A heartbeat comes with up to 20 % jitter: two that are missing, and half a one of patience.
    late_after_heartbeats: float = 2.5
    lost_after_heartbeats: float = 12.0
    commit_interval_seconds: float = 0.2
    event_retention_seconds: float = 7 * 86_400.0
    event_retention_count: int = 1_000_000
    tombstone_count: int = 10_000
    # After a restart so many nodes a second come back: below what one core can take in handshakes and snapshots.
    reconnects_per_second: float = 300.0
    max_nodes: int = 20_000
    max_watchers: int = 5_000
    shutdown_seconds: float = 4.0
    # Pools that select nodes by labels: name -> selector. In a cluster the GPUPool objects are these.
    pools: Mapping[str, NodeSelector] = field(default_factory=dict)
    kubernetes: KubernetesSettings | None = None

    @property
    def late_after_seconds(self) -> float:
        return self.heartbeat_seconds * self.late_after_heartbeats

    @property
    def lost_after_seconds(self) -> float:
        return self.heartbeat_seconds * self.lost_after_heartbeats
