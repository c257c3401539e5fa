"""A share of GPU time, by the simulator's own count of busy time."""

from __future__ import annotations

import time

import pytest

from tests.integration.limiter.conftest import GIB, Pod, heard
from tests.simulated_load import assert_share

SECONDS = 2.0

BUSY = """
    class Configuration(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")]
        _fields_ += [("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint)]
    def launch_extended(function):
        return call("cuLaunchKernelEx", ctypes.byref(Configuration(1, 1, 1, 32, 1, 1, 0)), function, None, None)
    class Parameters(ctypes.Structure):
        _fields_ = [("function", ctypes.c_void_p)]
        _fields_ += [(name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")]
        _fields_ += [("stream", ctypes.c_void_p), ("parameters", ctypes.c_void_p)]
    def launch_on_several(function):
        one = Parameters(function, 1, 1, 1, 32, 1, 1, 0, stream)
        return call("cuLaunchCooperativeKernelMultiDevice", ctypes.byref(one), 1, 0)
    streams = []
    def elsewhere():
        if not streams:
            other, there = ctypes.c_void_p(), ctypes.c_void_p()
            must("cuCtxCreate_v2", ctypes.byref(other), 0, 0)
            must("cuStreamCreate", ctypes.byref(there), 1)
            must("cuCtxSetCurrent", first)
            streams.append(there)
        return streams[0]
    first = start()
    function, stream = kernel({microseconds}), ctypes.c_void_p()
    must("cuStreamCreate", ctypes.byref(stream), 1)
    tell("ready")
    while True:
        assert {launch} == 0
"""

FORMS = {
    "plain": "launch(function)",
    "per-thread": "launch(function, name='cuLaunchKernel_ptsz')",
    "extended": "launch_extended(function)",
    "cooperative": "call('cuLaunchCooperativeKernel', function, 1, 1, 1, 32, 1, 1, 0, None, None)",
    "multi-device": "launch_on_several(function)",
    "another context's stream": "launch(function, stream=elsewhere())",
}


def busy_share(pod: Pod, source: str, *, limited: bool = True) -> float:
    """The part of the window in which a kernel was resident, after the first half second."""
    with pod.running(source, limited=limited) as process:
        heard(process)
        settled = time.monotonic() + 0.5
        wait_until(settled)
        return share_over(pod, SECONDS)


def share_over(pod: Pod, seconds: float) -> float:
    """The part of the next seconds in which a kernel was resident, by the ledger."""
    began, busy = time.monotonic(), pod.gpu()["busy_ns"]
    wait_until(began + seconds)
    return float((pod.gpu()["busy_ns"] - busy) / 1e9 / (time.monotonic() - began))


def wait_until(moment: float) -> None:
    """Passing time is what these tests measure over; nothing else is waited for here."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_launch_is_held_to_the_share(pod: Pod, form: str) -> None:
    """HAMi-core 76: by the file alone, whether others are there or not.

    HAMi-core PR 143 and HAMi-core PR 278: the extended and the cooperative launch too.
    """
    source = BUSY.format(microseconds=1000, launch=FORMS[form])
    for limit in (0.25, 0.50):
        pod.files.make(GIB, round(limit * 1e6))
        assert_share(lambda: busy_share(pod, source), limit)


def test_without_the_limiter_the_same_program_takes_all(pod: Pod) -> None:
    pod.files.make(GIB, 250_000)
    assert busy_share(pod, BUSY.format(microseconds=1000, launch="launch(function)"), limited=False) > 0.8


MANY = """
    start()
    functions = [kernel({microseconds} + each) for each in range({count})]
    began = time.monotonic()
    for function in functions:
        assert launch(function) == 0
    must("cuCtxSynchronize")
    tell(time.monotonic() - began)
"""


def test_functions_that_nobody_has_measured_are_not_queued_all_at_once(pod: Pod) -> None:
    """Each is charged a guess: 0.09 s of them would be launched within a millisecond, and end within 0.1 s, not 0.9."""
    pod.files.make(GIB, 100_000)
    assert pod.ask(MANY.format(microseconds=3000, count=30)) >= 0.4


def test_a_function_that_runs_for_long_does_not_keep_others_from_being_measured(pod: Pod) -> None:
    pod.files.make(GIB, 900_000)
    took = pod.ask("""
    start()
    long, short = kernel(3000000), kernel(100)
    stream = ctypes.c_void_p()
    must("cuStreamCreate", ctypes.byref(stream), 1)
    assert launch(long) == 0
    began = time.monotonic()
    assert launch(short, stream=stream) == 0
    took = time.monotonic() - began
    tell(took)
    os._exit(0)
""")
    assert took < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("microseconds", "change"),
    [
        (500, "function = kernel(500 + i)"),
        (5000, "function = kernel(5000 + i)"),
        (2000, "blocks, threads = 1 + i % 97, 32 + i // 97"),
    ],
)
def test_functions_that_are_ever_new_are_held_to_the_share(pod: Pod, microseconds: int, change: str) -> None:
    source = f"""
    start()
    function, blocks, threads = kernel({microseconds}), 1, 32
    tell("ready")
    i = 0
    while True:
        {change}
        assert call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, None, None, None) == 0
        i += 1
"""
    pod.files.make(GIB, 250_000)
    with pod.running(source) as process:
        heard(process)
        wait_until(time.monotonic() + 1)
        assert 0.1 < share_over(pod, 4) < 0.29  # less where others keep the processors busy


@pytest.mark.slow
@pytest.mark.parametrize("microseconds", [500, 5000])
def test_functions_that_are_ever_new_in_several_processes_are_held_to_the_share(pod: Pod, microseconds: int) -> None:
    """Of several threads each: one that waits long for its turn to be measured is not let go by that."""
    source = f"""
    context = start()
    def work(first):
        must("cuCtxSetCurrent", context)
        stream = ctypes.c_void_p()
        must("cuStreamCreate", ctypes.byref(stream), 1)
        for i in range(first, 1 << 20):
            assert launch(kernel({microseconds} + i), stream=stream) == 0
    for number in range(4):
        threading.Thread(target=work, args=(number * 1000,), daemon=True).start()
    tell("ready")
    time.sleep({SECONDS} * 10)
"""
    pod.files.make(GIB, 250_000)
    with pod.running(source) as first, pod.running(source) as second, pod.running(source) as third:
        for process in (first, second, third):
            heard(process)
        wait_until(time.monotonic() + 1)
        assert 0.1 < share_over(pod, 5) < 0.29


def test_a_limit_that_is_raised_or_lifted_holds_at_once(pod: Pod) -> None:
    pod.files.make(GIB, 100_000)
    # It waits for each kernel: what is in the queue when a limit comes can't be called back.
    launch = "launch(function) or call('cuCtxSynchronize')"
    with pod.running(BUSY.format(microseconds=20000, launch=launch)) as process:
        heard(process)
        wait_until(time.monotonic() + 0.5)
        pod.files.set(GIB, 1_000_000)
        assert_share(lambda: share_over(pod, 1), 1.0, tolerance=0.2)
        pod.files.set(GIB, 200_000)
        wait_until(time.monotonic() + 1)
        assert_share(lambda: share_over(pod, SECONDS), 0.20)


def test_frozen_launches_wait_and_go_on(pod: Pod) -> None:
    source = """
        start()
        function = kernel(100)
        tell("ready")
        for line in sys.stdin:
            began = time.monotonic()
            must("cuCtxSynchronize")
            assert launch(function) == 0
            tell(time.monotonic() - began)
    """
    with pod.running(source) as process:
        heard(process)
        assert process.stdin is not None
        pod.files.freeze(True)
        process.stdin.write("\n")
        process.stdin.flush()
        wait_until(time.monotonic() + 0.3)
        pod.files.freeze(False)
        assert 0.2 < heard(process) < 5


def test_two_processes_of_a_pod_share_its_time_evenly(pod: Pod) -> None:
    counts: list[int] = []

    def measured() -> float:
        pod.files.make(GIB, 400_000)
        counts[:] = two_counts(pod)
        return sum(counts) / 2000

    assert_share(measured, 0.40)
    assert min(counts) / max(counts) > 0.8


def two_counts(pod: Pod) -> list[int]:
    """Launches of 1 ms in two seconds, of two processes at once."""
    source = """
        start()
        function = kernel(1000)
        launch(function)
        tell("ready")
        sys.stdin.readline()
        count, ends = 0, time.monotonic() + 2
        while time.monotonic() < ends:
            assert launch(function) == 0
            count += 1
        tell(count)
    """
    with pod.running(source) as first, pod.running(source) as second:
        for process in (first, second):
            heard(process)
        for process in (first, second):
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return [int(heard(first)), int(heard(second))]
