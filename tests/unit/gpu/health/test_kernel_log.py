"""Lines of real kernel logs, and the file that they come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.gpu.health.kernel_log import KernelLog, LogKind, parse


@pytest.mark.parametrize(
    ("line", "bus_id", "number", "pid", "name", "text"),
    [
        (
            "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            *("0000:05:00.0", 79, None, "", "GPU has fallen off the bus."),
        ),
        (
            "NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101",
            "0000:03:00.0",
            31,
            None,
            "",
            "Ch 00000010, engmask 00000101",
        ),
        (
            "NVRM: Xid (PCI:0000:3B:00): 31, pid=1234, name=python, Ch 00000008, intr 10000000",
            *("0000:3b:00.0", 31, 1234, "python", "Ch 00000008, intr 10000000"),
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x00020bc6)",
            *("0018:01:00.0", 149, None, "", "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x00020bc6)"),
        ),
        ("NVRM: Xid (PCI:0000:18:00): 13", "0000:18:00.0", 13, None, "", ""),
        ("NVRM: Xid (PCI:00000000:18:00.0): 63, pid='77', name=a b, Row", "0000:18:00.0", 63, 77, "a b", "Row"),
    ],
)
def test_xids_in_all_their_shapes(line: str, bus_id: str, number: int, pid: int | None, name: str, text: str) -> None:
    found = parse(f"3,2411,98765432100,-;{line}")
    assert found is not None
    assert (found.kind, found.bus_id, found.number) == (LogKind.XID, bus_id, number)
    assert (found.pid, found.name, found.text) == (pid, name, text)
    assert (found.sequence, found.at) == (2411, 98765.4321)
    dmesg = parse(f"[98765.432100] {line}")
    assert dmesg is not None
    assert (dmesg.number, dmesg.at, dmesg.sequence) == (number, 98765.4321, None)


def test_faults_without_an_xid() -> None:
    off = parse("3,1,2,-;NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.")
    assert off is not None
    assert (off.kind, off.bus_id) == (LogKind.OFF_BUS, "0000:18:00.0")
    start = parse("3,1,2,-;NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x26:0x56:1474)")
    assert start is not None
    assert (start.kind, start.text) == (LogKind.INIT_FAILED, "(0x26:0x56:1474)")


@pytest.mark.parametrize(
    "line",
    [
        "6,1,2,-;usb 1-1: new device",
        "3,1,2,-;NVRM: API mismatch: the client has the version 580, but this kernel module has the version 575",
        "3,1,2,-;NVRM: Xid (PCI:zz): 79",
        "",
        ";;;,",
    ],
)
def test_other_lines_are_about_no_card(line: str) -> None:
    assert parse(line) is None


def test_a_fault_of_a_switch_is_the_switch_s() -> None:
    """nvidia-stack.md 3.3."""
    told = parse("3,1,2,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 02")
    assert told is not None
    assert (told.kind, told.bus_id, told.number) == (LogKind.SWITCH, "0000:c1:00.0", 12028)
    assert told.text == "Non-fatal, Link 02"


@given(st.text())
def test_no_line_is_too_strange(text: str) -> None:
    parse(text)
    parse(f"3,1,2,-;NVRM: Xid (PCI:0000:18:00): {text}")


def test_the_file_is_read_on_and_what_was_judged_before_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "kmsg"
    log = KernelLog(file)
    assert log.read() == []
    assert "kmsg: No such file" in log.failure
    file.write_text(
        "3,5,1000000,-;NVRM: Xid (PCI:0000:18:00): 13\n SUBSYSTEM=pci\n3,6,1100000,-;NVRM: Xid (PCI:0000:18"
    )
    assert [each.number for each in log.read()] == [13]
    assert (log.failure, log.last_sequence) == ("", 5)
    with file.open("a") as more:
        more.write(":00): 31\n")
    assert [each.number for each in log.read()] == [31]
    assert log.read() == []
    log.close()
    again = KernelLog(file, after=5)
    assert [each.sequence for each in again.read()] == [6]
    again.close()


def test_a_log_that_is_a_pipe_is_never_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    log = KernelLog(pipe)
    assert log.read() == []
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    assert log.read() == []  # EAGAIN: a writer, and nothing written
    os.write(writer, b"3,7,1,-;NVRM: Xid (PCI:0000:18:00): 48\n")
    assert [each.number for each in log.read()] == [48]
    os.close(writer)
    log.close()
