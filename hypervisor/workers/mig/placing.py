"""Where instances go: a search over the memory slices of a card, with the places that the driver offers; pure.

The largest are placed first, since a small one in the middle keeps the large ones out; among the places of one the one
that leaves the most places to others is tried first. The search tries all permutations, so that what can be laid out
is laid out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypervisor.workers.mig.geometry import Geometry, Profile, bits


def lay_out(geometry: Geometry, wanted: Sequence[Profile]) -> tuple[int, ...] | None:
    """A start for each wanted profile, in the order of wanted, beside what is there; None when they don't fit."""
    order = sorted(range(len(wanted)), key=lambda at: (-wanted[at].size, -wanted[at].slices, at))
    counts = Counter(instance.profile_id for instance in geometry.instances)
    counts.update(profile.profile_id for profile in wanted)
    if any(counts[profile.profile_id] > profile.most for profile in wanted):
        return None
    there = [geometry.profile(instance.profile_id) for instance in geometry.instances]
    slices = sum(profile.slices for profile in (*wanted, *there) if profile is not None)
    if slices > max((profile.slices for profile in geometry.profiles), default=0):
        return None  # compute slices run out before memory slices do
    starts: dict[int, int] = {}
    if not _search(geometry, [wanted[at] for at in order], 0, geometry.taken, starts):
        return None
    by_place = {order[depth]: start for depth, start in starts.items()}
    return tuple(by_place[at] for at in range(len(wanted)))


def _search(geometry: Geometry, wanted: Sequence[Profile], depth: int, taken: int, starts: dict[int, int]) -> bool:
    if depth == len(wanted):
        return True
    profile = wanted[depth]
    # Alike ones are interchangeable: the later of two never goes before the earlier.
    least = starts[depth - 1] if depth and wanted[depth - 1].profile_id == profile.profile_id else -1
    free = [(start, size) for start, size in profile.placements if not bits(start, size) & taken and start > least]
    for start, size in sorted(free, key=lambda place: (-_left(geometry, taken | bits(*place)), place[0])):
        starts[depth] = start
        if _search(geometry, wanted, depth + 1, taken | bits(start, size), starts):
            return True
    starts.pop(depth, None)
    return False


def _left(geometry: Geometry, taken: int) -> int:
    """How many places of all profiles stay open, large ones counted by their size."""
    return sum(
        size for profile in geometry.profiles for start, size in profile.placements if not bits(start, size) & taken
    )


def room_for(geometry: Geometry, profile: Profile) -> int | None:
    """The best place for one more instance; None when there is none."""
    found = lay_out(geometry, [profile])
    return found[0] if found else None
