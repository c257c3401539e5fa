"""The HTTP port: what it answers, what it refuses, and that no client can hold up another."""

from __future__ import annotations

import json
import random
import socket
from functools import partial

import pytest
import structlog
import trio
import trio.testing

from hypervisor.http import AddressInUse, HttpServer, MetricsPage, Routes, Unready, open_listeners
from hypervisor.http.message import Request, Response, error_response
from hypervisor.http.server import HttpLimits
from hypervisor.model import Condition, ConditionStatus, HealthCode, NodeIdentity, NodeSnapshot, Revision
from hypervisor.node.derive import Ratios, derive_gpus
from tests import node_values as v


def snapshot(count: int = 2, pods: int = 0) -> NodeSnapshot:
    inventory = v.inventory(*(v.device(index) for index in range(count)))
    allocations = tuple(
        v.allocation(
            f"a{number}", index=number % count, vram_bytes=v.GIB, share_ppm=10_000, owner=v.pod(f"<p{number}>")
        )
        for number in range(pods)
    )
    gpus = derive_gpus(
        inventory,
        allocations,
        foreign=dict.fromkeys((device.identity.uuid for device in inventory.devices), 0),
        ratios=Ratios(tflops=1.0, vram=1.0),
        previous={},
        now=1.0,
    )
    ready = Condition(
        type="Ready",
        status=ConditionStatus.FALSE,
        code=HealthCode.STARTING,
        message="starting <up>",
        last_transition_at=1.0,
    )
    return NodeSnapshot(
        identity=NodeIdentity(name="node", uid="u", boot_id="b"),
        revision=Revision(1, 2),
        version="0.1.0",
        system=inventory.system,
        started_at=1.0,
        conditions=(ready,),
        gpus=gpus,
        allocations=allocations,
        usages=tuple(v.usage(a.spec.allocation_id, index=a.grants[0].gpu_index) for a in allocations),
        workers=(),
        simulated=True,
    )


class Node:
    def __init__(self, shown: NodeSnapshot, reasons: tuple[Unready, ...] = ()) -> None:
        self._shown = shown
        self._reasons = reasons

    def snapshot(self) -> NodeSnapshot:
        return self._shown

    def unready(self) -> tuple[Unready, ...]:
        return self._reasons


async def render(accept: str, encoding: str) -> MetricsPage:
    if accept == "broken":
        raise RuntimeError("broken")
    return MetricsPage(content_type="text/plain", encoding="gzip" if encoding else "", body=b"m 1\n")


def serving(client, *, node: Node | None = None, limits: HttpLimits | None = None):
    """Run client(port, server) against a server on a free port."""

    async def main() -> None:
        server = HttpServer(Routes(node or Node(snapshot()), render).answer, limits=limits)
        listeners, url = await open_listeners("127.0.0.1", 0, holder=lambda _: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, listeners)
            with trio.fail_after(20):
                await client(int(url.rpartition(":")[2]), server)
            nursery.cancel_scope.cancel()

    trio.run(main)


async def exchange(port: int, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send raw bytes, read to the end."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(raw)
        data = b""
        async for chunk in stream:
            data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), headers, body


def request(path: str, *, method: str = "GET", headers: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n".encode()


def get(path: str, *, node: Node | None = None, **more):
    found = []

    async def client(port: int, _: HttpServer) -> None:
        found.append(await exchange(port, request(path, **more)))

    serving(client, node=node)
    return found[0]


def test_readiness_says_why_not() -> None:
    status, _, body = get("/readyz", node=Node(snapshot(), (Unready(code="Starting", message="wait"),)))
    assert status == 503
    assert json.loads(body) == {"status": "not ready", "reasons": [{"code": "Starting", "message": "wait"}]}
    status, _, body = get("/readyz")
    assert (status, json.loads(body)) == (200, {"status": "ok", "reasons": []})
    assert get("/healthz")[0] == 200


def test_devices_have_the_fields_that_scripts_expect() -> None:
    status, headers, body = get("/api/v1/devices")
    assert (status, headers["content-type"]) == (200, "application/json")
    first = json.loads(body)["data"][0]
    assert first["UUID"] == v.uuid(0)
    assert first["TotalMemoryBytes"] == v.VRAM
    assert first["MaxTflops"] == 989.0
    assert first["Healthy"] is True
    assert first["DeviceNode"] == {"/dev/nvidia0": "/dev/nvidia0"}
    assert first["Topology"]["Peers"] == [
        {"PeerUUID": v.uuid(1), "Tier": 0, "LinkType": "nvlink", "Bandwidth": 450_000_000_000}
    ]
    status, _, body = get(f"/api/v1/devices/{v.uuid(1).upper()}")
    assert (status, json.loads(body)["data"]["Index"]) == (200, 1)
    status, _, body = get("/api/v1/devices/GPU-none")
    assert status == 404
    assert "error" in json.loads(body)


def test_workers_and_pods() -> None:
    node = Node(snapshot(pods=1))
    (worker,) = json.loads(get("/api/v1/workers", node=node)[2])["data"]
    assert worker["WorkerInfo"]["WorkerUID"] == "uid-a0"
    assert worker["DeviceInfos"][0]["UUID"] == v.uuid(0)
    assert json.loads(get("/api/v1/pod", node=node)[2]) == {
        "pods": [
            {
                "pod_name": "<p0>",
                "namespace": "default",
                "gpu_uuids": [v.uuid(0)],
                "tflops_limit": 9.89,
                "vram_limit": v.GIB,
                "qos_level": "medium",
            }
        ]
    }


def test_page_shows_all_pods_and_escapes_their_names() -> None:
    status, headers, body = get("/", node=Node(snapshot(count=8, pods=64)))
    text = body.decode()
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "starting &lt;up&gt;" in text
    assert text.count("default/&lt;p") == 64
    assert "<p0>" not in text
    assert "http://" not in text
    assert "https://" not in text


def test_metrics_and_their_failure() -> None:
    status, headers, body = get("/metrics", headers="Accept-Encoding: gzip\r\n")
    assert (status, headers["content-encoding"], body) == (200, "gzip", b"m 1\n")
    with structlog.testing.capture_logs() as logs:
        status, _, body = get("/metrics", headers="Accept: broken\r\n")
    assert status == 500
    assert "log says why" in json.loads(body)["error"]
    assert logs[0]["path"] == "/metrics"


def test_head_has_the_length_and_no_body() -> None:
    status, headers, body = get("/healthz", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) == len(b'{"status":"ok"}\n')


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (request("/nothing"), 404),
        (request("/", method="POST", headers="Content-Length: 3\r\n") + b"abc", 405),
        (request("/", method="DELETE"), 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /%ff%00%2e%2e/etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
    ],
)
def test_bad_requests_are_refused(raw: bytes, status: int) -> None:
    async def client(port: int, _: HttpServer) -> None:
        assert (await exchange(port, raw))[0] == status
        assert (await exchange(port, request("/healthz")))[0] == 200

    serving(client)


def test_no_bytes_can_end_the_server() -> None:
    """Random requests, many in one server's life; between them it answers others."""
    seeded = random.Random(7)
    pieces = [
        b"GET ",
        b"/",
        b" HTTP/1.1\r\n",
        b"Host: x\r\n",
        b"\r\n",
        b"Content-Length: 9\r\n",
        b"\x00\xff",
        b"%2e%zz",
    ]

    async def client(port: int, server: HttpServer) -> None:
        for _ in range(150):
            raw = b"".join(
                seeded.choice(pieces) if seeded.random() < 0.8 else seeded.randbytes(seeded.randrange(40))
                for _ in range(seeded.randrange(1, 12))
            )
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                await stream.send_all(raw)
                await stream.send_eof()
                try:
                    async for _ in stream:
                        pass
                except trio.BrokenResourceError:
                    continue  # cut off, which is an answer too
        assert (await exchange(port, request("/healthz")))[0] == 200
        assert server.statistics().failures_total == 0

    serving(client)


def test_connections_are_kept_and_bodies_end_them() -> None:
    async def client(port: int, server: HttpServer) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            for _ in range(3):
                await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                data = b""
                while b'{"status":"ok"}\n' not in data:
                    data += await stream.receive_some()
        assert server.statistics().requests_total == 3
        assert server.statistics().connections_total == 1
        raw = b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
        status, headers, _ = await exchange(port, raw)
        assert (status, headers["connection"]) == (200, "close")

    serving(client)


def test_slow_clients_are_cut_and_hold_up_nobody() -> None:
    limits = HttpLimits(connections=4, head_seconds=0.3, answer_seconds=0.3, connection_seconds=5)

    async def client(port: int, server: HttpServer) -> None:
        slow = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(3)]
        for stream in slow:
            await stream.send_all(b"GET / HTT")
        assert (await exchange(port, request("/healthz")))[0] == 200
        for stream in slow:
            assert await stream.receive_some() == b""
            await stream.aclose()
        assert server.statistics().timeouts_total == 3

    serving(client, limits=limits)


def test_a_probe_takes_the_place_of_who_waits_longest() -> None:
    async def client(port: int, server: HttpServer) -> None:
        held = []
        for number in range(50):  # far more than there are places
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(b"GET / HT")
            held.append(stream)
            while server.statistics().connections_total <= number:
                await trio.testing.wait_all_tasks_blocked(0.001)
        assert (await exchange(port, request("/healthz")))[0] == 200
        assert await held[0].receive_some() == b""
        found = server.statistics()
        assert (found.refused_total, found.timeouts_total, found.displaced_total) == (0, 0, 50 + 1 - 4)
        assert found.open_connections <= 4
        for stream in held:
            await stream.aclose()

    serving(client, limits=HttpLimits(connections=4, hurried=2))


def test_a_probe_gets_through_while_all_are_being_answered_and_too_many_are_told_so() -> None:
    async def main() -> None:
        done = trio.Event()

        async def answer(asked: Request) -> Response:
            if asked.path == "/slow":
                await done.wait()
            return error_response(200, "none")

        server = HttpServer(answer, limits=HttpLimits(connections=2, hurried=1, hurried_seconds=5))
        listeners, url = await open_listeners("127.0.0.1", 0, holder=lambda _: None)
        port = int(url.rpartition(":")[2])

        async def slow(nursery: trio.Nursery, count: int) -> None:
            nursery.start_soon(exchange, port, request("/slow"))
            while server.statistics().requests_total < count:
                await trio.testing.wait_all_tasks_blocked(0.001)

        with trio.fail_after(20):
            async with trio.open_nursery() as serving_nursery:
                serving_nursery.start_soon(server.serve, listeners)
                async with trio.open_nursery() as nursery:
                    await slow(nursery, 1)
                    await slow(nursery, 2)
                    assert (await exchange(port, request("/healthz")))[0] == 200
                    await slow(nursery, 4)
                    assert (await exchange(port, b""))[0] == 503
                    done.set()
                while server.statistics().open_connections:
                    await trio.testing.wait_all_tasks_blocked(0.001)
                assert (await exchange(port, request("/healthz")))[0] == 200
                serving_nursery.cancel_scope.cancel()

    trio.run(main)


def test_holder_of_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(AddressInUse, match=rf"127.0.0.1:{port} is in use by process 7 \(x\).*--http-port"):
            trio.run(partial(open_listeners, holder=lambda _: "process 7 (x)"), "127.0.0.1", port)


def test_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(AddressInUse, match="--http-listen"):
        trio.run(partial(open_listeners, holder=lambda _: None), "203.0.113.1", 0)
