"""Which drivers a CUDA version runs on; pure.

Minimum driver versions for Linux x86-64 are those of the first release of each version in NVIDIA's CUDA release notes
("CUDA Toolkit and Corresponding Driver Versions"; all rows up to 13.1 were compared with the table of the 13.2 notes;
13.2 is the driver in the name of its installer, cuda_13.2.0_595.45.04_linux.run). The least drivers of a major version
are those of NVIDIA's page on minor-version compatibility: from 580, from 525, and 450.80.02 for 11.x. Within a major
version from 11 on an older driver of that major's first release runs all its minors, apart from what needs a newer one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# CUDA (major, minor) -> the driver that came with it; an older one than this lacks what that version added.
_DRIVERS: Mapping[tuple[int, int], tuple[int, ...]] = {
    (10, 0): (410, 48),
    (10, 1): (418, 39),
    (10, 2): (440, 33),
    (11, 0): (450, 36, 6),
    (11, 1): (455, 23),
    (11, 2): (460, 27, 3),
    (11, 3): (465, 19, 1),
    (11, 4): (470, 42, 1),
    (11, 5): (495, 29, 5),
    (11, 6): (510, 39, 1),
    (11, 7): (515, 43, 4),
    (11, 8): (520, 61, 5),
    (12, 0): (525, 60, 13),
    (12, 1): (530, 30, 2),
    (12, 2): (535, 54, 3),
    (12, 3): (545, 23, 6),
    (12, 4): (550, 54, 14),
    (12, 5): (555, 42, 2),
    (12, 6): (560, 28, 3),
    (12, 8): (570, 26),
    (12, 9): (575, 51, 3),
    (13, 0): (580, 65, 6),
    (13, 1): (590, 44, 1),
    (13, 2): (595, 45, 4),
}
OLDEST_CUDA = min(_DRIVERS)
# Minor-version compatibility: the least driver for any minor of a major.
_MAJOR_DRIVERS: Mapping[int, tuple[int, ...]] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_TERM = re.compile(r"(?P<name>cuda|driver)(?P<operator>>=|<=|>|<|=)(?P<version>\d+(?:\.\d+)*)$")


@dataclass(frozen=True, slots=True)
class CudaRequirement:
    """What an image asks of the driver. cuda is "12.4", or "" when it does not say; constraint as in
    NVIDIA_REQUIRE_CUDA: terms joined by "," all hold, alternatives are parted by blanks."""

    origin: str
    cuda: str = ""
    constraint: str = ""
    compatibility_libraries: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, origin: str) -> CudaRequirement | None:
        """Of an image or a process, by its variables; None when they say nothing of CUDA."""
        cuda = environment.get("CUDA_VERSION", "")
        match = re.match(r"\d+\.\d+", cuda)
        constraint = environment.get("NVIDIA_REQUIRE_CUDA", "")
        if environment.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
            constraint = ""
        if match is None and not constraint:
            return None
        return cls(
            origin,
            match.group() if match else "",
            constraint,
            "compat" in environment.get("LD_LIBRARY_PATH", ""),
        )


def version(text: str) -> tuple[int, ...]:
    """Numbers of a version: "535.54.03" gives (535, 54, 3). Empty when there are none."""
    match = _NUMBER.search(text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def needed_driver(cuda: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The least driver that starts this CUDA version, and the one that has all it added; None when not known."""
    wanted = version(cuda)[:2]
    if len(wanted) < 2:
        return None
    exact = _DRIVERS.get((wanted[0], wanted[1]))
    least = _MAJOR_DRIVERS.get(wanted[0], exact)
    if least is None:
        return None
    # The very first minor came with a driver that is older than what the later ones take.
    return min(least, exact or least), exact or least


def unmet(constraint: str, *, driver: str, cuda: str) -> str:
    """The first alternative of a constraint as it fails; "" when one of them holds or none can be judged.

    Terms about brand and compute capability say which driver branch a data-centre card may have instead; they are taken
    as met, so that the verdict rests on versions alone.
    """
    alternatives = constraint.split()
    told: list[str] = []
    for alternative in alternatives:
        missing = _unmet_terms(alternative.split(","), driver=driver, cuda=cuda)
        if not missing:
            return ""
        told.append(missing)
    return told[0] if told else ""


def _unmet_terms(terms: list[str], *, driver: str, cuda: str) -> str:
    have = {"driver": version(driver), "cuda": version(cuda)}
    for term in terms:
        match = _TERM.match(term)
        if match is None:
            continue
        found, wanted = have[match["name"]], version(match["version"])
        if not found:
            continue
        width = max(len(found), len(wanted))
        left, right = _padded(found, width), _padded(wanted, width)
        holds = {
            ">=": left >= right,
            "<=": left <= right,
            ">": left > right,
            "<": left < right,
            "=": left[: len(wanted)] == right[: len(wanted)],
        }[match["operator"]]
        if not holds:
            return f"{term} with {match['name']} {'.'.join(map(str, found))}"
    return ""


def _padded(numbers: tuple[int, ...], width: int) -> tuple[int, ...]:
    return numbers + (0,) * (width - len(numbers))
