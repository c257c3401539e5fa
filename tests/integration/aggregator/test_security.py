"""Who may call the aggregator and a node over TCP, with which certificates, and how often."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from hypervisor.model import RefusalReason
from hypervisor.rpc.client import refusal_of
from hypervisor.v1 import cluster_pb2, node_pb2, node_pb2_grpc
from tests.fleet import messages as m
from tests.fleet.certificates import FleetCertificates
from tests.fleet.process import (
    DEADLINE_SECONDS,
    PROGRAM,
    AggregatorProcess,
    all_gpus,
    channel_to,
    free_port,
    wait_until,
)
from tests.fleet.stream import ReportStream

R = m.revision


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> FleetCertificates:
    return FleetCertificates(tmp_path_factory.mktemp("pki") / "pki")


@pytest.fixture(scope="module")
def aggregator(fleet: FleetCertificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    """One for the tests that leave it as it is."""
    process = AggregatorProcess(tmp_path_factory.mktemp("secured"), tls=fleet.aggregator())
    process.start()
    yield process
    process.close()


def reason(error: grpc.RpcError) -> RefusalReason | None:
    refusal = refusal_of(error)
    return refusal.reason if refusal else None


def refused(call: Callable[[], object]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def list_nodes(process: AggregatorProcess, tls: Path | None) -> set[str]:
    with process.cluster(tls=tls) as cluster:
        found = cluster.ListNodes(cluster_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS)
    return {node.node.identity.name for node in found.nodes}


def test_a_node_reports_itself_and_a_reader_reads(aggregator: AggregatorProcess, fleet: FleetCertificates) -> None:
    with ReportStream(aggregator.address, fleet.node("own")) as stream:
        stream.send(m.hello("own"), m.snapshot(R(1, 1), m.state("own")))
        stream.wait_for_revision(1, 1)
        assert "own" in list_nodes(aggregator, fleet.reader())


def test_a_node_reports_no_other(aggregator: AggregatorProcess, fleet: FleetCertificates) -> None:
    with ReportStream(aggregator.address, fleet.node("victim")) as victim:
        victim.send(m.hello("victim"), m.snapshot(R(1, 1), m.state("victim")))
        victim.wait_for_revision(1, 1)
        # By name; by the UID of the other, which is no secret; and by another name once the stream stands.
        for hello in (m.hello("victim"), with_uid(m.hello("thief"), "uid-victim")):
            with ReportStream(aggregator.address, fleet.node("thief")) as stream:
                stream.send(hello)
                error = stream.wait_for_error()
                assert error.code() is grpc.StatusCode.PERMISSION_DENIED
                assert reason(error) is RefusalReason.FORBIDDEN
        with ReportStream(aggregator.address, fleet.node("thief")) as stream:
            state = m.state("thief")
            state.node.identity.name = "victim"
            stream.send(m.hello("thief"), m.snapshot(R(1, 1), state))
            assert stream.wait_for("refused").refused.field == "snapshot.state.node.identity.name"
        victim.send(m.delta(R(1, 1), R(1, 2), node_pb2.NodeDelta(removed_gpu_uuids=[m.uuid("victim", 0)])))
        victim.wait_for_revision(1, 2)


def with_uid(hello, uid: str):
    hello.hello.node.uid = uid
    return hello


def test_roles_are_not_mixed(aggregator: AggregatorProcess, fleet: FleetCertificates) -> None:
    error = refused(lambda: list_nodes(aggregator, fleet.node("own")))
    assert (error.code(), reason(error)) == (grpc.StatusCode.PERMISSION_DENIED, RefusalReason.FORBIDDEN)
    assert "certs reader" in error.details()
    with ReportStream(aggregator.address, fleet.reader()) as stream:
        stream.send(m.hello("ops"))
        assert reason(stream.wait_for_error()) is RefusalReason.FORBIDDEN
    page = aggregator.get("/metrics")
    assert 'gpuhv_aggregator_refused_calls_total{reason="FORBIDDEN"}' in page


def test_without_a_certificate_of_the_authority_there_is_no_connection(
    aggregator: AggregatorProcess, fleet: FleetCertificates, tmp_path: Path
) -> None:
    strangers = FleetCertificates(tmp_path / "strangers")
    # One of a stranger who trusts our authority, so that it is the server that refuses.
    stranger = tmp_path / "stranger"
    shutil.copytree(strangers.reader(), stranger)
    shutil.copy(fleet.aggregator() / "ca.crt", stranger / "ca.crt")
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(fleet.aggregator() / "ca.crt", bare / "ca.crt")
    assert refused(lambda: list_nodes(aggregator, stranger)).code() is grpc.StatusCode.UNAVAILABLE
    assert refused(lambda: list_nodes(aggregator, None)).code() is grpc.StatusCode.UNAVAILABLE
    with grpc.secure_channel(
        aggregator.address, grpc.ssl_channel_credentials((bare / "ca.crt").read_bytes())
    ) as channel:
        listing = channel.unary_unary("/hypervisor.v1.ClusterService/ListNodes")
        assert refused(lambda: listing(b"", timeout=DEADLINE_SECONDS)).code() is grpc.StatusCode.UNAVAILABLE
    # A client that doesn't trust the server's authority goes away by itself.
    assert refused(lambda: list_nodes(aggregator, strangers.reader())).code() is grpc.StatusCode.UNAVAILABLE
    assert list_nodes(aggregator, fleet.reader()) is not None


def test_the_unix_socket_is_decided_by_its_mode(aggregator: AggregatorProcess) -> None:
    with aggregator.cluster(aggregator.unix) as cluster:
        cluster.ListNodes(cluster_pb2.ListNodesRequest())
    assert Path(aggregator.unix.removeprefix("unix:")).stat().st_mode & 0o777 == 0o660


def served_certificate(process: AggregatorProcess, tls: Path) -> bytes:
    """What the server shows to a new connection."""
    context = ssl.create_default_context(cafile=tls / "ca.crt")
    context.load_cert_chain(tls / "tls.crt", tls / "tls.key")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", process.port), timeout=10) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as secured,
    ):
        return secured.getpeercert(binary_form=True)


def test_renewed_certificates_are_taken_and_open_streams_go_on(tmp_path: Path) -> None:
    fleet = FleetCertificates(tmp_path / "pki")
    process = AggregatorProcess(tmp_path, tls=fleet.aggregator())
    process.start()
    try:
        with ReportStream(process.address, fleet.node("a")) as stream:
            stream.send(m.hello("a"), m.snapshot(R(1, 1), m.state("a")))
            stream.wait_for_revision(1, 1)
            before = served_certificate(process, fleet.reader())
            fleet.renew(fleet.aggregator())
            after = served_certificate(process, fleet.reader())
            assert after != before
            # Half a pair, and nonsense, are not taken.
            good = (fleet.aggregator() / "tls.key").read_bytes()
            for wrong in ((fleet.reader() / "tls.key").read_bytes(), b"nonsense"):
                (fleet.aggregator() / "tls.key").write_bytes(wrong)
                assert served_certificate(process, fleet.reader()) == after
                assert "gpuhv_aggregator_certificates_failing 1.0" in wait_until(
                    lambda: page if "failing 1.0" in (page := process.get("/metrics")) else None, "the metric"
                )
            (fleet.aggregator() / "tls.key").write_bytes(good)
            assert served_certificate(process, fleet.reader()) == after
            stream.send(m.delta(R(1, 1), R(1, 2), node_pb2.NodeDelta(removed_gpu_uuids=[m.uuid("a", 0)])))
            stream.wait_for_revision(1, 2)
        assert "Traceback" not in process.log.read_text()
    finally:
        process.close()


@pytest.mark.slow
def test_open_streams_end_when_their_authority_is_no_longer_trusted(tmp_path: Path) -> None:
    old, new = FleetCertificates(tmp_path / "old"), FleetCertificates(tmp_path / "new")
    process = AggregatorProcess(tmp_path, tls=old.aggregator())
    process.start()
    folder = old.aggregator()
    try:
        with (
            ReportStream(process.address, old.node("a")) as stream,
            process.cluster(tls=old.reader()) as cluster,
        ):
            stream.send(m.hello("a"), m.snapshot(R(1, 1), m.state("a")))
            stream.wait_for_revision(1, 1)
            watch = cluster.WatchGpus(cluster_pb2.WatchGpusRequest())
            assert next(watch).reset
            # Both are trusted while hosts get their new certificates: nothing ends.
            both = (old.node("a") / "ca.crt").read_bytes() + (new.aggregator() / "ca.crt").read_bytes()
            (folder / "ca.crt").write_bytes(both)
            assert list_nodes(process, old.reader()) == {"a"}
            stream.send(m.delta(R(1, 1), R(1, 2), node_pb2.NodeDelta(removed_gpu_uuids=[m.uuid("a", 0)])))
            stream.wait_for_revision(1, 2)
            for name in ("ca.crt", "tls.crt", "tls.key"):
                (folder / name).write_bytes((new.aggregator() / name).read_bytes())
            error = stream.wait_for_error()
            assert (error.code(), reason(error)) == (grpc.StatusCode.UNAUTHENTICATED, RefusalReason.UNAUTHENTICATED)
            assert "no longer trusted" in error.details()
            assert refused(lambda: list(watch)).code() is grpc.StatusCode.UNAUTHENTICATED
            # The connection is still there, and of no use.
            again = refused(lambda: cluster.ListPools(cluster_pb2.ListPoolsRequest(), timeout=DEADLINE_SECONDS))
            assert again.code() is grpc.StatusCode.UNAUTHENTICATED
        assert list_nodes(process, new.reader()) == {"a"}
        assert "Traceback" not in process.log.read_text()
    finally:
        process.close()


@pytest.mark.slow
def test_one_peer_has_its_share_and_others_have_theirs(fleet: FleetCertificates, tmp_path: Path) -> None:
    process = AggregatorProcess(
        tmp_path, "--requests-per-second", "5", "--streams-per-peer", "3", tls=fleet.aggregator()
    )
    process.start()
    try:
        greedy, modest = fleet.reader("greedy"), fleet.reader("modest")
        with process.cluster(tls=greedy) as cluster, process.cluster(tls=modest) as other:

            def ask_until_refused() -> grpc.RpcError:
                for _ in range(100):
                    cluster.ListPools(cluster_pb2.ListPoolsRequest(), timeout=DEADLINE_SECONDS)
                raise AssertionError("never refused")

            error = refused(ask_until_refused)
            assert (error.code(), reason(error)) == (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                RefusalReason.TOO_MANY_REQUESTS,
            )
            watches = []
            for _ in range(3):
                watches.append(other.WatchGpus(cluster_pb2.WatchGpusRequest()))
                assert next(watches[-1]).reset
            error = refused(lambda: next(other.WatchGpus(cluster_pb2.WatchGpusRequest())))
            assert reason(error) is RefusalReason.TOO_MANY_STREAMS
            watches.pop().cancel()

            def watches_again() -> bool:
                call = other.WatchGpus(cluster_pb2.WatchGpusRequest())
                try:
                    return next(call).reset
                except grpc.RpcError:
                    return False
                finally:
                    call.cancel()

            wait_until(watches_again, "room for one more")
    finally:
        process.close()


def test_a_message_that_is_too_large_is_refused_and_others_live_on(
    aggregator: AggregatorProcess, fleet: FleetCertificates
) -> None:
    with (
        ReportStream(aggregator.address, fleet.node("large")) as large,
        ReportStream(aggregator.address, fleet.node("small")) as small,
    ):
        small.send(m.hello("small"), m.snapshot(R(1, 1), m.state("small")))
        large.send(m.hello("large"))
        large.wait_for("welcome")
        large.send(b"\x00" * (4 * 2**20 + 1))
        assert large.wait_for_error().code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        small.wait_for_revision(1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--listen", "127.0.0.1:0"], ("--tls-dir", "--insecure")),
        (["--listen", "127.0.0.1:0", "--insecure", "--tls-dir", "GOOD"], ("contradict",)),
        (["--listen", "127.0.0.1:0", "--tls-dir", "/nowhere"], ("/nowhere/ca.crt", "hypervisor certs")),
        (["--token-listen", "127.0.0.1:0"], ("kubeconfig",)),
    ],
)
def test_what_is_not_secure_is_refused_at_the_start(
    fleet: FleetCertificates, tmp_path: Path, flags: list[str], words: tuple[str, ...]
) -> None:
    flags = [str(fleet.aggregator()) if flag == "GOOD" else flag for flag in flags]
    arguments = ["aggregator", "--store", str(tmp_path / "s.db"), "--http-listen", "127.0.0.1:0", *flags]
    done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 1
    for word in words:
        assert word in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_daemon_reports_and_serves_over_tls_and_takes_new_certificates(
    aggregator: AggregatorProcess, fleet: FleetCertificates, make_daemon
) -> None:
    tls = fleet.node("host-1")
    port = free_port()
    daemon = make_daemon(
        *("--node-name", "host-1", "--tls-dir", str(tls)),
        *("--listen", f"127.0.0.1:{port}", "--report-to", aggregator.address),
    ).start()
    daemon.wait_ready()
    reader = fleet.reader()

    def shown() -> int:
        with aggregator.cluster(tls=reader) as cluster:
            return sum(gpu.node_name == "host-1" for gpu in all_gpus(cluster).values())

    wait_until(lambda: shown() == 8, "the report")

    def gpus(with_: Path | None) -> int:
        with channel_to(f"127.0.0.1:{port}", with_) as channel:
            stub = node_pb2_grpc.NodeServiceStub(channel)
            return len(stub.ListGpus(node_pb2.ListGpusRequest(), timeout=DEADLINE_SECONDS).gpus)

    assert gpus(reader) == 8
    assert reason(refused(lambda: gpus(fleet.node("own")))) is RefusalReason.FORBIDDEN
    assert refused(lambda: gpus(None)).code() is grpc.StatusCode.UNAVAILABLE
    fleet.renew(tls)
    assert gpus(reader) == 8
    # The reporter takes the new pair at its next connection.
    aggregator.kill()
    aggregator.start()

    def fresh() -> bool:
        with aggregator.cluster(tls=reader) as cluster:
            nodes = cluster.ListNodes(cluster_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS).nodes
        return any(
            node.node.identity.name == "host-1" and node.liveness == cluster_pb2.LIVENESS_FRESH for node in nodes
        )

    wait_until(fresh, "the report after both restarts")


@pytest.mark.slow
def test_the_command_line_reads_with_a_certificate(aggregator: AggregatorProcess, fleet: FleetCertificates) -> None:
    def get(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [*PROGRAM, "get", "pools", "--server", aggregator.address, *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)

    assert get("--tls-dir", str(fleet.reader())).returncode == 0
    without = get()
    assert (without.returncode, "--tls-dir" in without.stderr) == (3, True)
    assert "certs reader" in get("--tls-dir", str(fleet.node("own"))).stderr
    assert get("--tls-dir", "/nowhere").returncode == 2
