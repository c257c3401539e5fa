"""Samples of processes as the driver gives them: which are news, and which can't be."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from hypervisor.gpu import lists, nvml_processes, processes
from hypervisor.gpu.wire import Answer, Sample

A_YEAR_US = 365 * 86_400_000_000


class Driver:
    """Answers each question with these samples."""

    most_pid = 4_194_304
    native = None

    def ask(self, device: Any, name: str, call: Any) -> Answer[list[Sample]]:
        return Answer(call(device))


def told(
    monkeypatch: pytest.MonkeyPatch, *samples: Sample, last_us: int, doubtful_us: int = 0
) -> tuple[list[Sample], int]:
    monkeypatch.setattr(lists, "read_samples", lambda *_: Answer(list(samples)))
    device: Any = SimpleNamespace(last_sample_us=last_us, last_doubtful_us=doubtful_us)
    driver: Any = Driver()
    answer = nvml_processes.samples(driver, device)
    assert answer.value is not None
    return answer.value, device.last_sample_us


def test_a_sample_of_the_future_tells_who_was_busy_and_not_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out, its process would be taken for idle, and a limit be opened."""
    now = time.time_ns() // 1000
    good, old = Sample(7, now, 40), Sample(9, now - 1_000_000, 30)
    samples, last = told(monkeypatch, good, Sample(8, now + A_YEAR_US, 40), old, last_us=now - 500_000)
    assert samples[0] == good
    assert [each.pid for each in samples] == [7, 8]
    assert processes.doubtful(samples) == {8}
    assert last == now  # what comes next is seen
    again, _ = told(monkeypatch, Sample(8, now + A_YEAR_US, 40), last_us=last, doubtful_us=now + A_YEAR_US)
    assert again == []  # the same one, which the driver gives until its time has come
