"""A tenant that scribbles over its usage file, cuts it and lets it grow while the daemon works on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from hypervisor.simulation import machine as machines
from hypervisor.simulation.profiles import load_description
from tests.integration.limiter.conftest import LIMITER, Files, Pod, heard
from tests.unit.allocations.builders import GIB, Node, device, inventory, named, percent, request, start_time
from tests.unit.limits.tenant import Tenant, own_namespace

SECONDS = 1.5
OUT_OF_MEMORY, OPERATING_SYSTEM, NOT_READY = 2, 304, 802
STOCK = inventory(device(0))

SCRIBBLER = """
import os, random, sys
chance = random.Random(7)
files = [os.open(path, os.O_RDWR) for path in sys.argv[1:]]
print("ready", flush=True)
while True:
    file, offset = chance.choice(files), chance.choice([0, 4096, 8192, 163840, chance.randrange(2**20)])
    match chance.randrange(6):
        case 0:
            os.ftruncate(file, chance.choice([0, 4096, 170_000, 2**20, 2**21]))
        case 1:
            os.ftruncate(file, 2**20)
        case _:
            os.pwrite(file, os.urandom(chance.randrange(1, 3000)), offset + chance.randrange(4096))
"""


def test_the_daemon_and_the_other_tenants_do_not_notice(tmp_path: Path) -> None:
    node = Node(tmp_path)
    allocations = node.start()
    victims = [
        allocations.allocate(named(f"bad-{index}", request("0", compute=percent(2), vram=GIB)), STOCK)[0]
        for index in range(8)
    ]
    good, _ = allocations.allocate(named("good", request("0", compute=percent(10), vram=4 * GIB)), STOCK)
    tenant = Tenant(Path(good.directory) / "usage")
    tenant.attach(0, pid=os.getpid(), start=start_time(os.getpid()), namespace=own_namespace(), held=GIB)
    paths = [f"{victim.directory}/usage" for victim in victims]
    with subprocess.Popen([sys.executable, "-c", SCRIBBLER, *paths], stdout=subprocess.PIPE) as scribbler:
        assert scribbler.stdout is not None
        assert scribbler.stdout.readline() == b"ready\n"
        deadline, sequence = time.monotonic() + SECONDS, 2
        while time.monotonic() < deadline:
            sequence += 1
            usages = allocations.step(inventory(device(0), sequence=sequence))
            # Adoption has to bear it as well as a round.
            allocations.close()
            allocations = node.start()
        assert scribbler.poll() is None
        scribbler.kill()
    usages = {usage.allocation_id: usage for usage in allocations.step(inventory(device(0), sequence=sequence + 1))}
    assert len(usages) == 9
    assert usages["good"].tampering == ""
    assert usages["good"].devices[0].reserved_bytes.value == GIB
    assert tenant.total() == GIB
    assert any(usage.tampering for usage in usages.values())
    assert "UsageTampered" in node.reasons()
    for victim in victims:
        allocations.release(victim.spec.allocation_id)


# Writes only: a program whose own Pod cuts a file that it has mapped ends, whatever the library does.
WRITER = """
import os, random, sys
chance = random.Random(int(sys.argv[1]))
file = os.open(sys.argv[2], os.O_RDWR)
words = [b"\\0" * 8, b"\\xff" * 8, b"\\1" + b"\\0" * 7, b"\\2" + b"\\0" * 7]
print("ready", flush=True)
while True:
    # The header, the devices, the bitmap of slots, the ring, the learned costs, the first slots, anywhere.
    offset = chance.choice([0, 4096, 8192, 12288, 32768, 163840, 163840 + 1088, chance.randrange(2**20)])
    what = chance.choice([os.urandom(8), os.urandom(chance.randrange(1, 600)), *words])
    os.pwrite(file, what, offset + chance.randrange(0, 1200, 8))
"""

CLIENT = """
    import random
    chance = random.Random(os.getpid())
    started = call("cuInit", 0)
    context = ctypes.c_void_p()
    started = started or call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    started = started or call("cuCtxSetCurrent", context)
    function = None if started else kernel(100)
    tell(started)
    answers, longest, operations, held = set(), 0.0, 0, []
    ends = time.monotonic() + SECONDS
    while not started and time.monotonic() < ends:
        began = time.monotonic()
        match chance.randrange(6):
            case 0 | 1 if len(held) < 40:  # the card is not to be full: another Pod has 4 GiB of it
                result, pointer = alloc(chance.randrange(1, 64 * MIB))
                if result == 0:
                    held.append(pointer)
            case 0 | 1 | 2:
                result = free(held.pop()) if held else 0
            case 3:
                result = launch(function)
            case 4:
                left, total = ctypes.c_size_t(), ctypes.c_size_t()
                result = call("cuMemGetInfo_v2", ctypes.byref(left), ctypes.byref(total))
                assert left.value <= total.value
            case _:
                result, pointer = alloc(chance.randrange(1, MIB), "cuMemAllocAsync", None)
                if result == 0:
                    must("cuMemFreeAsync", pointer, None)
        answers.add(result)
        operations += 1
        longest = max(longest, time.monotonic() - began)
    tell([sorted(answers), longest, operations])
"""
EXACT = """
    start()
    while not sys.stdin.readline() == "":
        left = memory()[0]  # what its context may take is not measured here
        whole, pointer = alloc(left)
        tell([left > 2 * GIB, whole, alloc(4096)[0], free(pointer)])
"""
LONGEST_SECONDS = 10.0  # of one call: a wait for GPU time ends after two


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_clients_and_the_daemon_live_on_and_another_pod_is_exact(tmp_path: Path, limit_files: Path, seed: int) -> None:
    """A program of a Pod writes at random into what the Pod's other programs account, while they and the daemon run."""
    machine = tmp_path / "machine"
    machines.create(machine, load_description("t4"))
    with machines.opened(machine) as opened:
        uuid = opened.show()["gpus"][0]["uuid"]
    card = replace(device(0), identity=replace(device(0).identity, uuid=uuid))
    node = Node(tmp_path)
    allocations = node.start()
    pods = []
    for name in ("bad", "good"):
        allocation, _ = allocations.allocate(
            named(name, request("0", compute=percent(40), vram=4 * GIB)), inventory(card)
        )
        pods.append(Pod(machine, Files(Path(allocation.directory), limit_files, uuid), LIMITER))
    bad, good = pods
    with ExitStack() as stack:
        exact = stack.enter_context(good.running(EXACT))
        writer = [sys.executable, "-c", WRITER, str(seed), str(bad.files.directory / "usage")]
        scribbler = stack.enter_context(subprocess.Popen(writer, stdout=subprocess.PIPE))
        stack.callback(scribbler.kill)
        source = f"    SECONDS = {SECONDS}\n{CLIENT}"
        clients = [stack.enter_context(bad.running(source)) for _ in range(3)]
        assert scribbler.stdout is not None
        assert scribbler.stdout.readline() == b"ready\n"
        sequence = 1
        while any(client.poll() is None for client in clients):
            sequence += 1
            usages = {usage.allocation_id: usage for usage in allocations.step(inventory(card, sequence=sequence))}
            assert usages["good"].tampering == ""
            assert exact.stdin is not None
            exact.stdin.write("\n")
            exact.stdin.flush()
            assert heard(exact) == [True, 0, OUT_OF_MEMORY, 0]
        outputs = [client.communicate()[0].splitlines() for client in clients]
    assert [client.returncode for client in clients] == [0, 0, 0]
    for output in outputs:
        started, seen = (json.loads(line) for line in output)
        answers, longest, operations = seen
        assert set(answers) <= {0, OUT_OF_MEMORY, NOT_READY}
        assert started in (0, OUT_OF_MEMORY, OPERATING_SYSTEM, NOT_READY)
        assert longest < LONGEST_SECONDS
        assert started or operations > 10
