"""ServiceAccount tokens instead of certificates: on a fake TokenReview, and on a real API server where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from hypervisor.aggregator.tokens import AUDIENCE
from hypervisor.model import RefusalReason
from hypervisor.rpc.client import refusal_of
from hypervisor.v1 import cluster_pb2, cluster_pb2_grpc, report_pb2
from tests.fleet import messages as m
from tests.fleet.certificates import FleetCertificates
from tests.fleet.process import DEADLINE_SECONDS, AggregatorProcess, free_port, wait_until
from tests.fleet.stream import METHOD
from tests.kube_fakes.token_reviews import KnownToken, TokenReviews
from tests.real_kube.cluster import Cluster, Refused

NAMESPACE = "tensor-fusion-sys"
REPORTER, READER, NOBODY = "tensor-fusion-hypervisor-sa", "scheduler", "default"
# (account, audience, node or "") -> a token
Issue = Callable[[str, str, str], str]


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.real_kube, pytest.mark.slow])])
def issuer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Issue, Path]]:
    """What issues tokens, and the kubeconfig of whom the API server answers about them."""
    path = tmp_path / "kubeconfig"
    if request.param == "real":
        cluster: Cluster = request.getfixturevalue("real_cluster")
        yield real_tokens(cluster), cluster.kubeconfig_of(NAMESPACE, "tensor-fusion-aggregator-sa", path)
        return
    fake = TokenReviews()

    def issue(account: str, audience: str, node: str) -> str:
        token = f"token-{len(fake.tokens)}"
        fake.tokens[token] = KnownToken(f"{NAMESPACE}/{account}", audience, node)
        return token

    yield issue, fake.kubeconfig(path)
    fake.close()


def real_tokens(cluster: Cluster) -> Issue:
    def issue(account: str, audience: str, node: str) -> str:
        accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        with suppress(Refused):  # it is there
            cluster.ask("POST", accounts, {"metadata": {"name": account}})
        spec: dict[str, object] = {"audiences": [audience], "expirationSeconds": 600}
        if node:
            spec["boundObjectRef"] = pod_on(cluster, account, node)
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(cluster.ask("POST", f"{accounts}/{account}/token", body)["status"]["token"])

    return issue


def pod_on(cluster: Cluster, account: str, node: str) -> dict[str, str]:
    """A Pod that was placed there; nobody runs it."""
    with suppress(Refused):
        cluster.ask("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    pod = {
        "metadata": {"generateName": "reporter-"},
        "spec": {"serviceAccountName": account, "nodeName": node, "containers": [{"name": "c", "image": "i"}]},
    }
    made = cluster.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)["metadata"]
    return {"apiVersion": "v1", "kind": "Pod", "name": made["name"], "uid": made["uid"]}


class Hub:
    """An aggregator that takes tokens, and those who come with one."""

    def __init__(self, directory: Path, kubeconfig: Path) -> None:
        self._fleet = FleetCertificates(directory / "pki")
        self._address = f"127.0.0.1:{free_port()}"
        flags = ("--token-listen", self._address, "--kubeconfig", str(kubeconfig))
        flags += ("--reader-account", f"{NAMESPACE}/{READER}")
        self.process = AggregatorProcess(directory, *flags, tls=self._fleet.aggregator())
        self.process.start()

    def channel(self) -> grpc.Channel:
        trusted = (self._fleet.aggregator() / "ca.crt").read_bytes()
        return grpc.secure_channel(self._address, grpc.ssl_channel_credentials(trusted))

    def report(self, token: str, name: str) -> report_pb2.ReportResponse:
        """The first answer to a hello."""
        with self.channel() as channel:
            method = channel.stream_stream(METHOD, None, report_pb2.ReportResponse.FromString)
            # An iterator that ends would end the stream; the first answer comes before that.
            hello = iter([m.hello(name).SerializeToString()])
            return next(method(hello, metadata=bearer(token), timeout=DEADLINE_SECONDS))

    def nodes(self, token: str) -> set[str]:
        with self.channel() as channel:
            stub = cluster_pb2_grpc.ClusterServiceStub(channel)
            found = stub.ListNodes(cluster_pb2.ListNodesRequest(), metadata=bearer(token), timeout=DEADLINE_SECONDS)
        return {node.node.identity.name for node in found.nodes}


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),) if token else ()


def reason(call: Callable[[], object]) -> RefusalReason | None:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    refusal = refusal_of(caught.value)
    return refusal.reason if refusal else None


@pytest.fixture
def hub(issuer: tuple[Issue, Path], tmp_path: Path) -> Iterator[Hub]:
    made = Hub(tmp_path, issuer[1])
    yield made
    made.process.close()


def test_a_token_says_which_node_and_what_one_may_do(hub: Hub, issuer: tuple[Issue, Path]) -> None:
    issue = issuer[0]
    of_node, of_reader = issue(REPORTER, AUDIENCE, "gpu-1"), issue(READER, AUDIENCE, "")
    assert hub.report(of_node, "gpu-1").HasField("welcome")
    assert reason(lambda: hub.report(of_node, "gpu-2")) is RefusalReason.FORBIDDEN
    assert isinstance(hub.nodes(of_reader), set)
    assert reason(lambda: hub.nodes(of_node)) is RefusalReason.FORBIDDEN
    assert reason(lambda: hub.report(of_reader, "gpu-1")) is RefusalReason.FORBIDDEN


@pytest.mark.slow
def test_tokens_that_are_not_good(hub: Hub, issuer: tuple[Issue, Path]) -> None:
    issue = issuer[0]
    # For another audience, of an account without a role, bound to no Pod, made up, and none.
    assert reason(lambda: hub.nodes(issue(READER, "somebody-else", ""))) is RefusalReason.UNAUTHENTICATED
    assert reason(lambda: hub.nodes(issue(NOBODY, AUDIENCE, ""))) is RefusalReason.FORBIDDEN
    assert reason(lambda: hub.report(issue(REPORTER, AUDIENCE, ""), "gpu-1")) is RefusalReason.FORBIDDEN
    assert reason(lambda: hub.nodes("made-up")) is RefusalReason.UNAUTHENTICATED
    assert reason(lambda: hub.nodes("")) is RefusalReason.UNAUTHENTICATED


@pytest.mark.slow
def test_a_daemon_reports_with_a_token(
    hub: Hub, issuer: tuple[Issue, Path], make_daemon: Callable[..., object], tmp_path: Path
) -> None:
    trust, token = tmp_path / "trust", tmp_path / "token"
    trust.mkdir()
    (trust / "ca.crt").write_bytes((hub._fleet.aggregator() / "ca.crt").read_bytes())
    token.write_text(issuer[0](REPORTER, AUDIENCE, "gpu-9") + "\n")
    flags = ("--node-name", "gpu-9", "--report-to", hub._address, "--tls-dir", str(trust), "--report-token", str(token))
    make_daemon(*flags).start().wait_ready()  # type: ignore[attr-defined]
    wait_until(lambda: "gpu-9" in hub.nodes(issuer[0](READER, AUDIENCE, "")), "the report")
