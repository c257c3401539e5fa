"""What an allocation says it did, at the moments that the driver's windows are of.

A launch is charged when it starts. Of long ones, a window of a sixth of a second holds some that were charged before
it, and the charges of some that run after it, so charges and busy time of a window have little to do with each other.
Where a long launch was is on the line of moments a little later; so each reading waits for the next window.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypervisor.limits.control import Reading
from hypervisor.limits.usage import UsageFile

_NS = 1_000_000_000
MOST_BRIEF_NS = 4_000_000.0  # a longer launch is on the line of moments


@dataclass(slots=True)
class Aligned:
    """The readings of one allocation on one device. clock_ahead: of the limiter's clock to that of the readings."""

    clock_ahead: float = 0.0
    _waits: Reading | None = field(default=None, init=False)
    _upto: float | None = field(default=None, init=False)
    _covered_ns: int = field(default=0, init=False)

    def after(self, reading: Reading, usage: UsageFile, device: int) -> Reading | None:
        """The reading of the window before, with what was done in it; None when there was none.

        reading is of the window that has ended now, with charged_ns as usage says it. Where the limiter is of a version
        that tells no moments, that is all that is known, and reading itself is given. Raises LimitFileError.
        """
        brief = usage.brief_ns(device)
        if brief == 0:
            self._waits = self._upto = None
            return reading
        before, self._waits = (
            self._waits,
            replace(reading, charged_ns=brief, a_launch_ns=min(reading.a_launch_ns, MOST_BRIEF_NS)),
        )
        if before is None:
            return None
        if self._upto is not None and before.busy_at > self._upto:
            begin, end = (round((at + self.clock_ahead) * _NS) for at in (self._upto, before.busy_at))
            self._covered_ns += usage.covered_ns(device, begin, end)
        self._upto = before.busy_at
        return replace(before, covered_ns=self._covered_ns)
