"""A tenant that scribbles over its usage file, cuts it and lets it grow while the daemon works on it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.unit.allocations.builders import GIB, Node, device, inventory, named, percent, request, start_time
from tests.unit.limits.tenant import Tenant, own_namespace

SECONDS = 1.5
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
