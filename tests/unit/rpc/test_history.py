"""The history against a plain model: whoever applies what it says ends where the node is."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hypervisor.model import NodeSnapshot
from hypervisor.model.delta import diff
from hypervisor.rpc.history import History
from tests import builders

NAMES = [f"pod-{number}" for number in range(5)]
# A state: which allocations there are, and which of those that stay have changed; and the same for the GPUs.
STATES = st.lists(
    st.tuples(
        st.sets(st.sampled_from(NAMES)),
        st.sets(st.sampled_from(NAMES)),
        st.sets(st.integers(0, 3)),
        st.sets(st.integers(0, 3)),
    ),
    min_size=1,
    max_size=12,
)


def states(steps) -> list[NodeSnapshot]:
    """Snapshots of rising revision in which an object has the revision of its last change."""
    found = [builders.make_snapshot(gpus=0, number=1)]
    for number, (present, changed, gpus, changed_gpus) in enumerate(steps, start=2):
        before = found[-1]
        allocations = {allocation.spec.allocation_id: allocation for allocation in before.allocations}
        devices = {gpu.identity.index: gpu for gpu in before.gpus}
        now = builders.revision(number)
        found.append(
            builders.make_snapshot(
                number=number,
                allocations=tuple(
                    allocations[name]
                    if name in allocations and name not in changed
                    else builders.make_allocation(name, revision=now, uid=f"{name}-{number}")
                    for name in sorted(present)
                ),
                gpus=tuple(
                    devices[index]
                    if index in devices and index not in changed_gpus
                    else builders.make_gpu(index, count=4, revision=now)
                    for index in sorted(gpus)
                ),
            )
        )
    return found


def applied(old: NodeSnapshot, delta) -> tuple[dict, dict]:
    """What a watcher has that knew the old state and got the delta."""
    allocations = {allocation.spec.allocation_id: allocation for allocation in old.allocations}
    gpus = {gpu.identity.uuid: gpu for gpu in old.gpus}
    allocations |= {allocation.spec.allocation_id: allocation for allocation in delta.allocations}
    gpus |= {gpu.identity.uuid: gpu for gpu in delta.gpus}
    for gone in delta.removed_allocation_ids:
        allocations.pop(gone, None)
    for gone in delta.removed_gpu_uuids:
        gpus.pop(gone, None)
    return allocations, gpus


def held(snapshot: NodeSnapshot) -> tuple[dict, dict]:
    return (
        {allocation.spec.allocation_id: allocation for allocation in snapshot.allocations},
        {gpu.identity.uuid: gpu for gpu in snapshot.gpus},
    )


@settings(max_examples=40, deadline=None)
@given(STATES, st.integers(1, 4))
def test_whatever_was_seen_leads_to_the_last_state(steps, tombstones: int) -> None:
    seen = states(steps)
    history = History(seen[0], tombstones=tombstones)
    for snapshot in seen[1:]:
        history.advance(snapshot)
    for old in seen:
        delta = history.since(old.revision)
        if delta is not None:  # else the watcher is reset, which is always right
            assert applied(old, delta) == held(seen[-1])
    assert history.since(seen[-1].revision) is not None
    assert history.tombstones <= tombstones


@settings(max_examples=40, deadline=None)
@given(STATES)
def test_with_room_for_all_tombstones_nobody_is_reset(steps) -> None:
    seen = states(steps)
    history = History(seen[0], tombstones=100)
    for snapshot in seen[1:]:
        history.advance(snapshot)
    assert all(history.since(old.revision) is not None for old in seen)


@settings(max_examples=40, deadline=None)
@given(STATES)
def test_diff_leads_from_one_state_to_the_next(steps) -> None:
    seen = states(steps)
    for old, new in itertools.pairwise(seen):
        assert applied(old, diff(old, new)) == held(new)
        assert diff(new, new).empty


def test_use_counts_as_a_change_of_the_allocation_but_a_new_reading_of_it_does_not() -> None:
    old = builders.make_snapshot(allocations=1, number=1)
    usage = builders.make_usage("pod-0")
    device = usage.devices[0]
    again = replace(usage, devices=(replace(device, reserved_bytes=builders.limiter(2 * builders.GIB, 2000.0)),))
    more = replace(usage, devices=(replace(device, reserved_bytes=builders.limiter(3 * builders.GIB, 2000.0)),))
    assert diff(old, builders.make_snapshot(allocations=1, number=2, usages=(again,))).empty
    delta = diff(old, builders.make_snapshot(allocations=1, number=2, usages=(more,)))
    assert [allocation.spec.allocation_id for allocation in delta.allocations] == ["pod-0"]
    gone = diff(old, builders.make_snapshot(allocations=1, number=2, usages=()))
    assert len(gone.allocations) == 1


def test_the_sums_of_the_node_are_part_of_it() -> None:
    old = builders.make_snapshot(gpus=2)
    fewer = builders.make_snapshot(gpus=1, number=2)
    assert diff(old, fewer).node
    assert diff(old, fewer).removed_gpu_uuids == (builders.uuid(1),)
