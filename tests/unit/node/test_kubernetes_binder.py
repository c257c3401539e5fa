"""The binder's order of work, with everything around it made up."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from hypervisor.kube.checkpoint import Assignment
from hypervisor.kube.demands import Demands
from hypervisor.kube.grants import Grant
from hypervisor.kube.pod import read_pod
from hypervisor.node.kubernetes_bell import Bell
from hypervisor.node.kubernetes_binder import Binder
from hypervisor.rpc.right_of_way import RightOfWay
from tests.kube_fakes.node import INDEX_0, pod


class World:
    """Some Pods that wait for their grants, and what was bound."""

    def __init__(self, count: int) -> None:
        self.way = RightOfWay()
        self.bound: list[str] = []
        self.unpublished = False
        self.pods: dict[str, Any] = {}
        grants, assignments = [], []
        for number in range(count):
            one = read_pod(json.dumps(pod(f"p-{number}", uid=f"uid-{number}", vram_limit="1Gi")).encode())
            self.pods[one.uid] = one
            ids = (f"0-{number}",)
            grants.append(Grant(uid=f"g-{number}", resource=INDEX_0, device_ids=ids, created_at=1.0))
            assignments.append(
                Assignment(
                    resource=INDEX_0, device_ids=ids, container="main", namespace="default", pod_name=f"p-{number}"
                )
            )
        self.binder = Binder(
            allocations=SimpleNamespace(all=(), reserved=(), unsynced=lambda: None),  # type: ignore[arg-type]
            pods=SimpleNamespace(pods=self.pods, complete=False, failing=""),
            host=SimpleNamespace(),  # type: ignore[arg-type]
            grants=SimpleNamespace(all=grants, unsynced=lambda: None),  # type: ignore[arg-type]
            events=SimpleNamespace(),  # type: ignore[arg-type]
            demands=Demands(),
            binding=self,  # type: ignore[arg-type]
            asking=SimpleNamespace(  # type: ignore[arg-type]
                step=trio.lowlevel.checkpoint, assignments=assignments, asked_at=2.0
            ),
            publish=lambda: None,
            bell=Bell(),
            way=self.way,
        )

    async def bind(self, grant: Grant, pod: object, container: str) -> None:
        self.bound.append(grant.uid)


def test_binds_wait_while_kubelet_waits_for_an_answer() -> None:
    async def main() -> None:
        world = World(3)
        async with trio.open_nursery() as nursery:
            with world.way.asked():
                nursery.start_soon(world.binder.step)
                await trio.testing.wait_all_tasks_blocked()
                assert world.bound == []
        assert world.bound == ["g-0", "g-1", "g-2"]

    trio.run(main)


def test_others_have_their_turn_between_two_binds() -> None:
    async def main() -> None:
        world, between = World(3), []

        async def other() -> None:
            while len(world.bound) < 3:
                if world.bound:
                    between.append(len(world.bound))
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await world.binder.step()
        assert between

    trio.run(main)
