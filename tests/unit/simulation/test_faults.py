"""The words for faults."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.simulation.calls import known_calls
from hypervisor.simulation.document import DocumentError
from hypervisor.simulation.faults import parse_fault_text
from hypervisor.simulation.spec import FaultSpec


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("gpu=3,xid=79,lost", FaultSpec(action=12, gpu=3, value=79)),
        ("gpu=3,xid=48", FaultSpec(action=11, gpu=3, value=48)),
        ("gpu=0,lost", FaultSpec(action=12, gpu=0)),
        ("gpu=7, vanish=true, at=1s, for=500ms", FaultSpec(action=13, gpu=7, at_ns=10**9, until_ns=1_500_000_000)),
        (
            "call=nvmlDeviceGetUtilizationRates,return=zero,for=30s",
            FaultSpec(action=2, call="nvmlDeviceGetUtilizationRates", until_ns=30 * 10**9),
        ),
        (
            "call=cuMemAlloc_v2,gpu=2,every=100,return=2",
            FaultSpec(action=1, gpu=2, call="cuMemAlloc_v2", every=100, value=2),
        ),
        ("call=nvml*,hang=3s,count=1", FaultSpec(action=8, call="nvml*", value=3 * 10**9, count=1)),
        ("call=nvml*,hang_lock=forever", FaultSpec(action=9, call="nvml*")),
        ("call=a,delay=5ms,pid=42", FaultSpec(action=7, call="a", value=5_000_000, pid=42)),
        ("symbol=a,missing", FaultSpec(action=10, call="a")),
        ("call=a,value=-1", FaultSpec(action=3, call="a", value=-1)),
        ("call=*gemm,return=sentinel", FaultSpec(action=4, call="*gemm")),
    ],
)
def test_a_fault_is_read(text: str, fault: FaultSpec) -> None:
    assert parse_fault_text(text, 8) == fault


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu=8,lost", "gpu: must be a whole number from 0 to 7, not '8'"),
        ("lost", "'lost' needs 'gpu'"),
        ("gpu=1", "must have exactly one of return, value"),
        ("gpu=1,lost,vanish", "must have exactly one of"),
        ("gpu=1,lost=false", "lost: can only be true"),
        ("call=x,return=often", "return: must be a result code or one of zero"),
        ("call=x,delay=fast", "delay: must be a time with a unit"),
        ("return=3", "'return' needs 'call'"),
        ("gpu=1,lost,call=x", "happens to a GPU"),
        ("call=x,symbol=x,missing", "symbol: means the same as 'call'"),
        ("call=x,return=3,colour=red", "colour: is not a key here; allowed are"),
        ("call=x,return=3,gpu=1,gpu=2", "gpu: is given twice"),
        ("call=,return=3", "1 to 79 bytes"),
        ("", "must have exactly one of"),
    ],
)
def test_a_wrong_fault_is_told_in_one_line(text: str, words: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_fault_text(text, 8)
    message = str(caught.value)
    assert message.startswith(f"fault '{text}'")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nvmlDeviceGetMemoryInf", "close to it are nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo_v2"),
        ("cuMemAlloc_v3", "close to it are cuMemAlloc_v2"),
        ("cudaMalloc", "no function of the simulated libraries is called 'cudaMalloc'"),
        ("*gemm", "write an exported name"),
        ("cuInit[", "close to it are cuInit"),
    ],
)
def test_a_call_that_no_library_has_is_refused(name: str, words: str) -> None:
    with pytest.raises(DocumentError, match="call") as caught:
        parse_fault_text(f"call={name},return=3", 8, calls=known_calls())
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "name", ["cuInit", "nvmlInit_v2", "nvmlDeviceGet*", "cuMemAlloc_v?", "*", "cuLaunchKernel_ptsz"]
)
def test_a_call_of_either_library_is_taken(name: str) -> None:
    assert parse_fault_text(f"call={name},return=3", 8, calls=known_calls()).call == name


@given(st.text(alphabet="gpu=1,calretnxidos0-*\n\x00", max_size=40))
def test_any_text_is_a_fault_or_one_error(text: str) -> None:
    try:
        fault = parse_fault_text(text, 2)
    except DocumentError:
        return
    assert 1 <= fault.action <= 13
