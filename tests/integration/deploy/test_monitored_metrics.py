"""Alerts and dashboards ask for metrics, labels and values that nodes and aggregators really have."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError

import pytest

import hypervisor
from hypervisor.simulation.environment import environment
from hypervisor.v1 import cluster_pb2
from tests.daemon_process import DaemonProcess, wait_until
from tests.fleet.certificates import FleetCertificates
from tests.fleet.process import AggregatorProcess
from tests.integration.conftest import daemons
from tests.integration.node import calls
from tests.kube_fakes.object_server import ObjectServer
from tests.monitoring.pages import GOLDEN, NODE_TARGET_LABELS, TARGET_LABELS, Pages
from tests.monitoring.queries import alert_queries, dashboard_queries, needs

pytestmark = pytest.mark.slow
LOAD = Path(hypervisor.__file__).parent / "native/clients/load"


def _page(aggregator: AggregatorProcess) -> str:
    """The page of one that leads, once its node is in it."""
    try:
        found = aggregator.get("/metrics")
    except HTTPError as error:
        error.close()
        return ""
    return found if 'aggregator_nodes{liveness="fresh"} 1.0' in found else ""


def _node_page(daemon: DaemonProcess) -> str:
    """The page of a node with a workload that is paced, and with an instance of MIG."""
    status, found = daemon.get("/metrics")
    assert status == 200
    return found if "gpuhv_pod_gpu_compute_lent_ratio" in found and "gpuhv_mig_instances" in found else ""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """The pages of a node with a share, and of the aggregator that it reports to, which writes to an API server; and
    the golden page, which has what a node has only with faults."""
    directory: Path = tmp_path_factory.mktemp("monitored")
    found = Pages()
    with closing(ObjectServer()) as api, daemons() as make:
        flags = ("--namespace", "tensor-fusion-sys", "--identity", "one", "--lease-seconds", "3")
        kubeconfig = api.kubeconfig(directory / "kubeconfig")
        tls = FleetCertificates(directory / "pki").aggregator()
        with closing(AggregatorProcess(directory, *flags, kubeconfig=kubeconfig, tls=tls)) as aggregator:
            aggregator.start()
            daemon = make("--report-to", aggregator.unix, "--mig-geometry", "7: 1g.10gb").start().wait_ready()
            share = calls.allocate(daemon, "job", vram_bytes=1 << 30, percent="25", gpu="0")
            found_on = environment(daemon.machine) | dict(share.environment)
            with subprocess.Popen([LOAD, "--seconds=60"], env=found_on, stdout=subprocess.DEVNULL) as load:
                with aggregator.cluster(aggregator.unix) as cluster:
                    cluster.ListNodes(cluster_pb2.ListNodesRequest())
                found.add(wait_until(lambda: _page(aggregator), "the aggregator's page"), TARGET_LABELS)
                found.add(wait_until(lambda: _node_page(daemon), "the node's page"), NODE_TARGET_LABELS)
                load.kill()
    found.add(GOLDEN.read_text(), NODE_TARGET_LABELS)
    return found


def test_what_alerts_ask_for_exists(pages: Pages) -> None:
    lacking = {query.where: why for query in alert_queries() for need in needs(query) if (why := pages.lacking(need))}
    assert lacking == {}


def test_what_dashboards_ask_for_exists(pages: Pages) -> None:
    lacking = {
        query.where: why for query in dashboard_queries() for need in needs(query) if (why := pages.lacking(need))
    }
    assert lacking == {}
