"""Limits that nobody can hold are refused on every way in, with the reason, and change nothing that is there.

Ways: gRPC (a grant, and a change of limits), the command line (also exec and a dry run), declared files, exec
without a daemon. Annotations of Pods have tests of their own in tests/integration/kube/test_bad_input.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hypervisor.simulation.environment import environment
from hypervisor.v1 import node_pb2, types_pb2
from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.conftest import daemons
from tests.integration.node import calls

GIB = 2**30
NO_NUMBER = "is not a decimal number"
RANGE = "out of range"
SMALL = "the smallest that can be held is 1%"
# H100: 989 TFLOPS.
BAD = [
    ({"percent": "0"}, RANGE),
    ({"percent": "0.000000"}, RANGE),
    ({"percent": "-5"}, NO_NUMBER),
    ({"percent": "NaN"}, NO_NUMBER),
    ({"percent": "inf"}, NO_NUMBER),
    ({"percent": "1e1"}, NO_NUMBER),
    ({"percent": "٤٠"}, NO_NUMBER),
    ({"percent": "100.000001"}, RANGE),
    ({"percent": "0.999999"}, SMALL),
    ({"percent": "0.000001"}, SMALL),
    ({"tflops": "0"}, RANGE),
    ({"tflops": "NaN"}, NO_NUMBER),
    ({"tflops": "989.000001"}, "more than the whole card, 989 TFLOPS"),
    ({"tflops": "1000001"}, RANGE),
    ({"tflops": "9.889999"}, SMALL),
]


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    with daemons() as make:
        found = make().start().wait_ready()
        calls.allocate(found, "good", vram_bytes=8 * GIB, percent="20", gpu="0")
        yield found


def devices(amount: dict[str, str], gpu: str = "") -> list[types_pb2.DeviceRequest]:
    limits = types_pb2.Resources(compute=types_pb2.Compute(**amount), vram_bytes=8 * GIB)
    return [types_pb2.DeviceRequest(gpu=gpu, limits=limits)]


@pytest.mark.parametrize(("amount", "words"), BAD)
def test_over_grpc(daemon: DaemonProcess, amount: dict[str, str], words: str) -> None:
    (before,) = calls.list_allocations(daemon)
    spec = types_pb2.AllocationSpec(
        allocation_id="bad",
        owner=types_pb2.Owner(name="bad"),
        devices=devices(amount, "1"),
        isolation=types_pb2.ISOLATION_MODE_SOFT,
    )
    with pytest.raises(calls.Refused) as refused, calls.stub(daemon, admin=True) as node:
        node.Allocate(node_pb2.AllocateRequest(spec=spec), timeout=10)
    assert words in str(refused.value)
    assert refused.value.reason in ("INVALID_ARGUMENT", "LIMIT_ABOVE_CAPACITY")
    change = node_pb2.UpdateLimitsRequest(allocation_id="good", devices=devices(amount))
    with pytest.raises(calls.Refused) as refused, calls.stub(daemon, admin=True) as node:
        node.UpdateLimits(change, timeout=10)
    assert words in str(refused.value)
    (after,) = calls.list_allocations(daemon)
    assert after.devices[0].limit_share_ppm == before.devices[0].limit_share_ppm == 200_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("allocate", "bad", "--gpu", "1", "--compute", "0.5%"), SMALL),
        (("allocate", "bad", "--gpu", "1", "--compute", "9.8", "--dry-run"), SMALL),
        (("allocate", "bad", "--gpu", "1", "--compute", "990"), "more than the whole card, 989 TFLOPS"),
        (("set-limits", "good", "--compute", "101%"), "more than the whole card"),
        (("set-limits", "good", "--compute", "0.99%"), SMALL),
        (("exec", "--gpu", "1", "--compute", "nan", "--", "true"), "is not an amount of compute"),
        (("exec", "--gpu", "1", "--compute", "0%", "--", "true"), "is not above 0"),
        (("exec", "--gpu", "1", "--compute", "0.5%", "--", "true"), SMALL),
    ],
)
def test_on_the_command_line(daemon: DaemonProcess, arguments: tuple[str, ...], words: str) -> None:
    command, *rest = arguments
    address = daemon.owner_address if command == "exec" else daemon.admin_address
    done = subprocess.run(
        [sys.executable, "-m", "hypervisor", command, "--server", address, *rest],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert words in " ".join(done.stderr.replace("│", " ").split())
    (after,) = calls.list_allocations(daemon)
    assert (after.spec.allocation_id, after.devices[0].limit_share_ppm) == ("good", 200_000)


@pytest.mark.slow
def test_without_a_daemon(daemon: DaemonProcess) -> None:
    for compute, words in (
        ("0.5%", SMALL),
        ("990", "more than the whole card"),
        ("nan", "is not an amount of compute"),
    ):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "hypervisor",
                "exec",
                "--standalone",
                "--gpu",
                "0",
                "--compute",
                compute,
                "--",
                "true",
            ],
            env=environment(daemon.machine),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0
        assert words in done.stderr


@pytest.mark.slow
def test_in_declared_files(make_daemon: Callable[..., DaemonProcess], tmp_path: Path) -> None:
    """Each file is refused with its reason, and the good one beside them is in force."""
    bad = {
        "zero": ("0%", "not above 0"),
        "above": ("100.1%", "more than the whole card"),
        "nan": ("NaN", "not an amount of compute"),
        "minus": ("-5%", "not an amount of compute"),
        "card": ("990", "more than the whole card, 989 TFLOPS"),
        "small": ("0.99%", SMALL),
    }
    for name, (compute, _) in {**bad, "good": ("20%", "")}.items():
        (tmp_path / f"{name}.toml").write_text(f'[[allocations]]\nname = "{name}"\ngpu = "0"\ncompute = "{compute}"\n')
    daemon = make_daemon("--allocations-dir", str(tmp_path)).start().wait_ready()
    wait_until(lambda: calls.list_allocations(daemon), "the good one")

    def told() -> str:
        (node,) = json.loads(daemon.cli("get", "nodes", "-o", "json").stdout)["items"]
        return " ".join(each["message"] for each in node["conditions"] if each["reason"] == "DeclarationRejected")

    said = wait_until(told, "the condition")
    for name, (_, words) in bad.items():
        assert f"{name}.toml" in said or f"'{name}'" in said, said
        assert words in said, said
    assert [each.spec.allocation_id for each in calls.list_allocations(daemon)] == ["good"]
