"""The YAML of a machine: what is read, and what each mistake is told as."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypervisor.simulation.description import parse_machine
from hypervisor.simulation.document import DocumentError
from hypervisor.simulation.models import load_model, model_names
from hypervisor.simulation.profiles import load_description, load_profile, profile_names

GOOD = """\
version: 1
driver: {version: "580.65.06", cuda: 13000}
host: {numa_nodes: 2, cpus_per_node: 4}
gpus:
  - {count: 2, profile: h100-sxm-80gb, numa: [0, 1], bus: ["18", "2a"], mps: true}
  - count: 1
    profile: t4
    memory: 1Gi
    context: 64Mi
kernels:
  - {match: "sim_*", ns: 2000, ns_per_block: 5}
sampling: {window_ms: 100}
faults:
  - {at: 5s, gpu: 1, xid: 79, lost: true, for: 2s}
"""


def parse(text: str):
    return parse_machine(text, "m.yaml", profile="m")


def test_everything_is_read() -> None:
    spec = parse(GOOD)
    assert [gpu.name for gpu in spec.gpus] == ["NVIDIA H100 80GB HBM3"] * 2 + ["Tesla T4"]
    assert [gpu.numa_node for gpu in spec.gpus] == [0, 1, 0]
    assert [gpu.bus_id for gpu in spec.gpus[:2]] == ["00000000:18:00.0", "00000000:2A:00.0"]
    assert spec.gpus[1].cpu_affinity[0] == 0b11110000
    assert spec.gpus[0].mps == 1
    assert spec.gpus[2].memory_total_bytes == 1 << 30
    assert spec.gpus[2].context_bytes == 64 << 20
    assert (spec.rules[0].match, spec.rules[0].ns, spec.rules[0].ns_per_block) == ("sim_*", 2000, 5)
    assert spec.system.window_ns == 100_000_000
    assert spec.system.nvml_version == "13.580.65.06"
    fault = spec.faults[0]
    assert (fault.gpu, fault.value, fault.at_ns, fault.until_ns) == (1, 79, 5 * 10**9, 7 * 10**9)
    assert len({gpu.uuid for gpu in spec.gpus}) == len({gpu.pci_bus for gpu in spec.gpus}) == 3


def test_identity_follows_the_seed_and_nothing_else() -> None:
    again = parse_machine(GOOD, "elsewhere.yaml", profile="m")
    other = parse_machine(GOOD, "m.yaml", profile="m", seed="node-2")
    assert [gpu.uuid for gpu in again.gpus] == [gpu.uuid for gpu in parse(GOOD).gpus]
    assert not {gpu.uuid for gpu in other.gpus} & {gpu.uuid for gpu in again.gpus}
    assert other.gpus[0].serial != again.gpus[0].serial


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("version: 1\n", "version: 2\n", 1, ["version", "from 1 to 1", "'2'"]),
        ("version: 1\n", "", 1, ["the key 'version' is missing"]),
        ("version: 1\n", "version: 1\nversion: 1\n", 2, ["version", "given twice"]),
        ('driver: {version: "580.65.06", cuda: 13000}\n', "", 1, ["the key 'driver' is missing"]),
        ("driver: {", "drivers: {", 2, ["drivers: is not a key here", "driver,"]),
        ("count: 2", "cont: 2", 5, ["gpus[0].cont: is not a key here", "count"]),
        ("sampling:", "samplings:", 12, ["samplings", "is not a key here", "sampling"]),
        ("window_ms: 100", "window_ms: fast", 12, ["sampling.window_ms", "from 10 to 1000", "'fast'"]),
        ("window_ms: 100", "jitter_ms: 10", 12, ["sampling.jitter_ms", "allowed are window_ms"]),
        ("window_ms: 100", "window_ms: 100, jitter_ms: 1", 12, ["sampling.jitter_ms", "allowed are window_ms"]),
        ("count: 2", "count: 17", 5, ["gpus[0].count", "from 1 to 16"]),
        ("count: 2", "count: 15", 5, ["gpus[0].numa", "has 2 entries for 15 GPUs"]),
        ("profile: t4", "profile: t5", 7, ["gpus[1].profile", "must be one of", "rtx4090", "'t5'"]),
        ("numa: [0, 1]", "numa: [0, 2]", 5, ["gpus[0].numa[1]", "from 0 to 1"]),
        ('"2a"', '"zz"', 5, ["gpus[0].bus[1]", "hexadecimal"]),
        ('"2a"', '"18"', 5, ["gpus[0].bus[1]", "has a GPU already"]),
        ("memory: 1Gi", "memory: 1", 8, ["gpus[1].memory", "bytes"]),
        ("memory: 1Gi", "memory: much", 8, ["gpus[1].memory", "80Gi"]),
        ("mps: true", "mps: maybe", 5, ["gpus[0].mps", "true or false"]),
        ("ns: 2000", "ns: -1", 11, ["kernels[0].ns", "whole number"]),
        ("ns: 2000, ns_per_block: 5", "tflops: 600", 11, ["kernels[0].tflops", "is not a key here"]),
        (", ns: 2000, ns_per_block: 5", "", 11, ["kernels[0]", "must say how long"]),
        ("gpu: 1, xid", "gpus: 1, xid", 14, ["faults[0].gpus", "is not a key here", "gpu,"]),
        ("for: 2s", "for: 0s", 14, ["faults[0].for", "at least 1ns"]),
        ("xid: 79, lost: true", "set: link18.active, value: 0", 14, ["faults[0].set", "link<n>.active"]),
        ("gpu: 1, xid: 79, lost: true", "gpu: 2, set: link0.active, value: 0", 14, ["faults[0].set", "0 NVLinks"]),
        ("at: 5s", "at: 5", 14, ["faults[0].at", "a time with a unit"]),
        ("at: 5s", "at: 1001000000000000000m", 14, ["faults[0].at", "at most 1000 days"]),
        ("at: 5s", f"at: {'9' * 400}s", 14, ["faults[0].at", "a time with a unit"]),
        ("memory: 1Gi", f"memory: {'9' * 400}", 8, ["gpus[1].memory", "80Gi"]),
        ("memory: 1Gi", "memory: 999999999999999999Gi", 8, ["gpus[1].memory", "bytes"]),
        ("gpu: 1", "gpu: 3", 14, ["faults[0].gpu", "from 0 to 2"]),
        ("xid: 79, lost: true", "return: 3", 14, ["faults[0]", "needs 'call'"]),
        ("gpus:\n", "gpus: &a\n", None, []),
        ('"580.65.06"', '"٥٨٠.1"', 2, ["driver.version", "numbers and dots"]),
        ('"580.65.06"', '"580."', 2, ["driver.version", "numbers and dots"]),
        ('"580.65.06"', '"newest"', 2, ["driver.version", "numbers and dots"]),
        ("cpus_per_node: 4", "cpus_per_node: 1024", 3, ["host", "more than 1024 CPUs"]),
        ("host: {", "host: [", 3, ["is not YAML"]),
    ],
)
def test_a_mistake_is_told_with_line_key_and_what_is_allowed(
    old: str, new: str, line: int | None, words: list[str]
) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new)
    if line is None:
        assert parse(text) == parse(GOOD)
        return
    with pytest.raises(DocumentError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith(f"m.yaml:{line}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("nvlink", "words"),
    [
        ("{topology: ring, links_per_gpu: 4}", ["nvlink.topology", "nvswitch, pairs, mesh"]),
        ("{topology: nvswitch}", ["nvlink", "'links_per_gpu' is missing"]),
        ("{topology: nvswitch, links_per_gpu: 12}", ["nvlink", "t4 has no NVLink"]),
        ("{topology: none, links_per_gpu: 12}", ["nvlink.links_per_gpu", "is not a key here"]),
    ],
)
def test_impossible_links_on_a_mixed_machine(nvlink: str, words: list[str]) -> None:
    with pytest.raises(DocumentError) as caught:
        parse(GOOD + f"nvlink: {nvlink}\n")
    assert all(word in str(caught.value) for word in words)


def h100s(count: int, nvlink: str) -> str:
    return (
        'version: 1\ndriver: {version: "580.65.06", cuda: 13000}\n'
        f"gpus: [{{count: {count}, profile: h100-sxm-80gb}}]\nnvlink: {nvlink}\n"
    )


@pytest.mark.parametrize(
    ("count", "nvlink", "words"),
    [
        (3, "{topology: pairs, links_per_gpu: 4}", ["even number of GPUs, not 3"]),
        (4, "{topology: mesh, links_per_gpu: 4}", ["multiple of 3"]),
        (1, "{topology: mesh, links_per_gpu: 4}", ["nvlink.links_per_gpu"]),
        (2, "{topology: nvswitch, links_per_gpu: 18, version: 3}", ["has NVLink 4, not 3"]),
        (2, "{topology: nvswitch, links_per_gpu: 2, switches: 3}", ["at most 2 switches"]),
        (2, "{topology: nvswitch, links_per_gpu: 19}", ["from 1 to 18"]),
        (
            2,
            "{topology: pairs, links_per_gpu: 4, inactive: [{gpu: 0, links: [4]}]}",
            ["inactive[0].links[0]", "from 0 to 3"],
        ),
    ],
)
def test_impossible_links(count: int, nvlink: str, words: list[str]) -> None:
    with pytest.raises(DocumentError) as caught:
        parse(h100s(count, nvlink))
    assert all(word in str(caught.value) for word in words)


def test_links_join_only_gpus_of_one_generation() -> None:
    mixed = h100s(2, "{topology: mesh, links_per_gpu: 12}").replace(
        "gpus: [", "gpus: [{count: 1, profile: a100-sxm-80gb}, "
    )
    with pytest.raises(DocumentError, match=r"m.yaml:4: nvlink: a100-sxm-80gb has NVLink 3 and h100-sxm-80gb NVLink 4"):
        parse(mixed)


def test_a_level_is_named_once() -> None:
    pairs = "[{gpus: [0, 1], level: pix}, {gpus: [1, 0], level: sys}]"
    with pytest.raises(DocumentError, match=r"pcie.pairs\[1\].gpus: the level between GPUs 0 and 1 is given already"):
        parse(GOOD + f"pcie: {{pairs: {pairs}}}\n")


def test_an_instance_has_no_more_memory_than_its_gpu() -> None:
    small = h100s(1, "{topology: none}").replace("count: 1,", "count: 1, memory: 24Gi,")
    with pytest.raises(DocumentError, match=r"mig.gpu0.instances\[0\]: 3g.40gb has 40448Mi of memory"):
        parse(small + "mig: {gpu0: {mode: on, instances: [3g.40gb]}}\n")


def test_mig_is_a_mode_of_cards_that_have_it() -> None:
    spec = parse(GOOD + "mig: {gpu0: {mode: on}}\n")
    assert [gpu.mig_mode for gpu in spec.gpus] == [1, 0, 0]
    with pytest.raises(DocumentError, match=r"mig.gpu2.mode: Tesla T4 has no MIG"):
        parse(GOOD + "mig: {gpu2: {mode: on}}\n")
    with pytest.raises(DocumentError, match=r"must be one of gpu0 to gpu2"):
        parse(GOOD + "mig: {gpu3: {mode: on}}\n")


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_is_a_machine(name: str) -> None:
    spec = load_profile(name)
    assert spec.system.profile == name
    assert load_description(name) == spec


def test_the_models_are_the_cards_they_say() -> None:
    total_mib = {name: load_model(name).gpu.memory_total_bytes >> 20 for name in model_names()}
    assert total_mib == {
        "a100-sxm-80gb": 81920,
        "a30": 24576,
        "h100-sxm-80gb": 81559,
        "h200-sxm-141gb": 143771,
        "l40s": 46068,
        "rtx4090": 24564,
        "t4": 15360,
    }


def test_a_profile_that_is_not_there(tmp_path) -> None:
    with pytest.raises(DocumentError, match=r"h200: is no profile; there are a100-sxm-80gb, .*, or name a YAML file"):
        load_description("h200")
    with pytest.raises(DocumentError, match="can't be read: No such file"):
        load_description(str(tmp_path / "missing.yaml"))
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DocumentError, match="is not UTF-8"):
        load_description(str(binary))


def mistake(text: str) -> str:
    """What is wrong with a description; nothing but a DocumentError may come out."""
    try:
        parse(text)
    except DocumentError as error:
        return str(error)
    return ""


@given(st.text(max_size=200))
def test_any_text_is_a_machine_or_one_error(text: str) -> None:
    assert "\n" not in mistake(text)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, len(GOOD)),
    st.integers(0, 12),
    st.sampled_from(["", "{", "[", "]", ":", " ", "\n", "*a", "&a", "!!int", "-", "0x", "1e9"]),
)
def test_a_damaged_description_is_a_machine_or_one_error(at: int, length: int, insert: str) -> None:
    assert "\n" not in mistake(GOOD[:at] + insert + GOOD[at + length :])


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(DocumentError):
        parse("gpus: " + "[" * 5000)
