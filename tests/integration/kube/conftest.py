"""Nodes of a cluster: its kubelet is a fake one; its API server a fake one, or a real one where there are binaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.integration.conftest import daemons
from tests.kube_fakes.node import KubeNode
from tests.real_kube.api_server import RealApiServer
from tests.real_kube.cluster import Cluster, missing, running_cluster


@pytest.fixture
def make_node(make_daemon) -> Iterator[Callable[..., KubeNode]]:
    """Makes nodes that are not yet started."""
    made: list[KubeNode] = []

    def make(*flags: str, **parts: str) -> KubeNode:
        made.append(KubeNode(make_daemon, *flags, **parts))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def node(make_node) -> KubeNode:
    """A node that is ready."""
    return make_node().start()


@pytest.fixture(scope="session")
def one_node() -> Iterator[KubeNode]:
    with daemons() as make:
        node = KubeNode(make)
        try:
            yield node.start()
        finally:
            node.close()


@pytest.fixture
def shared_node(one_node: KubeNode) -> Iterator[KubeNode]:
    """One daemon for all tests that don't end it; Pods of a test are gone after it."""
    yield one_node
    one_node.clear()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A real API server, for the whole session."""
    if why := missing():
        pytest.skip(why)
    with running_cluster() as found:
        yield found


@pytest.fixture(scope="session")
def one_real_node(cluster: Cluster) -> Iterator[KubeNode]:
    with daemons() as make:
        node = KubeNode(make, api=RealApiServer(cluster))
        try:
            yield node.start()
        finally:
            node.close()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.real_kube)])
def any_node(request: pytest.FixtureRequest) -> Iterator[KubeNode]:
    """As shared_node, with the fake API server and with a real one."""
    node: KubeNode = request.getfixturevalue("one_real_node" if request.param == "real" else "one_node")
    yield node
    node.clear()
