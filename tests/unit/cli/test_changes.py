"""`hypervisor allocate`, `set-limits` and `release`: what the node is asked, and what people are told."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from hypervisor.model import Compute, DeviceRequest, IsolationMode, Owner, OwnerKind, Resources
from tests import builders


def test_allocate_asks_for_exactly_what_was_typed(node, cli) -> None:
    outcome = cli(
        *("allocate", "mine", "--gpu", "0", "--compute", "12.5%", "--vram", "1.5Gi"),
        *("--compute-request", "5%", "--vram-request", "1Gi", "--isolation", "shared", "--server", node.admin),
    )
    assert outcome.status == 0
    assert outcome.out.startswith("mine granted: ")
    ((_, spec, dry_run),) = node.commands.calls
    assert spec.allocation_id == "mine"
    assert spec.owner == Owner(kind=OwnerKind.NAMED, name="mine")
    assert spec.isolation is IsolationMode.SHARED
    assert spec.devices == (
        DeviceRequest(
            gpu="0",
            requests=Resources(compute=Compute(percent=Decimal(5)), vram_bytes=builders.GIB),
            limits=Resources(compute=Compute(percent=Decimal("12.5")), vram_bytes=3 * builders.GIB // 2),
        ),
    )
    assert not dry_run


def test_allocate_as_json_and_again(node, cli) -> None:
    arguments = ("allocate", "mine", "--gpu", "0", "--compute", "40%", "--vram", "8Gi", "--server", node.admin)
    answer = json.loads(cli(*arguments, "-o", "json").out)
    assert answer["allocation"]["spec"]["allocationId"] == "mine"
    assert answer["environment"]["TF_SHM_PATH"].endswith("uid-of-mine")
    assert answer["existed"] is False
    assert "had been granted before" in cli(*arguments).out
    other = cli("allocate", "mine", "--compute", "41%", "--server", node.admin)
    assert other.status == 1
    assert other.err == "hypervisor: mine exists with other figures; release it first\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("allocate", "x", "--vram", "8Gb/s"), "is not an amount of memory"),
        (("allocate", "x", "--compute", "140%"), "more than the whole card"),
        (("allocate", "x", "--compute", "-4%"), "is not an amount of compute"),
        (("allocate", "x", "--isolation", "total"), "is not one of"),
        (("set-limits", "pod-0"), "nothing to change"),
        (("set-limits", "pod-0", "--vram", "lots"), "is not an amount of memory"),
        (("allocate",), "Missing argument 'NAME'"),
    ],
)
def test_wrong_usage_is_status_2_and_asks_nobody(node, cli, arguments: tuple[str, ...], words: str) -> None:
    outcome = cli(*arguments, "--server", node.admin)
    assert outcome.status == 2
    assert words in outcome.err
    assert node.commands.calls == []


@pytest.mark.parametrize("name", ["../etc", "a/b", ".hidden", "x" * 64, "two\nlines"])
def test_bad_names_are_refused_on_one_line(node, cli, name: str) -> None:
    for command in (("allocate", name), ("release", name), ("set-limits", name, "--compute", "5%")):
        outcome = cli(*command, "--server", node.admin)
        assert outcome.status == 1
        assert outcome.err.count("\n") == 1
        assert "not a name for an allocation" in outcome.err
    assert node.commands.calls == []


def test_set_limits(node, cli) -> None:
    outcome = cli("set-limits", "pod-0", "--compute", "25%", "--server", node.admin)
    assert outcome.status == 0
    ((_, name, devices, expected),) = node.commands.calls
    assert (name, expected) == ("pod-0", None)
    assert devices == (DeviceRequest(limits=Resources(compute=Compute(percent=Decimal(25)))),)
    missing = cli("set-limits", "nobody", "--compute", "25%", "--server", node.admin)
    assert missing.status == 1
    assert "there is no allocation 'nobody'" in missing.err
    elsewhere = cli("set-limits", "pod-0", "--gpu", "5", "--compute", "25%", "--server", node.admin)
    assert elsewhere.status == 1
    assert "no share of GPU 5" in elsewhere.err


def test_set_limits_of_one_of_two_devices(node, cli) -> None:
    grants = (builders.make_grant(2), builders.make_grant(3))
    allocation = builders.make_allocation("two", grants=grants)
    node.commands.allocations["two"] = allocation
    node.do(node.server.publish, builders.make_snapshot(allocations=(allocation,), number=2))
    assert cli("set-limits", "two", "--gpu", builders.uuid(3), "--vram", "4Gi", "--server", node.admin).status == 0
    ((_, _, devices, _),) = node.commands.calls
    assert devices == (DeviceRequest(), DeviceRequest(limits=Resources(vram_bytes=4 * builders.GIB)))


def test_release_names_who_still_runs(node, cli) -> None:
    outcome = cli("release", "pod-1", "--server", node.admin)
    assert outcome.status == 0
    assert outcome.out == "pod-1 released\n1 processes still run under its last limits: 4711\n"
    again = cli("release", "pod-1", "--server", node.admin)
    assert (again.status, again.err) == (1, "hypervisor: there is no allocation pod-1\n")


def test_the_read_socket_names_the_admin_socket(node, cli) -> None:
    outcome = cli("release", "pod-1", "--server", node.read)
    assert outcome.status == 1
    assert node.admin in outcome.err
    assert outcome.err.count("\n") == 1
