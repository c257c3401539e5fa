"""The usage file: whatever a tenant does to it is an answer or a finding, never a crash, a hang or a mended file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypervisor.limits import (
    Access,
    Finding,
    LimitDirectory,
    LimitFileError,
    MessageCode,
    RecountResult,
    SlotPhase,
    UsageFile,
    new_survey_buffer,
)
from hypervisor.limits.layout import HEADER_BYTES
from tests.unit.limits.tenant import DEVICES, MESSAGES, OCCUPANCY, SLOT_BYTES, SLOTS, Tenant, attach_self, size_of
from tests.unit.limits.test_limit_files import BOOT, GIB, LIMITS

BUFFER = new_survey_buffer()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    directory = LimitDirectory(tmp_path / "shm", boot_id=BOOT, node_epoch=1)
    directory.prepare()
    return directory.create("uid", "job", LIMITS, access=Access(), context_bytes=(0,)).directory / "usage"


@pytest.fixture
def usage(path: Path) -> Iterator[UsageFile]:
    opened = UsageFile.open(path, boot_id=BOOT)
    yield opened
    opened.close()


@pytest.fixture
def tenant(path: Path) -> Iterator[Tenant]:
    made = Tenant(path)
    yield made
    made.close()


def test_the_layout_of_the_tests_is_the_one_of_the_header() -> None:
    assert size_of("struct hv_process_slot") == SLOT_BYTES
    assert SLOTS + 512 * SLOT_BYTES <= 1048576


def test_an_empty_file_holds_nothing(usage: UsageFile) -> None:
    survey = usage.survey(BUFFER, device_count=2)
    assert [device.total_bytes for device in survey.devices] == [0, 0]
    assert (survey.slots, survey.host_bytes) == ((), 0)


def test_a_survey_sees_what_processes_account(usage: UsageFile, tenant: Tenant) -> None:
    attach_self(tenant, 0, held=GIB, context=5, denials=3, host=77)
    tenant.attach(511, pid=4, start=9, namespace=12, held=2 * GIB)
    survey = usage.survey(BUFFER, device_count=1)
    assert survey.devices[0].total_bytes == 3 * GIB
    first, last = survey.slots
    assert (first.pid, first.number, first.phase, first.host_bytes) == (os.getpid(), 0, SlotPhase.LIVE, 77)
    assert (first.devices[0].held_bytes, first.devices[0].context_bytes, first.devices[0].denials) == (GIB, 5, 3)
    assert (last.number, last.pid, last.pid_namespace, last.start_time_ticks) == (511, 4, 12, 9)


def test_a_slot_in_claiming_has_no_start_time_and_no_bytes_yet(usage: UsageFile, tenant: Tenant) -> None:
    attach_self(tenant, 3, held=GIB, phase=SlotPhase.CLAIMING)
    (slot,) = usage.survey(BUFFER, device_count=1).slots
    assert (slot.phase, slot.start_time_ticks, slot.devices) == (SlotPhase.CLAIMING, 0, ())


def test_a_returned_slot_is_free_with_the_next_sequence(usage: UsageFile, tenant: Tenant) -> None:
    attach_self(tenant, 0, held=GIB)
    (slot,) = usage.survey(BUFFER, device_count=1).slots
    assert usage.return_slot(slot, own_identity=1)
    assert tenant.state(0) == 1 << 8
    assert usage.survey(BUFFER, device_count=1).slots == ()
    assert not usage.return_slot(slot, own_identity=1)  # exactly once
    assert tenant.state(0) == 1 << 8


def test_a_slot_that_has_moved_on_is_not_returned(usage: UsageFile, tenant: Tenant) -> None:
    attach_self(tenant, 0)
    (slot,) = usage.survey(BUFFER, device_count=1).slots
    tenant.put(SLOTS, 1 << 8 | SlotPhase.LIVE)  # returned by another, and claimed again
    assert not usage.return_slot(slot, own_identity=1)
    tenant.put(SLOTS, slot.state)
    tenant.put(SLOTS + 8, 99 << 32 | 1)
    assert not usage.return_slot(slot, own_identity=1)
    assert tenant.state(0) == slot.state


def test_a_slot_in_claiming_is_taken_over_before_it_is_returned(usage: UsageFile, tenant: Tenant) -> None:
    """So that a claimer that was merely stopped finds that it has lost the owner word."""
    attach_self(tenant, 0, phase=SlotPhase.CLAIMING)
    (slot,) = usage.survey(BUFFER, device_count=1).slots
    assert usage.return_slot(slot, own_identity=4711)
    assert (tenant.state(0), tenant.get(SLOTS + 8)) == (1 << 8, 4711)


def test_a_recount_takes_a_total_that_is_too_high_down(usage: UsageFile, tenant: Tenant) -> None:
    attach_self(tenant, 0, held=GIB)
    tenant.set_total(5 * GIB)
    assert usage.recount(0) == (RecountResult.CHANGED, 5 * GIB, GIB)
    assert tenant.total() == GIB
    assert usage.recount(0) == (RecountResult.RIGHT, GIB, GIB)


def test_a_recount_advances_the_count_of_changes(usage: UsageFile, tenant: Tenant) -> None:
    attach_self(tenant, 0, held=GIB)
    tenant.put(DEVICES, (2**20 - 1) << 44 | 2 * GIB)
    usage.recount(0)
    assert tenant.get(DEVICES) == GIB  # the count has wrapped and spilled nowhere


def test_a_recount_takes_a_total_that_is_too_low_up_only_when_it_is_quiet(usage: UsageFile, tenant: Tenant) -> None:
    attach_self(tenant, 0, held=4 * GIB)
    tenant.put(SLOTS + 64 + 8, GIB)  # in flight: counted twice, so the sum may be too high
    tenant.set_total(GIB)
    assert usage.recount(0)[0] is RecountResult.RIGHT
    assert tenant.total() == GIB
    tenant.put(SLOTS + 64 + 8, 0)
    assert usage.recount(0) == (RecountResult.CHANGED, GIB, 4 * GIB)


def test_a_recount_counts_an_operation_that_is_under_way(usage: UsageFile, tenant: Tenant) -> None:
    attach_self(tenant, 0, held=GIB)
    tenant.put(SLOTS + 64 + 8, GIB)
    tenant.set_total(10 * GIB)
    assert usage.recount(0) == (RecountResult.CHANGED, 10 * GIB, 3 * GIB)


def test_host_memory_is_recounted_by_the_same_protocol(usage: UsageFile, tenant: Tenant) -> None:
    attach_self(tenant, 0, host=GIB)
    tenant.put(DEVICES + 128, 3 * GIB)
    assert usage.recount(16) == (RecountResult.CHANGED, 3 * GIB, GIB)
    assert tenant.get(DEVICES + 128) % 2**44 == GIB


def test_garbage_in_slots_does_not_wrap_the_sum(usage: UsageFile, tenant: Tenant) -> None:
    for slot in range(3):
        attach_self(tenant, slot)
        tenant.put(SLOTS + SLOT_BYTES * slot + 64, 2**64 - 1)
    assert usage.recount(0)[2] == 2**44 - 1


def test_messages_are_read_once_and_in_order(usage: UsageFile, tenant: Tenant) -> None:
    assert usage.new_messages() == ()
    for sequence in range(60, 70):  # over the end of the ring
        tenant.say(sequence, MessageCode.INTERNAL, b"number %d" % sequence)
    assert [message.text for message in usage.new_messages()] == [f"number {number}" for number in range(60, 70)]
    assert usage.new_messages() == ()
    tenant.say(70, MessageCode.DENIED, b"later", pid=3)
    (message,) = usage.new_messages()
    assert (message.code, message.text, message.pid) == (MessageCode.DENIED, "later", 3)


def test_messages_of_an_earlier_time_can_be_passed_over(path: Path, tenant: Tenant) -> None:
    tenant.say(1, MessageCode.INTERNAL, b"old")
    usage = UsageFile.open(path, boot_id=BOOT)
    usage.skip_messages()
    assert usage.new_messages() == ()
    tenant.say(2, MessageCode.INTERNAL, b"new")
    assert [message.text for message in usage.new_messages()] == ["new"]


def test_what_is_no_message_is_left_out_and_control_characters_are_shown(usage: UsageFile, tenant: Tenant) -> None:
    tenant.say(1, 99, b"unknown code")
    tenant.say(2, MessageCode.INTERNAL, b"\x1b[2Jred\n\xff")
    tenant.put(MESSAGES + 256 + 256 * 5, 6)  # at the wrong place for its sequence
    assert [message.text for message in usage.new_messages()] == ["?[2Jred??"]


def punch(path: Path, offset: int, length: int) -> None:
    subprocess.run(
        ["fallocate", "--punch-hole", "--offset", str(offset), "--length", str(length), str(path)], check=True
    )


def rename_over(path: Path) -> None:
    other = path.with_name("copy")
    other.write_bytes(path.read_bytes())
    other.rename(path)


def swap_for_symlink(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


TAMPERING: dict[str, tuple[Callable[[Path], object], Finding]] = {
    "truncate -s 0": (lambda path: os.truncate(path, 0), Finding.WRONG_SIZE),
    "cut in the slots": (lambda path: os.truncate(path, SLOTS + 100), Finding.WRONG_SIZE),
    "grown": (lambda path: os.truncate(path, 2**30), Finding.WRONG_SIZE),
    "header punched": (lambda path: punch(path, 0, 4096), Finding.WRONG_HEADER),
    "accounts punched": (lambda path: punch(path, DEVICES, 4096), Finding.PUNCHED),
    "slots punched": (lambda path: punch(path, SLOTS, 4096), Finding.PUNCHED),
    "all punched": (lambda path: punch(path, 0, 2**20), Finding.WRONG_HEADER),
    "replaced": (rename_over, Finding.REPLACED),
    "symlink": (swap_for_symlink, Finding.REPLACED),
    "deleted": (lambda path: path.unlink(), Finding.MISSING),
    "renamed": (lambda path: path.rename(path.with_name("moved")), Finding.MISSING),
    "second name": (lambda path: os.link(path, path.with_name("second")), Finding.LINKED),
    "directory removed": (
        lambda path: ([entry.unlink() for entry in path.parent.iterdir()], path.parent.rmdir()),
        Finding.MISSING,
    ),
}


@pytest.mark.parametrize("name", TAMPERING)
def test_tampering_is_a_finding(path: Path, usage: UsageFile, tenant: Tenant, name: str) -> None:
    attach_self(tenant, 0, held=GIB)
    usage.survey(BUFFER, device_count=1)
    tamper, finding = TAMPERING[name]
    tamper(path)
    with pytest.raises(LimitFileError) as caught:
        usage.survey(BUFFER, device_count=1)
    assert caught.value.finding is finding
    assert str(path) in caught.value.message


@pytest.mark.parametrize("name", TAMPERING)
def test_a_recount_of_a_file_that_was_tampered_with_mends_nothing(
    path: Path, usage: UsageFile, tenant: Tenant, name: str
) -> None:
    attach_self(tenant, 0, held=GIB)
    (slot,) = usage.survey(BUFFER, device_count=1).slots
    TAMPERING[name][0](path)
    if TAMPERING[name][1] is Finding.PUNCHED:
        return  # seen by the survey, which comes first
    for change in (lambda: usage.recount(0), lambda: usage.return_slot(slot, own_identity=1)):
        with pytest.raises(LimitFileError):
            change()
    if path.exists() and path.is_file():
        size = path.stat().st_size
        with pytest.raises(LimitFileError):
            usage.survey(BUFFER, device_count=1)
        assert path.stat().st_size == size


def write_words(offset: int, *words: int) -> Callable[[Tenant], None]:
    return lambda tenant: tenant.put(offset, *words)


GARBAGE = {
    "unknown phase": write_words(SLOTS, 7),
    "live without a pid": write_words(SLOTS, 2, 5 << 32),
    "more bytes than any device": write_words(SLOTS + 64, 2**45),
    "more in flight than any device": write_words(SLOTS + 72, 2**63),
    "header words": write_words(16, 1),
    "magic": write_words(0, 0),
    "section table": write_words(152, 2**64 - 1, 2**64 - 1),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_content_that_no_limiter_writes_is_a_finding(usage: UsageFile, tenant: Tenant, name: str) -> None:
    attach_self(tenant, 0, held=GIB)
    GARBAGE[name](tenant)
    with pytest.raises(LimitFileError) as caught:
        usage.survey(BUFFER, device_count=1)
    assert caught.value.finding in (Finding.IMPOSSIBLE, Finding.WRONG_HEADER)


def test_a_slot_that_is_hidden_from_the_bitmap_is_found(usage: UsageFile, tenant: Tenant) -> None:
    attach_self(tenant, 40, held=GIB)
    tenant.put(OCCUPANCY, 0)
    with pytest.raises(LimitFileError) as caught:  # the first survey is a full one
        usage.survey(BUFFER, device_count=1)
    assert caught.value.finding is Finding.IMPOSSIBLE


def test_a_bit_that_is_taken_from_a_used_slot_is_found_at_once(usage: UsageFile, tenant: Tenant) -> None:
    attach_self(tenant, 40, held=GIB)
    usage.survey(BUFFER, device_count=1)
    tenant.put(OCCUPANCY, 0)
    with pytest.raises(LimitFileError):
        usage.survey(BUFFER, device_count=1)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    patches=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 1048575), st.integers(0, 12287), st.integers(SLOTS, SLOTS + 4 * SLOT_BYTES)),
            st.binary(min_size=1, max_size=300),
        ),
        min_size=1,
        max_size=6,
    ),
    size=st.one_of(st.none(), st.none(), st.integers(0, 2**21)),
    device_count=st.integers(0, 16),
)
def test_random_bytes_in_a_random_file_are_an_answer_or_a_finding(
    tmp_path_factory: pytest.TempPathFactory, patches: list[tuple[int, bytes]], size: int | None, device_count: int
) -> None:
    directory = LimitDirectory(tmp_path_factory.mktemp("fuzz"), boot_id=BOOT, node_epoch=1)
    directory.prepare()
    files = directory.create("uid", "job", LIMITS, access=Access(), context_bytes=(0,))
    assert files.usage is not None
    path = files.directory / "usage"
    try:
        with path.open("r+b") as file:
            for offset, data in patches:
                file.seek(offset)
                file.write(data[: 1048576 - offset])
            if size is not None:
                file.truncate(size)
        try:
            survey = files.usage.survey(BUFFER, device_count=device_count)
        except LimitFileError:
            pass  # a finding
        else:
            for slot in survey.slots:
                files.usage.return_slot(slot, own_identity=1)
            for account in range(17):
                assert 0 <= files.usage.recount(account)[2] < 2**44
        again = directory.open("uid")
        again.close()
    finally:
        files.close()
        directory.remove("uid")


def test_a_random_file_from_the_start_is_refused(path: Path) -> None:
    path.write_bytes(os.urandom(HEADER_BYTES) + bytes(1048576 - HEADER_BYTES))
    with pytest.raises(LimitFileError):
        UsageFile.open(path, boot_id=BOOT)
