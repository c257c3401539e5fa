"""Short requests go first: Allocate has the right of way, what can wait gives it, and nobody waits for ever."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from hypervisor.kube.answers import ContainerAnswer
from hypervisor.rpc.asyncio_host import open_asyncio_host
from hypervisor.rpc.device_plugin import DevicePlugins
from hypervisor.rpc.right_of_way import RightOfWay


def test_what_can_wait_waits_until_the_answer_is_out() -> None:
    async def main() -> None:
        way, gone = RightOfWay(), []

        async def work() -> None:
            await way.give()
            gone.append("work")

        async with trio.open_nursery() as nursery:
            with way.asked():
                nursery.start_soon(work)
                await trio.testing.wait_all_tasks_blocked()
                gone.append("answer")
        assert gone == ["answer", "work"]

    trio.run(main)


def test_without_a_request_others_may_run_and_nobody_waits() -> None:
    async def main() -> None:
        with trio.testing.assert_checkpoints():
            await RightOfWay().give()

    trio.run(main, clock=trio.testing.MockClock())  # on which a sleep would never end


def test_a_request_that_lasts_and_a_flood_of_them_hold_nobody_up_for_long() -> None:
    async def main() -> None:
        way = RightOfWay()
        with way.asked(), trio.fail_after(10):
            await way.give()
            assert not way.is_asked  # it waits for something slow itself
            with way.asked():
                assert way.is_asked
                await way.give()

    trio.run(main)


def test_allocate_has_the_right_of_way(tmp_path: Path) -> None:
    class Handler:
        async def allocate(self, resource: str, containers: object) -> tuple[ContainerAnswer, ...]:
            seen.append(way.is_asked)
            return ()

    async def offered() -> dict[str, int]:
        return {}

    async def main() -> None:
        async with open_asyncio_host() as host:
            plugins = DevicePlugins(host, tmp_path, Handler(), offered, way)
            await host.call(plugins.allocate, "tensor-fusion.ai/index_0", ())
            seen.append(way.is_asked)

    seen: list[bool] = []
    way = RightOfWay()
    trio.run(main)
    assert seen == [True, False]
