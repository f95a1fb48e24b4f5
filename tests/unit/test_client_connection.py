"""What a client's connection asks of its socket."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fastlog.client.connection import Connection

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")  # to everybody, not to root alone


def congestion_control(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_nothing_is_paced_between_sockets_of_one_machine(host: str) -> None:
    """Whatever the system's default is: BBR paces on loopback too."""
    others = [name for name in ALLOWED.read_bytes().split() if name != b"reno"]
    if not others:
        pytest.skip("this system has no other congestion control to begin with")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        sock = socket.create_connection(listener.getsockname()[:2])
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, others[0])
        assert congestion_control(sock) == others[0]
        with Connection(sock, 1.0):
            assert congestion_control(sock) == b"reno"
