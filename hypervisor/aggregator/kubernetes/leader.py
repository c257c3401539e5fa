"""Which replica writes: the holder of a Lease. Others' clocks are not trusted: a lease counts from when we saw it.

A leader that can't renew in time ends its process before its lease can be taken, and begins anew as a follower.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import structlog

from hypervisor.aggregator.kubernetes import names
from hypervisor.aggregator.kubernetes.client import CONFLICT, NOT_FOUND, ApiError, KubernetesClient, Object
from hypervisor.aggregator.kubernetes.objects import micro_timestamp
from hypervisor.aggregator.settings import LeaseTimes

log = structlog.get_logger("leader")

LEASE_NAME = "gpu-hypervisor-aggregator"


class LeadershipLostError(Exception):
    """The lease could not be renewed in time, or another holds it."""


class Step(Enum):
    """What to do with the lease."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Seen:
    """A lease as it was seen, and since when (CLOCK_MONOTONIC) it has looked so."""

    holder: str
    version: str
    duration: float
    at: float


def decide(seen: Seen | None, identity: str, now: float) -> Step:
    """Pure. None: there is no lease."""
    if seen is None:
        return Step.CREATE
    if seen.holder == identity:
        return Step.RENEW
    if not seen.holder or now - seen.at > seen.duration:
        return Step.TAKE
    return Step.WAIT


class Elector:
    """One replica's part in the election. Only the loop's tasks call it."""

    def __init__(
        self,
        client: KubernetesClient,
        *,
        identity: str,
        address: str,
        times: LeaseTimes,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._identity = identity
        self._address = address
        self._times = times
        self._monotonic = monotonic
        self._wall = wall
        self._seen: Seen | None = None
        self._lease: Object | None = None
        self._renewed_at = 0.0
        self.leader_address = ""
        self.leader = ""
        self.transitions = 0
        # Why the API server can't be asked; "" when it can.
        self.failing = ""

    async def acquire(self) -> None:
        """Wait until the lease is ours. Cancelling leaves it to the others."""
        while True:
            if await self.step():
                return
            await asyncio.sleep(self._times.retry * random.uniform(0.8, 1.2))  # noqa: S311 - jitter is no secret

    async def hold(self) -> None:
        """Renew for ever. Raises LeadershipLostError; nothing may be written after it."""
        while True:
            await asyncio.sleep(self._times.retry)
            left = self._renewed_at + self._times.renew_within - self._monotonic()
            try:
                async with asyncio.timeout(max(0.0, left)):
                    renewed = await self.step()
            except TimeoutError:
                renewed = False
            if not renewed and self.leader and self.leader != self._identity:
                raise LeadershipLostError(f"{self.leader} holds the lease {self._path_text()} now")
            if self._monotonic() - self._renewed_at >= self._times.renew_within:
                raise LeadershipLostError(
                    f"the lease {self._path_text()} could not be renewed for {self._times.renew_within:g} s: "
                    f"{self.failing or 'the API server does not answer'}"
                )

    async def step(self) -> bool:
        """Look at the lease, and take or renew it where that may be done; True when it is ours afterwards."""
        begun = self._monotonic()
        try:
            await self._look(begun)
            step = decide(self._seen, self._identity, begun)
            if step is Step.WAIT:
                return False
            await self._write(step)
        except ApiError as error:
            # Somebody else was first.
            self.failing = "" if error.code == CONFLICT else str(error)
            if self.failing:
                log.warning("the lease can't be reached", error=self.failing)
            return False
        self.failing = ""
        self._renewed_at = begun
        return True

    async def release(self) -> None:
        """Let another replica take over at once; that it can't be told is no harm, for the lease runs out."""
        if self._lease is None or self.leader != self._identity:
            return
        lease = self._lease
        lease["spec"] = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._client.replace(self._path(), lease)
        except ApiError as error:
            log.info("the lease could not be released and runs out", error=str(error))

    # --- inside

    async def _look(self, now: float) -> None:
        try:
            lease = await self._client.get(self._path())
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise
            self._lease, self._seen = None, None
            self._tell("", "")
            return
        spec, metadata = lease.get("spec") or {}, lease["metadata"]
        holder, version = spec.get("holderIdentity") or "", metadata["resourceVersion"]
        if self._seen is None or self._seen.version != version:
            duration = float(spec.get("leaseDurationSeconds") or self._times.duration)
            self._seen = Seen(holder, version, duration, now)
        self._lease = lease
        self._tell(holder, (metadata.get("annotations") or {}).get(names.LEADER_ADDRESS, ""))

    async def _write(self, step: Step) -> None:
        now = micro_timestamp(self._wall())
        if step is Step.CREATE or self._lease is None:
            lease: Object = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": LEASE_NAME, "namespace": self._client.namespace},
                "spec": {},
            }
        else:
            lease = self._lease
        spec = dict(lease.get("spec") or {})
        if step is not Step.RENEW:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (step is Step.TAKE)
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._times.duration)),
            "renewTime": now,
        }
        lease["spec"] = spec
        lease["metadata"]["annotations"] = {
            **(lease["metadata"].get("annotations") or {}),
            names.LEADER_ADDRESS: self._address,
        }
        if "resourceVersion" in lease["metadata"]:
            written = await self._client.replace(self._path(), lease)
        else:
            written = await self._client.create(names.leases(self._client.namespace), lease)
        self._lease = written
        self._seen = Seen(
            self._identity, written["metadata"]["resourceVersion"], self._times.duration, self._monotonic()
        )
        self.transitions = int(spec.get("leaseTransitions") or 0)
        self._tell(self._identity, self._address)

    def _tell(self, holder: str, address: str) -> None:
        if holder != self.leader:
            log.info("the leader has changed", was=self.leader, now=holder, address=address)
        self.leader, self.leader_address = holder, address

    def _path(self) -> str:
        return f"{names.leases(self._client.namespace)}/{LEASE_NAME}"

    def _path_text(self) -> str:
        return f"{self._client.namespace}/{LEASE_NAME}"
