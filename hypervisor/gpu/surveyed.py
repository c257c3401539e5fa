"""The place of a card in the machine, over several surveys. Pure."""

from __future__ import annotations

from hypervisor.gpu import wire
from hypervisor.gpu.wire import Answer


def newest(last: wire.Surveyed | None, new: wire.Surveyed) -> wire.Surveyed:
    """What is known of the place of a card: what it does not say this time stays as it was said before."""
    if last is None:
        return new
    before = {peer.slot: peer for peer in last.peers}
    peers = [_kept_peer(before.get(peer.slot), peer) for peer in new.peers]
    told = {peer.slot for peer in peers}
    peers += [peer for slot, peer in before.items() if slot not in told]
    return wire.Surveyed(
        memory_nodes=_newer(last.memory_nodes, new.memory_nodes),
        cpus=_newer(last.cpus, new.cpus),
        nvlinks=new.nvlinks or last.nvlinks,
        peers=peers,
    )


def _kept_peer(last: wire.PeerFacts | None, new: wire.PeerFacts) -> wire.PeerFacts:
    if last is None:
        return new
    return wire.PeerFacts(
        new.slot,
        _newer(last.ancestor, new.ancestor),
        _newer(last.read_status, new.read_status),
        _newer(last.write_status, new.write_status),
        _newer(last.nvlink_status, new.nvlink_status),
    )


def _newer(last: Answer[wire.Value], new: Answer[wire.Value]) -> Answer[wire.Value]:
    return new if new.value is not None else last if last.value is not None else new
