"""The ledger that remembers gives what a reckoning from nothing gives, whatever came before."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from hypervisor.allocations.ledger import Ledger, promised_on
from hypervisor.model import Allocation, Compute, DeviceRequest, Figure, FigureSource, Resources
from tests import node_values as v

CARDS = {v.uuid(index): v.device(index) for index in range(3)}


def an_allocation(number: int, card: int, tenths: int) -> Allocation:
    found = v.allocation(f"a{number}")
    grant = replace(found.grants[0], gpu_uuid=v.uuid(card), request_share_ppm=tenths * 1000, request_vram_bytes=tenths)
    asked = DeviceRequest(gpu=v.uuid(card), requests=Resources(compute=Compute(percent=Decimal(tenths) / 10)))
    return replace(found, uid=f"uid-{number}", grants=(grant,), spec=replace(found.spec, devices=(asked,)))


def steps() -> st.SearchStrategy[list[list[tuple[int, int, int]]]]:
    one = st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(1, 333))
    return st.lists(st.lists(one, max_size=5, unique_by=lambda each: each[0]), max_size=6)


@given(steps())
def test_it_remembers_nothing_wrong(rounds: list[list[tuple[int, int, int]]]) -> None:
    ledger, made = Ledger(), dict[tuple[int, int, int], Allocation]()
    for wanted in rounds:
        allocations = [made.setdefault(each, an_allocation(*each)) for each in wanted]
        for asked in (allocations, allocations, [*allocations, replace(an_allocation(9, 1, 7), uid="")]):
            assert ledger.promised_on(asked, CARDS) == promised_on(asked, CARDS)


def test_a_card_whose_tflops_change_is_reckoned_anew() -> None:
    asked = an_allocation(1, 0, 100)
    asked = replace(
        asked,
        spec=replace(
            asked.spec,
            devices=(DeviceRequest(gpu=v.uuid(0), requests=Resources(compute=Compute(tflops=Decimal("98.9")))),),
        ),
    )
    ledger = Ledger()
    assert ledger.promised_on([asked], CARDS)[v.uuid(0)].share == promised_on([asked], CARDS)[v.uuid(0)].share
    other = replace(
        CARDS[v.uuid(0)], tflops=Figure(value=989.0625, source=FigureSource.CATALOGUE, observed_at=0.0, stale=False)
    )
    assert ledger.promised_on([asked], {v.uuid(0): other})[v.uuid(0)].share == Fraction(1, 10)
