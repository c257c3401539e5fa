"""gRPC settings that matter, for servers and for clients. Measured; the reason stands beside each."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 4 * 2**20


def keepalive(idle_seconds: int, answer_seconds: int) -> tuple[tuple[str, int], ...]:
    """Options by which a silent peer is found out: asked after so long a silence, given up after so much more."""
    return (
        ("grpc.keepalive_time_ms", idle_seconds * 1000),
        ("grpc.keepalive_timeout_ms", answer_seconds * 1000),
        # It is this one that ends the connection, a minute by default, whatever the one above says.
        ("grpc.http2.ping_timeout_ms", answer_seconds * 1000),
    )


SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Without it a second daemon would quietly share the port of the first.
    ("grpc.so_reuseport", 0),
    # By default the server sheds calls when many streams open at once, after a restart for instance.
    ("grpc.server.max_pending_requests", 1000),
    ("grpc.server.max_pending_requests_hard_limit", 2000),
    # One client can't hold more than this on one connection.
    ("grpc.max_concurrent_streams", 1000),
    # Clients may ping every second; the default answers that with GOAWAY.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    # Our own pings find dead TCP peers; a unix socket needs none, and they cost nothing there.
    *keepalive(60, 20),
)

CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # The default lets a client stay away two minutes after a long outage of the server.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 3000),
    # In spite of its name the time that one attempt may take, the server's first frame included, which a busy machine
    # needs; an attempt that is refused is over at once.
    ("grpc.min_reconnect_backoff_ms", 5000),
    # Ours, the machine's, or a proxy's: a daemon on this host is never behind one.
    ("grpc.enable_http_proxy", 0),
)
