"""Overhead between two figures that are read at different moments, and counters over the life of slots."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hypervisor.allocations.counters import CounterMemory
from hypervisor.allocations.overhead import Overhead
from hypervisor.limits import Slot, SlotDevice, SlotPhase

MIB = 2**20
CONTEXT = 500 * MIB


def reading(
    known: Overhead, driver: int, before: int | None, now: int, *, quiet: bool = False, awaited: bool = False
) -> Overhead:
    return known.after(driver_bytes=driver, accounted_before=before, accounted_now=now, quiet=quiet, awaited=awaited)


def test_a_quiet_account_gives_the_exact_difference_at_once() -> None:
    assert reading(Overhead(), CONTEXT + MIB, None, MIB, quiet=True).measured_bytes == CONTEXT


def test_nothing_is_said_before_there_is_reason_to() -> None:
    known = reading(Overhead(), CONTEXT, None, 0)
    assert known.measured_bytes is None
    assert reading(known, CONTEXT + MIB, 0, MIB).measured_bytes is None


def test_memory_that_comes_and_goes_between_the_readings_is_no_overhead() -> None:
    """The driver saw 4 GiB that were given back before the account was read."""
    known = reading(Overhead(), CONTEXT, 0, 0, quiet=True)
    for _ in range(5):
        known = reading(known, CONTEXT + 4096 * MIB, 0, 0)
        known = reading(known, CONTEXT, 0, 0)
    assert known.measured_bytes == CONTEXT


def test_of_a_program_that_is_never_quiet_nothing_is_said() -> None:
    """It held 300 MiB at both readings of the account, and 100 MiB when the driver looked."""
    known = Overhead()
    for _ in range(10):
        known = reading(known, CONTEXT + 100 * MIB, 300 * MIB, 300 * MIB, awaited=True)
    assert known.measured_bytes is None


def test_what_a_process_keeps_of_freed_bytes_does_not_make_its_overhead_smaller() -> None:
    for kept in (512, MIB - 512):
        assert (
            reading(Overhead(), CONTEXT + 8 * MIB, 8 * MIB + kept, 8 * MIB + kept, quiet=True).measured_bytes == CONTEXT
        )


def test_modules_loaded_later_count_though_the_account_is_never_quiet_again() -> None:
    known = reading(Overhead(), CONTEXT, 0, 0, quiet=True)
    for _ in range(5):
        known = reading(known, CONTEXT + 64 * MIB, 1, 0)
    assert known.measured_bytes == CONTEXT + 64 * MIB


def test_while_something_stands_for_a_context_an_older_figure_does_not_count() -> None:
    half_made = reading(Overhead(), 100 * MIB, 0, 0, quiet=True, awaited=True)
    assert reading(half_made, CONTEXT, 0, MIB, awaited=True).measured_bytes is None
    assert reading(half_made, CONTEXT, 0, 0, quiet=True, awaited=True).measured_bytes == CONTEXT


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**40), st.one_of(st.none(), st.integers(0, 2**40)), st.integers(0, 2**40), st.booleans()
        ),
        max_size=10,
    )
)
def test_overhead_is_never_negative(readings: list[tuple[int, int | None, int, bool]]) -> None:
    known = Overhead()
    for driver, before, now, quiet in readings:
        known = reading(known, driver, before, now, quiet=quiet)
        assert known.measured_bytes is None or known.measured_bytes >= 0


def slot(number: int, sequence: int, *, launches: int, denials: int = 0) -> Slot:
    return Slot(
        number=number,
        state=sequence << 8 | 2,
        owner=1,
        phase=SlotPhase.LIVE,
        pid_namespace=1,
        pid=1,
        start_time_ticks=1,
        host_bytes=0,
        devices=(SlotDevice(0, 0, 0, launches, launches * 10, denials, launches * 100),),
    )


def test_counts_of_the_dead_stay_when_their_slot_is_given_on() -> None:
    memory = CounterMemory(1, fresh=True)
    memory.follow([slot(0, 0, launches=5), slot(1, 0, launches=7)])
    memory.follow([slot(1, 0, launches=8)])
    (total,) = memory.follow([slot(0, 1, launches=2), slot(1, 0, launches=9)])
    assert (total.launches, total.blocked_ns, total.charged_ns) == (16, 160, 1600)


def test_denials_are_told_once() -> None:
    memory = CounterMemory(1, fresh=True)
    assert memory.new_denials(memory.follow([slot(0, 0, launches=0, denials=3)])) == (3,)
    assert memory.new_denials(memory.follow([slot(0, 0, launches=0, denials=3)])) == (0,)
    assert memory.new_denials(memory.follow([slot(0, 1, launches=0, denials=1)])) == (1,)


def test_denials_that_an_earlier_daemon_has_told_are_not_told_again() -> None:
    memory = CounterMemory(1, fresh=False)
    assert memory.new_denials(memory.follow([slot(0, 0, launches=0, denials=3)])) == (0,)
    assert memory.new_denials(memory.follow([slot(0, 0, launches=0, denials=5)])) == (2,)
