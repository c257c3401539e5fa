from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.gpu.catalogue import (
    GIBIBYTE,
    Card,
    Catalogue,
    CatalogueError,
    Model,
    normalise,
    part_of_parent,
)
from hypervisor.gpu.formula import RATES, formula_tflops, sm_count
from hypervisor.model import Figure, FigureSource

BUILT_IN = Catalogue.load()
ROWS = BUILT_IN.built_in
MIB = 2**20


def card_of(row: Model, name: str, **changes: object) -> Card:
    """A card as NVML would tell of it: memory a little below the nameplate."""
    told = {
        "name": name,
        "pci_identifier": f"10de:{row.pci_device_ids[0]}" if row.pci_device_ids else "10de:ffff",
        "memory_bytes": int((row.vram_gib or 0) * GIBIBYTE * 0.96),
    }
    return Card(**{**told, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.names[0]} {row.vram_gib}")
def test_every_row_is_reached_by_each_of_its_names(row: Model) -> None:
    for name in row.names:
        rating = BUILT_IN.rate(card_of(row, name), now=1.0)
        assert rating.model is row
        assert (rating.tflops.value, rating.tflops.source) == (row.tflops, FigureSource.CATALOGUE)
        # Without a known PCI id the memory chooses.
        assert BUILT_IN.rate(card_of(row, name, pci_identifier="10de:ffff"), now=1.0).model is row


@given(st.sampled_from(ROWS), st.sampled_from([" Laptop GPU", " with Max-Q Design", " Ti", " D", "X", " 8C"]))
def test_no_row_is_reached_by_the_beginning_of_a_longer_name(row: Model, suffix: str) -> None:
    name = row.names[0] + suffix
    found = BUILT_IN.rate(card_of(row, name), now=1.0).model
    assert found is None or normalise(name) in map(normalise, found.names)
    if "Laptop" in suffix or "Max-Q" in suffix:
        assert found is None


@given(st.sampled_from(ROWS), st.data())
def test_spelling_of_maker_blanks_dashes_and_case_does_not_matter(row: Model, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(row.names))
    spelled = re.sub(r"[ -]", lambda _: data.draw(st.sampled_from([" ", "-", "  "])), name)
    spelled = data.draw(st.sampled_from([spelled, spelled.upper(), spelled.removeprefix("NVIDIA ")]))
    assert BUILT_IN.rate(card_of(row, spelled), now=1.0).model is row


@given(st.text(max_size=40), st.none() | st.integers(-(2**63), 2**64), st.text(max_size=12))
def test_nothing_that_a_driver_says_breaks_the_lookup(name: str, memory: int | None, pci: str) -> None:
    rating = BUILT_IN.rate(Card(name=name, memory_bytes=memory, pci_identifier=pci), now=1.0)
    assert rating.tflops.value is None or rating.tflops.value > 0


@pytest.mark.parametrize(
    ("name", "mebibytes", "pci", "tflops"),
    [
        ("NVIDIA GeForce RTX 3080", 10240, "", 60),
        ("NVIDIA GeForce RTX 3080", 12288, "", 61),
        ("NVIDIA RTX A2000", 6138, "", 32),
        ("NVIDIA RTX A2000", 12288, "", 32),
        ("NVIDIA H20", 97871, "10de:2329", 148),
        ("NVIDIA H20", 143771, "10de:232c", 148),
        ("NVIDIA A800-SXM4-80GB", 81920, "10de:20f3", 312),
        ("NVIDIA H100 PCIe", 81559, "10de:2331", 756),
        ("NVIDIA H100 NVL", 95830, "10de:2321", 835),
        ("NVIDIA H200", 143771, "10de:2335", 989),
        ("Tesla T4", 15360, "10de:1eb8", 65),
        ("NVIDIA B200", 183359, "10de:2901", 2250),
    ],
)
def test_models_of_one_name_and_totals_of_real_drivers(name: str, mebibytes: int, pci: str, tflops: float) -> None:
    card = Card(name=name, memory_bytes=mebibytes * MIB, pci_identifier=pci)
    rating = BUILT_IN.rate(card, now=1.0)
    assert rating.tflops.value == tflops
    assert rating.model is not None
    assert rating.model.vram_gib is not None
    low, high = BUILT_IN.memory_bounds(card)
    assert low <= mebibytes * MIB <= high
    assert abs(mebibytes * MIB / rating.model.vram_bytes - 1) < 0.15  # type: ignore[operator]


def test_memory_bounds_of_a_name_that_two_models_share_take_in_both() -> None:
    low, high = BUILT_IN.memory_bounds(Card(name="NVIDIA GeForce RTX 3080"))
    assert low <= 10 * GIBIBYTE * 0.95
    assert high >= 12 * GIBIBYTE
    assert BUILT_IN.memory_bounds(Card(name="NVIDIA H100 80GB HBM3"))[0] > 0
    assert BUILT_IN.memory_bounds(Card(name="something else")) == (1, 2**44)


# Data sheets, where the formula is to reproduce the table: name, multiprocessors, maximum clock by NVML, capability.
@pytest.mark.parametrize(
    ("name", "clock", "capability"),
    [
        ("Tesla T4", 1590, (7, 5)),
        ("Tesla V100-SXM2-16GB", 1530, (7, 0)),
        ("NVIDIA A10", 1695, (8, 6)),
        ("NVIDIA A40", 1740, (8, 6)),
        ("NVIDIA A30", 1440, (8, 0)),
        ("NVIDIA A100-SXM4-80GB", 1410, (8, 0)),
        ("NVIDIA L4", 2040, (8, 9)),
        ("NVIDIA L40S", 2520, (8, 9)),
        ("NVIDIA H100 80GB HBM3", 1980, (9, 0)),
        ("NVIDIA GeForce RTX 3090", 1695, (8, 6)),
        ("NVIDIA GeForce RTX 4090", 3105, (8, 9)),
        ("NVIDIA GeForce RTX 5090", 2407, (12, 0)),
        ("NVIDIA RTX A6000", 1800, (8, 6)),
        ("NVIDIA RTX 6000 Ada Generation", 2505, (8, 9)),
        ("NVIDIA GeForce GTX 1660 Ti", 1770, (7, 5)),
        ("NVIDIA B200", 1965, (10, 0)),
    ],
)
def test_the_formula_agrees_with_the_table(name: str, clock: int, capability: tuple[int, int]) -> None:
    row = next(row for row in ROWS if name in row.names)
    computed = formula_tflops(name=name, sm_count=row.sm_count, compute_capability=capability, max_sm_clock_mhz=clock)
    assert isinstance(computed, float)
    assert computed == pytest.approx(row.tflops, rel=0.03)


def test_an_unknown_model_is_computed_and_says_so() -> None:
    card = Card(
        name="NVIDIA GeForce RTX 4090 Laptop GPU",
        sm_count=76,
        compute_capability=(8, 9),
        max_sm_clock_mhz=2040,
        memory_bytes=16 * GIBIBYTE,
    )
    rating = BUILT_IN.rate(card, now=7.0)
    assert rating.tflops.source is FigureSource.FORMULA
    assert rating.tflops.value == pytest.approx(79, rel=0.02)
    assert rating.tflops.observed_at == 7.0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"compute_capability": None}, "compute capability"),
        ({"compute_capability": (42, 0)}, "42.0"),
        ({"sm_count": None}, "multiprocessors"),
        ({"max_sm_clock_mhz": None}, "clock"),
    ],
)
def test_what_can_not_be_computed_is_absent_with_the_reason(changes: dict[str, object], why: str) -> None:
    known = {"name": "NVIDIA New", "sm_count": 10, "compute_capability": (9, 0), "max_sm_clock_mhz": 1000}
    figure = BUILT_IN.rate(Card(**{**known, **changes}), now=1.0).tflops  # type: ignore[arg-type]
    assert figure.value is None
    assert why in figure.absent_reason
    assert "NVIDIA New" in figure.absent_reason


def test_a_vgpu_promises_nothing() -> None:
    figure = BUILT_IN.rate(Card(name="NVIDIA A40", memory_bytes=8 * GIBIBYTE, virtual=True), now=1.0).tflops
    assert figure.value is None
    assert "vGPU" in figure.absent_reason


@given(st.sampled_from(sorted(RATES)), st.integers(1, 300))
def test_multiprocessors_from_cores(capability: tuple[int, int], count: int) -> None:
    assert sm_count(count * RATES[capability].cores_per_sm, capability) == count


def test_cores_that_are_no_whole_multiprocessors_say_nothing() -> None:
    assert sm_count(100, (9, 0)) is None
    assert sm_count(None, (9, 0)) is None
    assert sm_count(128, None) is None


def test_part_of_parent() -> None:
    whole = Figure(989.0, FigureSource.CATALOGUE, 1.0)
    part = part_of_parent(whole, 16, 132)
    assert part.value == pytest.approx(989 * 16 / 132)
    assert part.source is FigureSource.CATALOGUE
    assert part_of_parent(whole, None, 132).value is None
    assert part_of_parent(Figure.absent("unknown"), 16, 132).absent_reason == "unknown"


# ---- a site's own file ----


def site(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "site.toml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "text",
    [
        '[[model]]\nnames = ["NVIDIA B300 SXM6 AC"]\ntflops = 2500',
        '[[model]]\npci_device_ids = ["3182"]\ntflops = 2500',
        '[[model]]\npci_device_ids = ["10DE:3182"]\ntflops = 2500.0',
    ],
)
def test_an_override_by_name_or_pci_id_wins(tmp_path: Path, text: str) -> None:
    catalogue = Catalogue.load(site(tmp_path, text))
    card = Card(name="NVIDIA B300 SXM6 AC", pci_identifier="10de:3182", memory_bytes=269 * GIBIBYTE)
    figure = catalogue.rate(card, now=1.0).tflops
    assert (figure.value, figure.source) == (2500, FigureSource.OVERRIDE)
    assert catalogue.rate(Card(name="Tesla T4"), now=1.0).tflops.value == 65


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[model]]\nnames = ["A"]\ntflops = "many"', ("model[0].tflops", "float")),
        ('[[model]]\nnames = ["A"]\ntflops = -1', ("model[0].tflops", "> 0")),
        ('[[model]]\nnames = ["A"]\ntflops = 1\nspeed = 3', ("model[0]", "speed", "tflops")),
        ('[[model]]\nnames = ["A"]', ("tflops",)),
        ("[[model]]\ntflops = 1", ("model[0]", "names", "pci_device_ids", "2330")),
        ('[[model]]\npci_device_ids = ["123"]\ntflops = 1', ("pci_device_ids",)),
        ("model = 3", ("model",)),
        ("", ("model",)),
        ("not toml", ("not TOML",)),
    ],
)
def test_a_wrong_file_is_told_with_file_key_and_what_is_allowed(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    file = site(tmp_path, text)
    with pytest.raises(CatalogueError) as raised:
        Catalogue.load(file)
    message = str(raised.value)
    assert str(file) in message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"can't read .*nowhere.toml"):
        Catalogue.load(tmp_path / "nowhere.toml")
