"""When a bind that was refused is tried again."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from hypervisor.config import Settings
from hypervisor.kube.demands import Demands
from hypervisor.kube.grants import Grant
from hypervisor.kube.pod import Pod, read_pod
from hypervisor.model import Refusal, RefusalReason
from hypervisor.node.kubernetes_binding import Binding
from tests import node_values as v
from tests.kube_fakes.node import INDEX_0, pod

GRANT = Grant(uid="g", resource=INDEX_0, device_ids=("0-0",), created_at=1.0)


class World:
    """Commands that refuse every grant."""

    def __init__(self) -> None:
        self.tried = 0
        self.devices = [v.device()]
        self.grants = [GRANT]
        self.told: list[str] = []
        self.binding = Binding(
            Settings(),
            allocations=SimpleNamespace(  # type: ignore[arg-type]
                all=(), allocate=lambda spec, inventory, *, dry_run: None
            ),
            commands=self,  # type: ignore[arg-type]
            inventory=lambda: v.inventory(*self.devices),
            grants=SimpleNamespace(all=self.grants),  # type: ignore[arg-type]
            events=SimpleNamespace(tell=lambda pod, kind, reason, *_, **__: self.told.append(reason)),  # type: ignore[arg-type]
            demands=Demands(),
            tentative=SimpleNamespace(why_unprepared=lambda grant: ""),  # type: ignore[arg-type]
        )

    async def allocate(self, *_: Any, **__: Any) -> None:
        self.tried += 1
        raise Refusal(RefusalReason.INSUFFICIENT_VRAM, "the card is full")

    async def release(self, allocation_id: str) -> None:
        """Something is free now."""


def one_pod(**annotations: str) -> Pod:
    return read_pod(json.dumps(pod("p", uid="u", compute_percent_limit="5", **annotations)).encode())


@pytest.mark.parametrize(
    ("then", "tried"),
    [
        (lambda world: world.bind(), 1),
        (lambda world: world.after_release(), 2),
        (lambda world: world.after_change_of_cards(), 2),
        (lambda world: world.bind(vram_limit="2Gi"), 2),
    ],
    ids=["not at once", "a share was given back", "cards in other hands", "the Pod says something else"],
)
def test_what_was_refused_is_tried_again_when_it_may_fit(then, tried: int) -> None:
    class Steps(World):
        async def bind(self, vram_limit: str = "1Gi") -> None:
            await self.binding.bind(GRANT, one_pod(vram_limit=vram_limit), "main")

        async def after_release(self) -> None:
            await self.binding.release("other", "it has ended")
            await self.bind()

        async def after_change_of_cards(self) -> None:
            self.binding.try_again()
            await self.bind()

    async def main() -> None:
        world = Steps()
        await world.bind()
        await then(world)
        assert world.tried == tried
        assert len(world.told) == tried

    trio.run(main)


def test_before_the_driver_has_answered_nothing_is_bound_and_nothing_refused() -> None:
    async def main() -> None:
        world = World()
        world.devices = []
        assert await world.binding.bind(GRANT, one_pod(vram_limit="1Gi"), "main") is None
        assert (world.tried, world.told) == (0, [])
        world.devices = [v.device()]
        await world.binding.bind(GRANT, one_pod(vram_limit="1Gi"), "main")
        assert world.tried == 1, "as soon as it has, and not after the time for what was refused"

    trio.run(main)


def test_of_what_was_refused_nothing_is_kept_when_its_grant_is_gone() -> None:
    async def main() -> None:
        world = World()
        await world.binding.bind(GRANT, one_pod(vram_limit="1Gi"), "main")
        await world.binding.release("other", "it has ended")
        assert set(world.binding._refused) == {GRANT.uid}
        world.grants.clear()
        await world.binding.release("other", "it has ended")
        assert world.binding._refused == {}

    trio.run(main)
