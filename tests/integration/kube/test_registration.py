"""What kubelet offers is compared with what it was told, and registered anew when it stays different."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from hypervisor.model import Refusal, RefusalReason
from hypervisor.rpc import device_plugin
from hypervisor.rpc.asyncio_host import open_asyncio_host
from hypervisor.rpc.device_plugin import DevicePlugins
from hypervisor.rpc.pod_resources import PodResourcesClient
from hypervisor.rpc.right_of_way import RightOfWay
from tests.kube_fakes.kubelet import FakeKubelet
from tests.kube_fakes.node import INDEX_0


class Refusing:
    """Nobody asks for a container here."""

    async def allocate(self, resource: str, containers: object) -> tuple[()]:
        raise Refusal(RefusalReason.NOT_READY, "not here")


@pytest.fixture
def kubelet(tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("k", numbered=True)
    found = FakeKubelet(Path(directory)).start()
    yield found
    found.stop()


def test_what_kubelet_forgot_while_the_stream_lives_is_registered_anew(  # 9.3 row 39
    kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_plugin, "VERIFY_SECONDS", 0.1)
    monkeypatch.setattr(device_plugin, "MISMATCH_SECONDS", 0.5)

    async def main() -> None:
        async with open_asyncio_host() as host:
            client, asked = PodResourcesClient(kubelet.pod_resources / "kubelet.sock"), []

            async def offered():
                asked.append(len(kubelet.registrations))
                return await client.allocatable()

            plugins = DevicePlugins(host, kubelet.plugins, Refusing(), offered, RightOfWay())
            plugins.publish(healthy=True)

            async def until(condition) -> None:
                while not condition():  # noqa: ASYNC110 - of another thread's making
                    await trio.sleep(0.02)

            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(host.call, plugins.run)
                    await until(lambda: plugins.statistics().streams == 17 and kubelet.allocatable(INDEX_0) > 0)
                    registered = len(kubelet.registrations)
                    # The end of an earlier stream, handled late, takes the devices of the new one away.
                    kubelet.withheld = {INDEX_0}
                    await until(lambda: len(kubelet.registrations) > registered)
                    kubelet.withheld = set()
                    assert [name for name, _ in kubelet.registrations[registered:]] == [INDEX_0]
                    assert plugins.statistics().mismatches_total == 1
                    # Unhealthy ids are rightly not offered: kubelet is not even asked.
                    plugins.publish(healthy=False)
                    await until(lambda: kubelet.allocatable(INDEX_0) == 0)
                    before = len(asked)
                    await host.call(plugins._verify)
                    assert len(asked) == before
                    nursery.cancel_scope.cancel()
            await host.call(client.close)

    trio.run(main)
