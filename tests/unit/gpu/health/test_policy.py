"""The built-in policy against NVIDIA's catalogue, and what a site may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypervisor.gpu.health import policy
from hypervisor.gpu.health.policy import PolicyError, XidClass


def numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


# NVIDIA's catalogue for Ampere and newer, by immediate action, as the notes of the field have it.
RESTART_APPLICATION = numbers(
    "8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68-72, 75-77, 80, 82-86, 88, 89, 94, 96-105, 126-135, 139"
)
IGNORE = numbers("37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161")
RESET = numbers("46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158")
LINKS = numbers("74, 144-150")
INSPECT = numbers("54, 78, 142, 167, 169")


@pytest.mark.parametrize("number", range(1, 173))
def test_every_xid_is_treated_as_the_catalogue_says(number: int) -> None:
    found = policy.load().class_of(number)
    if number in RESTART_APPLICATION:
        assert found is XidClass.APPLICATION
    elif number in IGNORE:
        assert found is XidClass.IGNORE
    elif number in RESET | {48}:
        assert found is XidClass.RESET
    elif number == 79:
        assert found is XidClass.REBOOT
    elif number in LINKS:
        assert found is XidClass.LINK
    elif number in INSPECT:
        assert found is XidClass.HARDWARE
    elif number == 154:
        assert found is XidClass.REEVALUATE
    else:
        # What the catalogue does not list, or leaves to others, makes no card unhealthy for good.
        assert found in {XidClass.DEGRADED, XidClass.IGNORE} or number == 151


def test_a_site_changes_single_numbers(tmp_path: Path) -> None:
    file = tmp_path / "xids.toml"
    file.write_text('version = 1\nunlisted = "ignore"\n[classes]\nreset = [31]\n[meanings]\n31 = "ours"\n')
    loaded = policy.load(file)
    assert loaded.class_of(31) is XidClass.RESET
    assert loaded.class_of(79) is XidClass.REBOOT
    assert loaded.class_of(999) is XidClass.IGNORE
    assert loaded.meaning(31) == "Xid 31 (ours)"
    assert loaded.meaning(999) == "Xid 999"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version = 2", "version = 1"),
        ("version = ", "not TOML"),
        ("version = 1\n[classes]\nfatal = [3]", "no class 'fatal'"),
        ("version = 1\n[classes]\nreset = 3", "list of numbers"),
        ("version = 1\n[classes]\nreset = [true]", "no number of an Xid"),
        ("version = 1\n[classes]\nreset = [0]", "no number of an Xid"),
        ("version = 1\n[classes]\nreset = [3]\nignore = [3]", "twice"),
        ("version = 1\nclasses = 3", "must be a table"),
        ("version = 1\n[meaning]\n3 = ''", "unknown key 'meaning'"),
        ("version = 1\n[meanings]\nx = ''", "a meaning is"),
        ('version = 1\nunlisted = "bad"', "no class 'bad'"),
    ],
)
def test_a_policy_that_is_wrong_says_what(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "xids.toml"
    file.write_text(text)
    with pytest.raises(PolicyError, match=words) as error:
        policy.load(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_policy_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="can't read"):
        policy.load(tmp_path / "none.toml")
