"""Ports for servers that start later or come back."""

from __future__ import annotations

import socket

import pytest

from tests.harness import ports
from tests.harness.ports import unused_port


def test_nobody_listens_until_a_server_does_which_may_come_back() -> None:
    port = unused_port()
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            pass


def test_nobody_else_gets_it_until_many_more_were_asked_for() -> None:
    port = unused_port()
    given = {port}
    for _ in range(ports._MOST_KEPT - 1):
        given.add(unused_port())
        with socket.socket() as other, pytest.raises(OSError, match="already in use"):
            other.bind(("127.0.0.1", port))
    assert len(given) == ports._MOST_KEPT
    unused_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
