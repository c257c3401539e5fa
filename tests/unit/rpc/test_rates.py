"""Shares of peers: a bucket of requests and a number of streams for each, and no memory that grows without bound."""

from __future__ import annotations

import pytest

from hypervisor.model import Refusal, RefusalReason
from hypervisor.rpc import rates
from hypervisor.rpc.rates import PeerRates, PeerStreams


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def taken(buckets: PeerRates, peer: str, tries: int) -> int:
    count = 0
    for _ in range(tries):
        try:
            buckets.take(peer)
        except Refusal:
            continue
        count += 1
    return count


def test_a_burst_then_a_rate_and_refusals_cost_nothing() -> None:
    clock = Clock()
    buckets = PeerRates(per_second=10, at_once=20, monotonic=clock)
    assert taken(buckets, "a", 100) == 20
    with pytest.raises(Refusal) as caught:
        buckets.take("a")
    assert caught.value.reason is RefusalReason.TOO_MANY_REQUESTS
    assert taken(buckets, "b", 5) == 5
    clock.now = 1.0
    assert taken(buckets, "a", 100) == 10
    clock.now = 100.0
    assert taken(buckets, "a", 100) == 20


def test_a_heavy_request_counts_as_many_and_is_answered_in_the_end() -> None:
    clock = Clock()
    buckets = PeerRates(per_second=10, at_once=20, monotonic=clock)
    buckets.take("a", 15)
    with pytest.raises(Refusal):
        buckets.take("a", 15)
    buckets.take("a", 5)
    clock.now = 2.0
    buckets.take("a", 1_000)


def test_many_peers_are_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_PEERS", 10)
    buckets = PeerRates(per_second=1, at_once=1, monotonic=Clock())
    for number in range(100):
        buckets.take(f"peer-{number}")
    assert len(buckets._buckets) == 10


def test_streams_are_given_back_also_after_a_failure() -> None:
    streams = PeerStreams()
    with streams.hold("a", at_most=1):
        with pytest.raises(Refusal) as caught, streams.hold("a", at_most=1):
            raise AssertionError("not reached")
        assert caught.value.reason is RefusalReason.TOO_MANY_STREAMS
        with streams.hold("b", at_most=1):
            pass
    with pytest.raises(ValueError, match="x"), streams.hold("a", at_most=1):
        raise ValueError("x")
    with streams.hold("a", at_most=1):
        pass
    assert not streams._open
