"""Instances are laid out wherever that is possible at all, and never over one another."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypervisor.workers.mig.geometry import Geometry, Profile, bits
from hypervisor.workers.mig.placing import lay_out, room_for
from tests.unit.workers.mig.cards import H100, a_geometry

IDS = [profile.profile_id for profile in H100]


def profiles(geometry: Geometry, *ids: int) -> list[Profile]:
    found = [geometry.profile(each) for each in ids]
    return [each for each in found if each is not None]


def possible(geometry: Geometry, wanted: list[Profile]) -> bool:
    """The same question, answered by trying everything."""
    slices = {profile.profile_id: profile.slices for profile in geometry.profiles}
    used = sum(slices[each.profile_id] for each in geometry.instances) + sum(each.slices for each in wanted)
    counts = {each: [i.profile_id for i in geometry.instances].count(each) for each in IDS}
    if used > 7 or any(
        counts[each.profile_id] + [w.profile_id for w in wanted].count(each.profile_id) > each.most for each in wanted
    ):
        return False
    for places in product(*(each.placements for each in wanted)):
        taken, clash = geometry.taken, False
        for start, size in places:
            clash = clash or bool(taken & bits(start, size))
            taken |= bits(start, size)
        if not clash:
            return True
    return False


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(IDS), max_size=4), st.lists(st.sampled_from(IDS), max_size=2))
def test_what_can_be_laid_out_is_laid_out(wanted_ids: list[int], there_ids: list[int]) -> None:
    empty = a_geometry()
    there = lay_out(empty, profiles(empty, *there_ids))
    geometry = a_geometry(*zip(there_ids, there, strict=True)) if there is not None else empty
    wanted = profiles(geometry, *wanted_ids)
    starts = lay_out(geometry, wanted)
    assert (starts is not None) == possible(geometry, wanted)
    taken = geometry.taken
    for profile, start in zip(wanted, starts or (), strict=False):
        assert (start, profile.size) in profile.placements
        assert not taken & bits(start, profile.size)
        taken |= bits(start, profile.size)


def test_a_small_one_leaves_the_large_places_open() -> None:
    geometry = a_geometry()
    (small,) = profiles(geometry, 19)
    start = room_for(geometry, small)
    assert start is not None
    (large,) = profiles(geometry, 5)
    assert room_for(a_geometry((19, start)), large) == 0


def test_one_in_the_middle_keeps_a_large_one_out() -> None:
    geometry = a_geometry((19, 2))
    (four,) = profiles(geometry, 5)
    assert room_for(geometry, four) is None


@pytest.mark.parametrize(
    ("ids", "fits"),
    [((9, 5), True), ((9, 9), True), ((5, 5), False), ((0, 19), False), ((19,) * 7, True), ((19,) * 8, False)],
)
def test_known_layouts_of_an_h100(ids: tuple[int, ...], fits: bool) -> None:
    geometry = a_geometry()
    assert (lay_out(geometry, profiles(geometry, *ids)) is not None) is fits
