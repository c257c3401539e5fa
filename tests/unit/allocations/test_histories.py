"""Random histories of grants, changes, releases and restarts against a plain model."""

from __future__ import annotations

import shutil
import tempfile
from fractions import Fraction
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hypervisor.model import Refusal, RefusalReason
from tests.unit.allocations.builders import CARD_BYTES, GIB, Node, device, inventory, named, percent, request

STOCK = inventory(device(0), device(1))
NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
GPUS = st.sampled_from(["0", "1"])
# Figures whose sums meet the card exactly, or miss it by one.
PERCENTS = st.sampled_from([1, 25, 33, 34, 49, 50, 51, 100])
GIBIBYTES = st.sampled_from([1, 20, 26, 27, 39, 40, 41, 80])


class Histories(RuleBasedStateMachine):
    """The model: by name, GPU, percent and GiB. A grant is right when both sums fit, and only then."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.node = Node(self.root)
        self.allocations = self.node.start()
        self.model: dict[str, tuple[str, int, int]] = {}
        self.sequence = 1

    def fits(self, gpu: str, share: int, size: int, *, but: str) -> bool:
        others = [entry for name, entry in self.model.items() if entry[0] == gpu and name != but]
        return sum(entry[1] for entry in others) + share <= 100 and sum(entry[2] for entry in others) + size <= 80

    @rule(name=NAMES, gpu=GPUS, share=PERCENTS, size=GIBIBYTES)
    def allocate(self, name: str, gpu: str, share: int, size: int) -> None:
        spec = named(name, request(gpu, compute=percent(share), vram=size * GIB))
        known = self.model.get(name)
        try:
            _, existed = self.allocations.allocate(spec, STOCK)
        except Refusal as refusal:
            exists = refusal.reason is RefusalReason.ALLOCATION_EXISTS
            wrong = known == (gpu, share, size) if known else self.fits(gpu, share, size, but=name)
            if wrong or exists != (known is not None):
                raise
        else:
            if known is None and not self.fits(gpu, share, size, but=name):
                raise AssertionError("granted more than there is")
            if known not in (None, (gpu, share, size)):
                raise AssertionError("granted another allocation under the same name")
            if existed != (known is not None):
                raise AssertionError("took a new allocation for an old one, or the other way round")
            self.model[name] = (gpu, share, size)

    @rule(name=NAMES, share=PERCENTS)
    def change(self, name: str, share: int) -> None:
        known = self.model.get(name)
        try:
            self.allocations.update_limits(name, (request(compute=percent(share)),), STOCK, expected=None)
        except Refusal:
            if known is not None and (share <= known[1] or self.fits(known[0], share, 0, but=name)):
                raise
        else:
            if known is None:
                raise AssertionError("changed what is not there")
            self.model[name] = (known[0], share, known[2])

    @rule(name=NAMES)
    def release(self, name: str) -> None:
        try:
            self.allocations.release(name)
        except Refusal:
            if name in self.model:
                raise
        else:
            del self.model[name]

    @rule()
    def step(self) -> None:
        self.sequence += 1
        self.allocations.step(inventory(device(0), device(1), sequence=self.sequence))

    @rule()
    def restart(self) -> None:
        before = self.node.contents()
        self.allocations.close()
        self.allocations = self.node.start()
        assert self.node.contents() == before

    @invariant()
    def memory_disk_and_model_agree(self) -> None:
        if not hasattr(self, "allocations"):
            return
        held = {
            entry.spec.allocation_id: (
                str(entry.grants[0].gpu_index),
                entry.grants[0].limit_share_ppm // 10_000,
                entry.grants[0].request_vram_bytes // GIB,
            )
            for entry in self.allocations.all
        }
        assert held == self.model
        uids = {entry.uid for entry in self.allocations.all}
        assert {path.stem for path in self.node.records.glob("*.json")} == uids
        assert {path.name for path in (self.node.base / "by-uid").iterdir()} == uids
        for gpu in ("0", "1"):
            mine = [entry for entry in self.allocations.all if str(entry.grants[0].gpu_index) == gpu]
            assert sum(Fraction(entry.grants[0].request_share_ppm, 10**6) for entry in mine) <= 1
            assert sum(entry.grants[0].request_vram_bytes for entry in mine) <= CARD_BYTES

    def teardown(self) -> None:
        if hasattr(self, "allocations"):
            self.allocations.close()
            shutil.rmtree(self.root)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
