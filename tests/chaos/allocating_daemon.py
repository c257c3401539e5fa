"""Grants, changes and releases without end; says each answer on a line after it has it. To be killed by a test.

Usage: python -m tests.chaos.allocating_daemon ROOT EPOCH
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from hypervisor.allocations import Allocations
from hypervisor.model import Refusal
from tests.unit.allocations.builders import GIB, Node, device, inventory, named, percent, request

STOCK = inventory(device(0), device(1))


def say(*words: object) -> None:
    print(json.dumps(words), flush=True)


def ask(allocations: Allocations, chance: random.Random) -> None:
    name, share = f"job-{chance.randrange(12)}", chance.randrange(1, 8)
    say("asks", name)
    try:
        match chance.randrange(3):
            case 0:
                wanted = request("", compute=percent(share), vram=share * GIB)
                granted, _ = allocations.allocate(named(name, wanted), STOCK)
                say("granted", name, granted.uid, granted.grants[0].limit_share_ppm)
            case 1:
                changed = allocations.update_limits(name, (request(compute=percent(share)),), STOCK, expected=None)
                say("changed", name, changed.uid, changed.grants[0].limit_share_ppm)
            case _:
                allocations.release(name)
                say("released", name)
    except Refusal:
        say("refused", name)


def main(root: str, epoch: int) -> None:
    allocations = Node(Path(root), epoch=epoch, revision=10**6 * epoch).start()
    chance = random.Random(epoch)
    say("ready")
    while True:
        ask(allocations, chance)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
