from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.gpu import lists, processes
from hypervisor.gpu.codes import FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE, NOT_FOUND, NOT_SUPPORTED, UNREADABLE
from hypervisor.gpu.processes import SAMPLE_WINDOW_SECONDS, Activity
from hypervisor.gpu.wire import Answer, CardSample, Process, Sample
from hypervisor.model import BusyWindow

NOW = 1000.0
OFFSET = 1_700_000_000.0
NO_CARD: Answer[list[CardSample]] = Answer([])


def us(seconds: float) -> int:
    """A time of CLOCK_MONOTONIC as the driver stamps it."""
    return round((seconds + OFFSET) * 1e6)


def combine(last: Activity, listed: Answer[list[Process]], samples: Answer[list[Sample]], now: float = NOW) -> Activity:
    return processes.combine(last, listed, samples, now=now, wall_offset=OFFSET, gpu_percent=0)[0]


def test_a_sampled_process_has_the_mean_of_its_samples() -> None:
    told = combine(
        Activity(),
        Answer([Process(1, 100), Process(2, None)]),
        Answer([Sample(1, us(999.5), 40), Sample(1, us(999.75), 60)]),
    )
    assert told.processes is not None
    first, second = told.processes
    assert (first.pid, first.memory_bytes, first.busy_ratio) == (1, 100, 0.5)
    assert first.busy_observed_at == pytest.approx(999.75)
    assert (second.memory_bytes, second.busy_ratio) == (None, 0.0)


def test_nothing_new_within_a_window_says_nothing_and_after_it_means_idle() -> None:
    listed = Answer([Process(1, 100)])
    busy = combine(Activity(), listed, Answer([Sample(1, us(NOW), 80)]))
    soon = combine(busy, listed, Answer([]), NOW + SAMPLE_WINDOW_SECONDS / 2)
    assert soon.processes is not None
    assert (soon.processes[0].busy_ratio, soon.processes[0].busy_observed_at) == (0.8, pytest.approx(NOW))
    later = combine(soon, listed, Answer([]), NOW + SAMPLE_WINDOW_SECONDS * 2)
    assert later.processes is not None
    assert later.processes[0].busy_ratio == 0.0


def test_no_samples_at_all_is_unknown_and_not_idle() -> None:
    told = combine(Activity(), Answer([Process(1, 100)]), Answer(None, 3))
    assert told.processes is not None
    assert told.processes[0].busy_ratio is None


def after_rounds(
    last: Activity, samples: Answer[list[Sample]], *, count: int, gpu_percent: int | None = 40, at: float = NOW
) -> Activity:
    """One second apart."""
    for second in range(count):
        last, _ = processes.combine(
            last, Answer([Process(1, 100)]), samples, now=at + second, wall_offset=OFFSET, gpu_percent=gpu_percent
        )
    return last


def ratio_of(told: Activity) -> float | None:
    assert told.processes is not None
    return told.processes[0].busy_ratio


def test_a_driver_that_never_has_a_sample_while_the_gpu_is_at_work_says_nothing() -> None:
    """HAMi 403, 601, 2015: its answer is that of a card on which all are idle."""
    for short, long in ((1, 4), (3, 9)):
        doubted = after_rounds(Activity(), Answer([]), count=short)
        assert ratio_of(doubted) is None, "not idle either, which would lower what its launches are charged"
        assert window(None, Answer([]), doubted=doubted.doubts(Answer([]))) is None
        silent = after_rounds(Activity(), Answer([]), count=long)
        assert ratio_of(silent) is None
        assert silent.believed(Answer([]), NOW + long).value is None
        # It stays so while nobody works for a while, and until there is a sample.
        assert ratio_of(after_rounds(silent, Answer([]), count=5, gpu_percent=0, at=NOW + long)) is None
        told = Answer([Sample(1, us(NOW + long), 30)])
        assert silent.believed(told, NOW + long) is told
        spoken = after_rounds(silent, told, count=1, at=NOW + long)
        assert ratio_of(spoken) == 0.3
        assert ratio_of(after_rounds(spoken, Answer([]), count=2, gpu_percent=0, at=NOW + long + 2)) == 0.0


def test_a_sample_that_can_not_be_does_not_end_the_silence_of_a_driver() -> None:
    silent = after_rounds(Activity(), Answer([]), count=9)
    assert ratio_of(after_rounds(silent, Answer([Sample(99, us(NOW), -1)]), count=1, at=NOW + 9)) is None


def test_a_card_at_rest_says_that_all_are_idle() -> None:
    assert ratio_of(after_rounds(Activity(), Answer([]), count=9, gpu_percent=0)) == 0.0


@pytest.mark.parametrize("count", [1, 3, 9])
def test_a_card_that_does_not_say_whether_it_rests_says_nothing(count: int) -> None:
    """A sample that is missing is no proof that nobody works, and taken for one it would open the limit."""
    told = after_rounds(Activity(), Answer([]), count=count, gpu_percent=None)
    assert ratio_of(told) is None
    believed = told.believed(Answer([]), NOW + count - 1)
    assert window(None, believed, doubted=told.doubts(believed)) is None
    assert ratio_of(after_rounds(told, Answer([Sample(1, us(NOW + count), 30)]), count=1, at=NOW + count)) == 0.3


@pytest.mark.parametrize("gpu_percent", [40, None])
def test_silence_between_readings_that_are_seldom_is_doubted_at_once(gpu_percent: int | None) -> None:
    """Whether the card is at work is asked with each look that finds no sample, not only once a minute."""
    told = combine(Activity(), Answer([Process(1, 100)]), Answer([Sample(1, us(NOW), 20)]))
    first, windows = window(None, Answer([Sample(1, us(NOW), 20)])), []
    last = first
    for look in range(1, 6 * 59):
        now = NOW + look / 6
        told = told.heard(Answer([]), gpu_percent, now, nobody=False)
        believed = told.believed(Answer([]), now)
        last = window(last, believed, now, doubted=told.doubts(believed))
        windows.append(last)
    assert all(each in (first, None) for each in windows), "no window in which nobody worked"
    assert windows[-1] is None


def test_who_ends_its_work_is_idle_and_not_doubted() -> None:
    told = combine(Activity(), Answer([Process(1, 100)]), Answer([Sample(1, us(NOW), 20)]))
    last = window(None, Answer([Sample(1, us(NOW), 20)]))
    for look in range(1, 15):
        now = NOW + look / 6
        # Until the card's own window is over it says that it was at work.
        told = told.heard(Answer([]), 20 if look < 6 else 0, now, nobody=False)
        last = window(last, told.believed(Answer([]), now), now, doubted=told.doubts(Answer([])))
    assert last is not None
    assert dict(last.ratios) == {}


def test_a_gpu_that_works_for_nobody_who_is_listed_says_nothing_of_samples() -> None:
    last = Activity()
    for second in range(9):
        last, _ = processes.combine(last, Answer([]), Answer([]), now=NOW + second, wall_offset=OFFSET, gpu_percent=90)
    assert not after_rounds(last, Answer([]), count=1, at=NOW + 9).is_silent(NOW + 9)


def window(
    last: BusyWindow | None,
    samples: Answer[list[Sample]],
    now: float = NOW,
    card: Answer[list[CardSample]] = NO_CARD,
    *,
    doubted: bool = False,
) -> BusyWindow | None:
    return processes.next_window(last, samples, card, now=now, wall_offset=OFFSET, doubted=doubted)


def test_of_the_card_counts_what_it_did_in_the_same_window() -> None:
    at = us(NOW - 0.1)
    own = Answer([Sample(7, at, 40), Sample(8, at - 60, 20)])

    def card_in(samples: Answer[list[Sample]], *card: tuple[int, int]) -> float | None:
        told = window(None, samples, card=Answer([CardSample(time_us, percent) for time_us, percent in card]))
        assert told is not None
        return told.card

    assert card_in(own, (at - 167_000, 90), (at + 1, 61), (at + 167_000, 80)) == 0.61
    assert card_in(own, (at - 167_000, 90), (at + 81, 61)) is None
    assert card_in(own, (at, 101), (at, 2**32 - 1)) is None
    assert card_in(Answer([Sample(7, at, 40), Sample(8, at - 167_000, 20)]), (at, 61)) is None
    told = window(None, own, card=Answer(None, NOT_SUPPORTED))
    assert told is not None
    assert told.ratios == {7: 0.4, 8: 0.2}
    assert told.card is None


def test_who_has_no_sample_in_a_window_was_idle_in_it() -> None:
    first = window(None, Answer([Sample(7, us(NOW - 0.1), 40), Sample(8, us(NOW - 0.1), 20)]))
    assert first is not None
    assert first.ratios == {7: 0.4, 8: 0.2}
    assert first.ended_at == pytest.approx(NOW - 0.1)
    second = window(first, Answer([Sample(8, us(NOW + 0.1), 30)]), NOW + 0.2)
    assert second is not None
    assert second.ratios == {8: 0.3}


@pytest.mark.parametrize("percent", [-1, 250, 2**32 - 1, 10**18])
def test_who_has_a_sample_that_can_not_be_was_not_idle(percent: int) -> None:
    first = window(None, Answer([Sample(7, us(NOW - 0.1), 40), Sample(8, us(NOW - 0.1), percent)]))
    assert first is not None
    assert first.doubtful == {8}
    assert first.ratios == {7: 0.4}
    later = NOW + SAMPLE_WINDOW_SECONDS
    assert window(first, Answer([Sample(8, us(NOW + 0.1), percent)]), later) is first  # nothing is known of it


def test_of_a_process_with_an_impossible_sample_no_share_is_told() -> None:
    listed = Answer([Process(7, 1), Process(8, 1)])
    samples = Answer([Sample(7, us(NOW), 40), Sample(8, us(NOW), 10**18)])
    told = combine(Activity(), listed, samples)
    assert [each.busy_ratio for each in told.processes or ()] == [0.4, None]


def test_a_window_stands_until_there_is_a_new_one_or_it_must_have_been_empty() -> None:
    first = window(None, Answer([Sample(7, us(NOW - 0.1), 40)]))
    assert window(first, Answer([]), NOW + 0.3) is first
    later = NOW + SAMPLE_WINDOW_SECONDS
    assert window(first, Answer([]), later) == BusyWindow(ended_at=later, ratios={})
    assert window(first, Answer(None, UNREADABLE), later) is first  # nobody knows
    assert window(first, Answer(None, NOT_SUPPORTED)) is None  # nobody ever will


def card_of(samples: list[Sample], card: list[CardSample]) -> float | None:
    told = processes.next_window(None, Answer(samples), Answer(card), now=NOW, wall_offset=OFFSET)
    assert told is not None
    return told.card


BOTH = [Sample(7, us(NOW - 0.1), 40), Sample(8, us(NOW - 0.1) + 3, 20)]


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ([CardSample(us(NOW - 0.1), 60)], 0.6),
        ([CardSample(us(NOW - 0.1) - 5, 60), CardSample(us(NOW + 0.07), 90)], 0.6),
        ([], None),
        ([CardSample(us(NOW - 0.1) + 2000, 60)], None),  # of another window
        ([CardSample(us(NOW - 0.1), 60), CardSample(us(NOW - 0.1) + 1, 61)], None),
        ([CardSample(us(NOW - 0.1), 101)], None),
        ([CardSample(us(NOW - 0.1), 4294967295)], None),
        ([CardSample(2**64 - 1, 60)], None),
        ([CardSample(0, 60)], None),
    ],
)
def test_the_card_s_sample_counts_where_it_is_of_the_same_moment(
    card: list[CardSample], expected: float | None
) -> None:
    assert card_of(BOTH, card) == expected


@pytest.mark.parametrize(
    "beside",
    [
        Sample(9, us(NOW - 0.3), 5),  # of the window before: it had nothing to do in this one
        Sample(7, us(NOW - 0.1), 20),  # two windows of one process: what is known of it is their mean
        Sample(9, us(NOW - 0.1), 150),
    ],
)
def test_the_card_s_sample_does_not_count_beside_samples_of_other_windows(beside: Sample) -> None:
    assert card_of([*BOTH, beside], [CardSample(us(NOW - 0.1), 60)]) is None


def test_without_an_answer_of_the_card_the_window_is_what_it_was() -> None:
    for code in (NOT_SUPPORTED, UNREADABLE, 999):
        told = processes.next_window(None, Answer(BOTH), Answer(None, code), now=NOW, wall_offset=OFFSET)
        assert told is not None
        assert (told.card, dict(told.ratios)) == (None, {7: 0.4, 8: 0.2})


@given(
    st.lists(
        st.builds(Sample, st.integers(1, 5), st.integers(-(2**63), 2**64 - 1), st.integers(-(2**31), 10**18)),
        max_size=20,
    )
)
def test_no_garbage_makes_a_window_that_is_over_full_or_of_the_future(samples: list[Sample]) -> None:
    told = window(None, Answer(samples))
    if told is not None:
        assert told.ended_at <= NOW
        assert all(0 <= ratio <= 1 for ratio in told.ratios.values())


def test_time_of_mps_clients_is_unknown() -> None:
    told = combine(Activity(), Answer([Process(1, 100, mps=True)]), Answer([Sample(1, us(NOW), 80)]))
    assert told.processes is not None
    assert told.processes[0].busy_ratio is None


def test_a_list_that_failed_is_not_an_empty_one() -> None:
    told, problem = processes.combine(Activity(), Answer(None, 10), Answer([]), now=NOW, wall_offset=OFFSET)
    assert told.processes is None
    assert problem
    told, problem = processes.combine(Activity(), Answer(None, 3), Answer([]), now=NOW, wall_offset=OFFSET)
    assert (told.processes, problem) == (None, "")


@given(
    st.lists(
        st.builds(Sample, st.integers(1, 5), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)),
        max_size=20,
    )
)
def test_no_garbage_gives_a_ratio_outside_0_to_1_or_a_time_ahead(samples: list[Sample]) -> None:
    told = combine(Activity(), Answer([Process(pid, 1) for pid in range(1, 6)]), Answer(samples))
    for process in told.processes or ():
        if process.busy_ratio is None:
            assert process.pid in processes.doubtful(samples)
            continue
        assert 0 <= process.busy_ratio <= 1
        assert process.busy_observed_at is not None
        assert process.busy_observed_at <= NOW


def test_what_is_gone_is_forgotten() -> None:
    busy = combine(Activity(), Answer([Process(1, 1)]), Answer([Sample(1, us(NOW), 80)]))
    gone = combine(busy, Answer([]), Answer([]))
    assert (gone.processes, dict(gone.busy)) == ((), {})


# ---- the lists themselves ----


def test_overlapping_lists_give_each_process_once() -> None:
    merged = lists.merged([Process(2, None), Process(1, 10), Process(2, 7), Process(1, 3, mps=True)])
    assert merged == [Process(1, 10, mps=True), Process(2, 7)]
    assert lists.merged([Process(2, None), Process(2, None)]) == [Process(2, None)]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (Process(1, 100), True),
        (Process(1, None), True),
        (Process(0, 100), False),
        (Process(5000, 100), False),
        (Process(1, 1001), False),
    ],
)
def test_shuffled_fields_are_seen(entry: Process, expected: bool) -> None:
    assert lists.plausible([entry], most_pid=4096, most_bytes=1000) is expected


class Driver:
    """A driver's list function whose list has another length at each call."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = list(lengths)

    def __call__(self, count: object, room: object) -> int:
        length = self.lengths.pop(0) if len(self.lengths) > 1 else self.lengths[0]
        had = count._obj.value  # type: ignore[attr-defined]
        count._obj.value = length  # type: ignore[attr-defined]
        if length > had:
            return INSUFFICIENT_SIZE
        for place in range(length):
            room[place].pid = place + 1  # type: ignore[index]
        return 0


@pytest.mark.parametrize("lengths", [(0,), (3,), (3, 50, 50), (1, 8, 30, 30)])
def test_a_list_that_grows_is_read_whole(lengths: tuple[int, ...]) -> None:
    found = lists._grow(lists._ProcessV2, Driver(*lengths))
    assert found.value is not None
    assert [entry.pid for entry in found.value] == list(range(1, lengths[-1] + 1))


def test_a_list_that_grows_without_end_is_an_error() -> None:
    assert lists._grow(lists._ProcessV2, Driver(1, 100, 1000, 5000, 20000, 60000)).code == INSUFFICIENT_SIZE
    assert lists._grow(lists._ProcessV2, Driver(2**31)).code == UNREADABLE


class Library:
    """As much of a library as read_samples looks at."""

    def __init__(self, code: int) -> None:
        self.code = code

    def nvmlDeviceGetProcessUtilization(self, *arguments: object) -> int:
        return self.code


class Card:
    """As much of a library as read_card_samples looks at."""

    def __init__(self, code: int = 0, *, kind: int = lists.UNSIGNED_INT, told: int = 2, percent: int = 60) -> None:
        self.code, self.kind, self.told, self.percent = code, kind, told, percent

    def nvmlDeviceGetSamples(self, *arguments: object) -> int:
        _, sampling, _, kind, count, room = arguments
        assert sampling.value == 1  # type: ignore[attr-defined]
        kind._obj.value = self.kind  # type: ignore[attr-defined]
        assert count._obj.value == lists.CARD_SAMPLES  # type: ignore[attr-defined]
        count._obj.value = self.told  # type: ignore[attr-defined]
        for place in range(min(self.told, lists.CARD_SAMPLES)):
            room[place].time_us, room[place].value = 1000 + place, self.percent  # type: ignore[index]
        return self.code


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (Card(), Answer([CardSample(1000, 60), CardSample(1001, 60)])),
        (Card(told=0), Answer([])),
        (Card(NOT_FOUND), Answer([])),
        (Card(NOT_SUPPORTED), Answer(None, NOT_SUPPORTED)),
        (Card(told=2**31), Answer(None, UNREADABLE)),
        (Card(kind=0), Answer(None, UNREADABLE)),
        (object(), Answer(None, FUNCTION_NOT_FOUND)),
    ],
)
def test_samples_of_a_card(card: object, expected: Answer[list[CardSample]]) -> None:
    assert lists.read_card_samples(card, None, 0) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [0, NOT_FOUND])
def test_no_samples_is_an_empty_list(code: int) -> None:
    assert lists.read_samples(Library(code), None, 0) == Answer([])  # type: ignore[arg-type]


def test_another_code_of_the_samples_is_told() -> None:
    assert lists.read_samples(Library(3), None, 0) == Answer(None, 3)  # type: ignore[arg-type]
