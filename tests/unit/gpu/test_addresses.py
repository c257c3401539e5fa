from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.gpu import addresses


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("0000:3B:00", "0000:3b:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("00010000:DB:1F.7", "10000:db:1f.7"),
        ("not an address", "not an address"),
    ],
)
def test_normalise(given_text: str, expected: str) -> None:
    assert addresses.normalise(given_text) == expected
    assert addresses.normalise(expected) == expected


def test_pci_identifier_puts_the_vendor_first() -> None:
    assert addresses.pci_identifier(0x233010DE) == "10de:2330"


@given(st.sets(st.integers(0, 4095)))
def test_members_and_cpu_lists_lose_no_cpu(cpus: set[int]) -> None:
    words = [0] * 64
    for cpu in cpus:
        words[cpu // 64] |= 1 << (cpu % 64)
    assert addresses.members(words) == sorted(cpus)
    text = addresses.as_cpu_list(sorted(cpus))
    expanded = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        expanded |= set(range(int(first), int(last or first) + 1))
    assert expanded == cpus


def test_cpu_list_is_written_as_linux_does() -> None:
    assert addresses.as_cpu_list([0, 1, 2, 3, 8, 10, 11]) == "0-3,8,10-11"
    assert addresses.as_cpu_list([]) == ""


@pytest.mark.parametrize(("text", "expected"), [("1\n", 1), ("0\n", 0), ("-1\n", None), ("", None), ("x", None)])
def test_numa_node_minus_one_is_unknown_and_not_node_zero(tmp_path: Path, text: str, expected: int | None) -> None:
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "numa_node").write_text(text)
    assert addresses.numa_node_of("0000:3b:00.0", tmp_path) == expected
    assert addresses.numa_node_of("0000:3c:00.0", tmp_path) is None


@pytest.mark.parametrize(("text", "expected"), [("0-15,32-47\n", "0-15,32-47"), ("\n", ""), ("all", ""), ("3", "3")])
def test_cpu_list_of_a_device(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "local_cpulist").write_text(text)
    assert addresses.cpu_list_of("0000:3b:00.0", tmp_path) == expected
    assert addresses.on_bus("0000:3b:00.0", tmp_path)
    assert not addresses.on_bus("0000:3c:00.0", tmp_path)
