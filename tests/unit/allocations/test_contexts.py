"""What a CUDA context is assumed to need: by architecture, then as measured, and over restarts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypervisor.allocations.contexts import LARGEST_BYTES, ContextSizes, estimate
from tests.unit.allocations.builders import device, inventory, uuid_of

MIB = 2**20


def test_the_estimate_is_safe_for_every_simulated_model_and_the_largest_for_unknown_ones() -> None:
    """Contexts as measured on real cards stand in the simulator's models."""
    simulated = {"Turing": 105, "Ampere": 420, "Ada": 450, "Hopper": 500}
    assert all(size * MIB * 1.2 <= estimate(name) for name, size in simulated.items())
    assert estimate("") == estimate("Rubin") == LARGEST_BYTES


def test_what_was_measured_takes_the_place_of_the_estimate_and_only_grows(tmp_path: Path) -> None:
    sizes = ContextSizes(tmp_path / "contexts.json")
    assert sizes.bytes_for(uuid_of(0)) is None
    sizes.see(inventory(device(0), device(1)))
    assert sizes.bytes_for(uuid_of(0)) == estimate("hopper")
    sizes.learn(uuid_of(0), 500 * MIB)
    sizes.learn(uuid_of(0), 400 * MIB)
    assert sizes.bytes_for(uuid_of(1)) == 500 * MIB  # the same model and driver
    sizes.learn(uuid_of(0), 10_000 * MIB)
    assert sizes.bytes_for(uuid_of(0)) == 2 * estimate("hopper")  # nobody shuts small Pods out for ever


def test_it_holds_over_a_restart_and_not_for_another_driver(tmp_path: Path) -> None:
    seen = inventory(device(0))
    before = ContextSizes(tmp_path / "contexts.json")
    before.see(seen)
    before.learn(uuid_of(0), 500 * MIB)
    after = ContextSizes(tmp_path / "contexts.json")
    after.see(seen)
    assert after.bytes_for(uuid_of(0)) == 500 * MIB
    after.see(replace(seen, system=replace(seen.system, driver_version="999.0")))
    assert after.bytes_for(uuid_of(0)) == estimate("hopper")


def test_a_file_that_is_none_or_can_not_be_written_is_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "contexts.json"
    path.write_text("not a file of ours")
    assert ContextSizes(path).bytes_for(uuid_of(0)) is None
    nowhere = ContextSizes(tmp_path / "missing" / "contexts.json")
    nowhere.see(inventory(device(0)))
    nowhere.learn(uuid_of(0), 500 * MIB)
    assert nowhere.bytes_for(uuid_of(0)) == 500 * MIB
