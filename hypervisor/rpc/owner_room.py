"""Room on the owner socket: no user's quiet connections keep another user's request, or his own next one, out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

_ROOT = 0


@dataclass(slots=True, eq=False)
class Place:
    """One connection. It is waiting until its request is there; then nobody takes its place any more."""

    uid: int
    give_up: Callable[[], None]
    waiting: bool = True


class OwnerRoom:
    """Counts connections by user. Who comes when it is full takes the place of the oldest that still waits for its
    request: the user's own where he has too many, else one of the user who has most. Root has a room of its own."""

    def __init__(self, *, most: int, most_per_user: int) -> None:
        self._most = most
        self._most_per_user = most_per_user
        self._places: list[Place] = []  # oldest first

    def enter(self, uid: int, give_up: Callable[[], None]) -> Place | None:
        """A place, or None when all that could make room are at work. give_up is called when the place is taken."""
        counts = Counter(place.uid for place in self._places)
        others = sum(count for user, count in counts.items() if user != _ROOT)
        if counts[uid] >= (self._most if uid == _ROOT else self._most_per_user):
            if not self._take(uid):
                return None
        elif uid != _ROOT and others >= self._most:
            users = [user for user, _ in counts.most_common() if user != _ROOT]
            if not any(self._take(user) for user in users):
                return None
        place = Place(uid, give_up)
        self._places.append(place)
        return place

    def leave(self, place: Place) -> None:
        """The connection has ended; it is no fault when its place was taken before."""
        if place in self._places:
            self._places.remove(place)

    def _take(self, uid: int) -> bool:
        """Take the place of a user's oldest connection that waits; False when there is none."""
        for place in self._places:
            if place.uid == uid and place.waiting:
                self._places.remove(place)
                place.give_up()
                return True
        return False
