"""The limit files' layout over its versions: what changed without a new version, or in a way that others misread."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.unit.limits import layouts

HEADER = layouts.HEADER.read_text()


def changed(before: str, after: str) -> layouts.Layout:
    assert before in HEADER
    return layouts.declared(HEADER.replace(before, after))


def test_a_change_of_the_layout_is_a_new_version() -> None:
    current = layouts.declared(HEADER)
    known = layouts.kept()
    assert current.version in known, "the version is new: python -m tests.unit.limits.layouts"
    assert current.text() == known[current.version].text(), (
        "the layout has changed: if this version was released, raise HV_ABI_MINOR and say in the header what is new; "
        "then python -m tests.unit.limits.layouts"
    )


def test_each_version_is_understood_by_programs_of_the_one_before() -> None:
    known = list(layouts.kept().values())
    assert [each.version for each in known] == [f"1.{number}" for number in range(len(known))]
    assert len(known) > 1
    for older, newer in pairwise(known):
        assert layouts.breaks(older, newer) == []
        assert older.text() != newer.text().replace(
            f"HV_ABI_MINOR {newer.constants['HV_ABI_MINOR']}", f"HV_ABI_MINOR {older.constants['HV_ABI_MINOR']}"
        )


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("HV_SLOT_LIVE = 2", "HV_SLOT_LIVE = 3", "HV_SLOT_LIVE was 2 and is 3"),
        ("    uint64_t returned_ns;", "    uint64_t given_ns;", "hv_device_usage.returned_ns was"),
        ("    uint64_t bucket_ns;", "    uint64_t more[1];\n    uint64_t bucket_ns;", "hv_device_usage.bucket_ns was"),
        ("    uint64_t last_launch_ns;", "    double last_launch_ns;", "hv_process_slot.last_launch_ns was"),
        ("#define HV_PROCESS_SLOTS 512", "#define HV_PROCESS_SLOTS 256", "HV_PROCESS_SLOTS was 512 and is 256"),
    ],
)
def test_what_others_would_misread_is_found(before: str, after: str, told: str) -> None:
    assert any(each.startswith(told) for each in layouts.breaks(layouts.declared(HEADER), changed(before, after)))


def test_what_a_later_version_may_do_is_not_told() -> None:
    added = changed("    uint64_t reserved1[2];", "    uint64_t added;\n    uint64_t reserved1[1];")
    assert layouts.breaks(layouts.declared(HEADER), added) == []
    appended = changed("    uint64_t cost_ns; ", "    uint64_t cost_ns; ")
    appended.sizes["hv_learned_cost"] += 8
    appended.fields["hv_learned_cost"]["later"] = layouts.Field(128, 8, "uint64_t")
    assert layouts.breaks(layouts.declared(HEADER), appended) == []
