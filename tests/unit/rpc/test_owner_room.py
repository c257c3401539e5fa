"""Room on the owner socket, by user."""

from __future__ import annotations

from functools import partial

from hypervisor.rpc.owner_room import OwnerRoom, Place

ROOT, ALICE, BOB = 0, 1000, 1001


def enter(room: OwnerRoom, uid: int, given_up: list[int], number: int = 0) -> Place | None:
    return room.enter(uid, partial(given_up.append, number))


def test_a_user_with_too_many_loses_his_oldest_that_waits() -> None:
    room, given_up = OwnerRoom(most=8, most_per_user=3), []
    first = enter(room, ALICE, given_up, 1)
    assert first is not None
    first.waiting = False
    for number in (2, 3, 4, 5):
        assert enter(room, ALICE, given_up, number)
    assert given_up == [2, 3]
    assert enter(room, BOB, given_up, 6)
    assert given_up == [2, 3]


def test_nobody_who_is_at_work_loses_his_place() -> None:
    room, given_up = OwnerRoom(most=8, most_per_user=2), []
    for _ in range(2):
        place = enter(room, ALICE, given_up)
        assert place is not None
        place.waiting = False
    assert enter(room, ALICE, given_up) is None
    room.leave(place)
    assert enter(room, ALICE, given_up)
    assert given_up == []


def test_when_all_is_full_the_user_with_most_makes_room_and_root_has_his_own() -> None:
    room, given_up = OwnerRoom(most=4, most_per_user=3), []
    for number, uid in enumerate((BOB, ALICE, ALICE, ALICE)):
        assert enter(room, uid, given_up, number)
    assert enter(room, 1002, given_up)
    assert given_up == [1]
    for _ in range(4):
        assert enter(room, ROOT, given_up)
    assert given_up == [1]
