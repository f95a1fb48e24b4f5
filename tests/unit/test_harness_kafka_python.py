"""What kafka-python leaves open is freed where it was made, and is no error of a test that comes later."""

from __future__ import annotations

import socket
import weakref

from tests.harness.kafka_python import sockets_may_stay_open


def test_a_socket_that_is_left_to_the_garbage_is_freed_without_a_warning() -> None:
    class Client:
        def __init__(self) -> None:
            self.socket = socket.socket()
            self.itself = self

    @sockets_may_stay_open()
    def leave_one() -> weakref.ref[socket.socket]:
        return weakref.ref(Client().socket)

    left = leave_one()
    assert left() is None
