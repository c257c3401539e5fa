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


@pytest.fixture(scope="module")
def shared_node() -> Iterator[KubeNode]:
    """One for all tests of a module that give back what they took."""
    with daemons() as make:
        node = KubeNode(make)
        try:
            yield node.start()
        finally:
            node.close()
