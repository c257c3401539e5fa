"""Nodes of a fake cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.integration.conftest import daemons
from tests.kube_fakes.node import KubeNode


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
