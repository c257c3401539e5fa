"""How much VRAM the processes of an allocation hold beyond what the limiter accounts: contexts and modules.

Pure. The driver's figure and the limiter's are read at different moments, and a program that allocates in between
makes their difference wrong by that much. The word of a device's total counts every change, so where it is the same
before and after the driver's reading, the difference is exact. Of a program that was never quiet nothing is known: what
it allocates between the two readings makes the difference too small as easily as too large, and too small a figure
would let it over its limit; so what stands for its contexts goes on counting. Once a figure was exact, the smallest of
several later differences may only add to it: modules are loaded later, and stay.
"""

from __future__ import annotations

from dataclasses import dataclass

# What a process keeps of freed bytes is accounted, and the driver does not hold it (limiter/src/kept.h): that is less
# than this, and drivers take memory for contexts and modules by at least so much at a time.
_GRANULE_BYTES = 1 << 20
_READINGS = 5
_ENOUGH = 3


@dataclass(frozen=True, slots=True)
class Overhead:
    """What is known of one process on one device. exact_bytes: of the last quiet reading; recent_bytes: differences
    of the last readings that were not."""

    exact_bytes: int | None = None
    recent_bytes: tuple[int, ...] = ()

    @property
    def measured_bytes(self) -> int | None:
        """The overhead; None as long as it can't be said, and then the stand-in for contexts counts."""
        if self.exact_bytes is None:
            return None
        lasting = min(self.recent_bytes) if len(self.recent_bytes) >= _ENOUGH else 0
        return max(self.exact_bytes, lasting)

    def after(
        self,
        *,
        driver_bytes: int,
        accounted_before: int | None,
        accounted_now: int,
        quiet: bool,
        awaited: bool,
    ) -> Overhead:
        """With one more reading. accounted: what the slot held, less what stands for contexts; None before it was
        there. quiet: the account did not change from before to now. awaited: something still stands for contexts, so
        what was exact before may lack them. Never below 0."""
        if quiet:
            return Overhead(_beyond(driver_bytes, accounted_now))
        exact = None if awaited else self.exact_bytes
        if accounted_before is None:
            return Overhead(exact, self.recent_bytes)  # its first context may have been half made
        difference = _beyond(driver_bytes, max(accounted_now, accounted_before))
        return Overhead(exact, (*self.recent_bytes, difference)[-_READINGS:])


def _beyond(driver_bytes: int, accounted: int) -> int:
    """What the driver attributes beyond the account, of which a little may be kept and not held."""
    return max(0, -((accounted - driver_bytes) // _GRANULE_BYTES) * _GRANULE_BYTES)
