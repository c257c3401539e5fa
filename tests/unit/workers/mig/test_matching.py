"""Names and ids of templates, the best fit, and the reasons of a refusal."""

from __future__ import annotations

from fractions import Fraction

import pytest

from hypervisor.workers.mig.matching import Match, NoMatch, Wanted, match, named
from tests.unit.workers.mig.cards import GIB, a_geometry


@pytest.mark.parametrize(
    "name", ["1g.10gb", "mig-1g.10gb", "MIG 1g.10gb", "1G10GB", "1g-10gb", "nv-h100-1g.10gb", "19", " 1g.10gb "]
)
def test_every_way_to_write_a_profile(name: str) -> None:
    found = named(a_geometry(), name)
    assert found is not None
    assert found.profile_id == 19


def test_an_id_is_the_drivers_and_never_known_beforehand() -> None:
    geometry = a_geometry()
    assert named(geometry, "15") is not None
    other = a_geometry(profiles=tuple(each for each in geometry.profiles if each.profile_id != 15))
    assert named(other, "15") is None


@pytest.mark.parametrize(
    ("wanted", "profile"),
    [
        (Wanted(memory_bytes=8 * GIB), "1g.10gb"),
        (Wanted(memory_bytes=15 * GIB), "1g.20gb"),
        (Wanted(share=Fraction(1, 5), memory_bytes=15 * GIB), "2g.20gb"),
        (Wanted(tflops=Fraction(400)), "3g.40gb"),
        (Wanted(share=Fraction(47, 100)), "4g.40gb"),
        (Wanted(memory_bytes=60 * GIB), "7g.80gb"),
        (Wanted(), "1g.10gb"),
    ],
)
def test_the_profile_that_wastes_the_least(wanted: Wanted, profile: str) -> None:
    found = match(a_geometry(), wanted)
    assert isinstance(found, Match)
    assert found.profile.name == profile


@pytest.mark.parametrize(
    ("geometry", "wanted", "reason"),
    [
        (a_geometry(), Wanted(template="9g.90gb"), "no profile '9g.90gb'; it has 1g.10gb"),
        (a_geometry(), Wanted(memory_bytes=100 * GIB), "7g.80gb has 79.2Gi, and 100Gi are asked for"),
        (a_geometry((5, 0), (9, 4)), Wanted(template="2g.20gb"), "2g.20gb has no place left"),
        (a_geometry(enabled=False), Wanted(), "switch it on with"),
        (a_geometry(enabled=False, architecture="Ampere"), Wanted(), "takes a reset of the card"),
        (a_geometry(enabled=False, pending=True), Wanted(), "waits for a reset"),
        (a_geometry(complete=False), Wanted(), "could not be read"),
        (a_geometry(tflops=0.0), Wanted(tflops=Fraction(10)), "100.0 % of the card, and 200.0 %"),
    ],
)
def test_a_refusal_says_why(geometry: object, wanted: Wanted, reason: str) -> None:
    found = match(geometry, wanted)  # type: ignore[arg-type]
    assert isinstance(found, NoMatch)
    assert reason in "; ".join(found.reasons)
