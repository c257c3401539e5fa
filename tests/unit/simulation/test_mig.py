"""Layouts of MIG instances: what fits, what is refused, and that Python and the C core agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypervisor.simulation._machine import ffi, lib
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypervisor.simulation import machine as machines
from hypervisor.simulation.description import parse_machine
from hypervisor.simulation.document import DocumentError
from hypervisor.simulation.mig import places
from hypervisor.simulation.models import load_model, model_names

MACHINE = """\
version: 1
driver: {{version: "580.65.06", cuda: 13000}}
gpus: [{{count: 1, profile: {model}}}]
mig: {{gpu0: {{mode: {mode}, instances: {instances}}}}}
"""
WITH_MIG = [name for name in model_names() if load_model(name).gpu.mig_supported]


def laid_out(instances: str, model: str = "h100-sxm-80gb", mode: str = "on") -> list[tuple[str, int, tuple[int, ...]]]:
    spec = parse_machine(MACHINE.format(model=model, mode=mode, instances=instances), "m.yaml", profile="m")
    table = spec.gpus[0].mig_profiles
    return [(table[one.profile].name, one.start, one.compute) for one in spec.instances[0]]


@pytest.mark.parametrize(
    ("instances", "expected"),
    [
        ("[3g.40gb, 2g.20gb, 1g.10gb]", [("3g.40gb", 0, (3,)), ("2g.20gb", 4, (2,)), ("1g.10gb", 6, (1,))]),
        ("[4g.40gb, 3g.40gb]", [("4g.40gb", 0, (4,)), ("3g.40gb", 4, (3,))]),
        ("[1g.20gb, 1g.20gb, 1g.20gb, 1g.20gb]", [("1g.20gb", at, (1,)) for at in (0, 2, 4, 6)]),
        ("[{profile: 1g.10gb, start: 2}, 2g.20gb]", [("1g.10gb", 2, (1,)), ("2g.20gb", 0, (2,))]),
        ("[{profile: 3g.40gb, compute: [1, 2]}]", None),
        ("[{profile: 3g.40gb, compute: [2, 1]}]", [("3g.40gb", 0, (2, 1))]),
        ("[7g.80gb]", [("7g.80gb", 0, (7,))]),
    ],
)
def test_instances_lie_where_they_break_the_least(
    instances: str, expected: list[tuple[str, int, tuple[int, ...]]] | None
) -> None:
    if expected is None:
        with pytest.raises(DocumentError, match=r"2 more have no place"):
            laid_out(instances)
    else:
        assert laid_out(instances) == expected


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        ("[8g.80gb]", "must be one of 1g.10gb, 1g.10gb\\+me"),
        ("[4g.40gb, 4g.40gb]", "at most 1 instances of 4g.40gb"),
        ("[{profile: 1g.10gb, start: 2}, 4g.40gb]", "4g.40gb has no place beside 1g.10gb at slice 2"),
        ("[{profile: 3g.40gb, start: 1}]", "3g.40gb may begin at slice 0, 4, not 1"),
        ("[3g.40gb, {profile: 2g.20gb, start: 2}]", "2g.20gb at slice 2 overlaps 3g.40gb at slice 0"),
        ("[7g.80gb, 1g.10gb]", "1g.10gb has no place beside 7g.80gb at slice 0"),
        ("[{profile: 1g.10gb, size: 2}]", "is not a key here"),
        ("3g.40gb", "must be a list"),
    ],
)
def test_impossible_layouts_are_refused_with_line_and_key(instances: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message) as refused:
        laid_out(instances)
    assert refused.value.line == 4
    assert refused.value.key.startswith("mig.gpu0.instances")


def test_instances_need_the_mode_and_a_model_that_has_it() -> None:
    with pytest.raises(DocumentError, match="needs 'mode: on'"):
        laid_out("[1g.10gb]", mode="off")
    with pytest.raises(DocumentError, match="Tesla T4 has no MIG"):
        laid_out("[1g.10gb]", model="t4")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    model=st.sampled_from(WITH_MIG),
    choices=st.lists(st.integers(0, 6), max_size=10),
    drops=st.lists(st.integers(0, 7), max_size=6),
)
def test_the_core_places_instances_as_descriptions_do(
    tmp_path: Path, model: str, choices: list[int], drops: list[int]
) -> None:
    """A random history of creations and deletions: same places, same refusals, same room."""
    gpu = load_model(model).gpu
    path = tmp_path / "machine"
    path.unlink(missing_ok=True)
    machines.create(path, parse_machine(MACHINE.format(model=model, mode="on", instances="[]"), "m.yaml", profile="m"))
    out, row = ffi.new("struct sim_machine **"), ffi.new("uint32_t *")
    assert lib.sim_machine_attach(str(path).encode(), out) == lib.SIM_OK
    machine = out[0]
    rows: dict[int, tuple[int, int]] = {}  # row -> profile, start
    try:
        for step, choice in enumerate(choices):
            which = choice % gpu.mig_profile_count
            profile = gpu.mig_profiles[which]
            taken = 0
            for other, start in rows.values():
                taken |= ((1 << gpu.mig_profiles[other].memory_slices) - 1) << start
            free = (
                places(gpu, profile, taken) if sum(other == which for other, _ in rows.values()) < profile.most else []
            )
            assert (lib.sim_mig_remaining(machine, 0, which) > 0) == bool(free)
            status = lib.sim_mig_create(machine, 0, which, lib.SIM_NONE, row)
            assert status == (lib.SIM_OK if free else lib.SIM_NO_PLACE)
            if free:
                instance = machine.gpu[0].instances[row[0]]
                assert instance.start == free[0]
                rows[row[0]] = (which, free[0])
            if step < len(drops) and drops[step] in rows:
                assert lib.sim_mig_destroy(machine, 0, drops[step]) == lib.SIM_OK
                del rows[drops[step]]
        ids = [machine.gpu[0].instances[each].id for each in rows]
        assert len(set(ids)) == len(ids)
    finally:
        lib.sim_machine_detach(machine)
