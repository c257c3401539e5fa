"""How much one peer may ask for: requests a second, and streams at once. Bounded, whatever peers there are."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hypervisor.model import Refusal, RefusalReason

# Peers that are remembered; one that is forgotten begins with a full bucket.
_PEERS = 20_000


class PeerRates:
    """A token bucket for each peer. Touched on one loop only."""

    def __init__(self, *, per_second: float, at_once: float, monotonic: Callable[[], float]) -> None:
        self._per_second = per_second
        self._at_once = at_once
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, peer: str, weight: float = 1.0) -> None:
        """Count one request, as so many. Raises Refusal, and takes nothing, when the peer has had its share."""
        # Else one that is heavier than a full bucket would never be answered.
        weight = min(weight, self._at_once)
        now = self._monotonic()
        tokens, at = self._buckets.pop(peer, (self._at_once, now))
        tokens = min(self._at_once, tokens + (now - at) * self._per_second)
        refused = tokens < weight
        self._buckets[peer] = (tokens if refused else tokens - weight, now)
        if len(self._buckets) > _PEERS:
            self._buckets.popitem(last=False)
        if refused:
            raise Refusal(
                RefusalReason.TOO_MANY_REQUESTS,
                f"{peer} has asked for more than {self._per_second:g} requests a second, long lists counted as many",
                remedy="watch instead of asking again and again, or ask less often",
            )


class PeerStreams:
    """Streams that each peer has open. Touched on one loop only."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def hold(self, peer: str, *, at_most: int) -> Iterator[None]:
        """One stream for as long as the block runs. Raises Refusal when the peer has that many already."""
        if self._open[peer] >= at_most:
            raise Refusal(
                RefusalReason.TOO_MANY_STREAMS,
                f"{peer} has {at_most} streams open, and gets no more",
                remedy="end some, or let one watch serve many readers",
            )
        self._open[peer] += 1
        try:
            yield
        finally:
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]
