"""How much VRAM the processes of an allocation hold beyond what the limiter accounts: contexts and modules.

Pure. The driver's figure and the limiter's are read at different moments, and a program that allocates in between
makes their difference wrong by that much. The word of a device's total counts every change, so where it is the same
before and after the driver's reading, the difference is exact. For a program that is never quiet, the smallest
difference of several readings is taken: what comes and goes is not overhead, and memory must not be refused for it.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        lasting = min(self.recent_bytes) if len(self.recent_bytes) >= _ENOUGH else None
        if self.exact_bytes is None:
            return lasting
        # Modules that were loaded since the last quiet reading stay in every difference.
        return max(self.exact_bytes, lasting or 0)

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
            return Overhead(max(0, driver_bytes - accounted_now))
        exact = None if awaited else self.exact_bytes
        if accounted_before is None:
            return Overhead(exact, self.recent_bytes)  # its first context may have been half made
        difference = max(0, driver_bytes - max(accounted_now, accounted_before))
        return Overhead(exact, (*self.recent_bytes, difference)[-_READINGS:])
