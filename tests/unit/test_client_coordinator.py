"""The connection to a coordinator of groups: found, made again, given up; what it believes and what it does not."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fastlog.client import coordinator as module
from fastlog.client import group_requests as requests
from fastlog.client.addresses import Address
from fastlog.client.coordinator import (
    Coordinator,
    CoordinatorError,
    NotReachedError,
    OtherClusterError,
    meaning_of,
)
from fastlog.client.group_requests import Identity
from fastlog.client.kafka_connection import KafkaConnection
from fastlog.client.kafka_fields import Request
from fastlog.errors import ConfigError, CoordinationError, GroupCoordinatorError, ProtocolError, TransportError
from tests.harness.broker import wait_until
from tests.harness.fake_coordinator import FakeCoordinator
from tests.harness.timing import PATIENCE, sooner_than

WHO = Identity("m", 1)
HEARTBEAT = requests.heartbeat("g", WHO)


@pytest.fixture
def server() -> Iterator[FakeCoordinator]:
    with FakeCoordinator() as running:
        yield running


def coordinator(server: FakeCoordinator | str, timeout: float = PATIENCE) -> Coordinator:
    where = server if isinstance(server, str) else server.address
    return Coordinator(where, "g", client="me", timeout=timeout)


def beat(made: Coordinator, **more: Any) -> int:
    return made.ask(HEARTBEAT, requests.parse_code, lambda found: found, **more)


def code(number: int) -> dict[str, int]:
    return {"throttle_time": 0, "error_code": number}


def test_it_is_found_once(server: FakeCoordinator) -> None:
    """By the first request, on one connection, which tells who it is."""
    with coordinator(server) as made:
        assert not made.is_connected and made.broker_id == -1 and not made.cluster
        assert [beat(made) for _ in range(3)] == [0, 0, 0]
        assert server.seen == [18, 3, 10, 12, 12, 12] and server.connections == 1
        assert made.is_connected and (made.broker_id, made.cluster) == (7, "c")
        assert made.address == Address("127.0.0.1", server.port) and str(made) == server.address
    assert server.clients >= {"me"}


def test_what_it_refuses_is_an_answer(server: FakeCoordinator) -> None:
    server.scripts[12] = lambda _: code(27)
    with coordinator(server) as made:
        assert beat(made) == 27 and made.is_connected and server.count(12) == 1


@pytest.mark.parametrize("number", [14, 15, 16])
def test_one_that_has_just_begun_is_asked_again(server: FakeCoordinator, number: int) -> None:
    codes = iter([number, number, 0])
    server.scripts[12] = lambda _: code(next(codes))
    with coordinator(server) as made:
        assert beat(made) == 0
    assert server.count(12) == 3 and server.connections == 1


def test_one_that_does_not_get_ready_is_given_up(server: FakeCoordinator) -> None:
    """When the time is over; the text says what it said."""
    with coordinator(server, 0.1) as made:
        while not made.is_connected:
            with contextlib.suppress(NotReachedError):  # on a slow machine
                beat(made)
        server.scripts[12] = lambda _: code(14)
        began = time.monotonic()
        with pytest.raises(NotReachedError, match=r"within 0\.1 s: the coordinator is reading its log.*\(error 14\)"):
            beat(made)
        assert time.monotonic() - began < PATIENCE / 2 and not made.is_connected
        with pytest.raises(NotReachedError, match=r"within 0\.05 s"):
            beat(made, timeout=0.05)


def test_who_is_stopped_while_it_connects_waits_for_nothing(
    server: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.held.clear()
    connected = module.connected

    def slow(*given: Any) -> KafkaConnection:
        found = connected(*given)
        made.interrupt()  # in another thread, which sees no connection yet
        return found

    monkeypatch.setattr(module, "connected", slow)
    with coordinator(server) as made, sooner_than(PATIENCE), pytest.raises(GroupCoordinatorError, match="was closed"):
        beat(made)


def test_a_connection_that_breaks_is_made_again(server: FakeCoordinator) -> None:
    """In the middle of a request, and between two of them."""
    answers: Iterator[Any] = iter([code(0), None, code(0), code(0)])
    server.scripts[12] = lambda _: next(answers)
    with coordinator(server) as made:
        assert beat(made) == 0 and beat(made) == 0
        assert server.connections == 2 and server.count(12) == 3
        server.cut()
        assert beat(made) == 0 and server.connections == 3


def test_a_silent_one_is_given_up(server: FakeCoordinator) -> None:
    with coordinator(server, 0.2) as made:
        assert beat(made) == 0
        server.held.clear()
        with pytest.raises(NotReachedError, match="did not answer in time"):
            beat(made)
        assert not made.is_connected
        server.held.set()
        assert beat(made) == 0 and made.is_connected


def test_what_comes_unasked_is_taken_for_no_answer(server: FakeCoordinator) -> None:
    with coordinator(server) as made:
        server.scripts[12] = lambda _: code(25)
        assert beat(made) == 25
        server.extra = b"\0\0\0\x06\0\0\0\x09\0\0"
        assert beat(made) == 25
        deadline = time.monotonic() + PATIENCE
        while made._connection is not None and made._connection.is_quiet():
            assert time.monotonic() < deadline
        assert beat(made) == 25 and server.connections == 2


def test_an_answer_that_makes_no_sense_ends_the_connection(server: FakeCoordinator) -> None:
    with coordinator(server) as made:
        with pytest.raises(ProtocolError):
            made.ask(HEARTBEAT, requests.parse_joined)
        assert beat(made) == 0 and server.connections == 2


def test_the_coordinator_may_be_elsewhere(server: FakeCoordinator) -> None:
    """Then it is asked there; an address that the cluster does not have itself is not gone to."""
    with FakeCoordinator() as other, coordinator(other) as made:
        other.told = ("127.0.0.1", server.port)
        assert beat(made) == 0
        assert other.count(12) == 0 and server.seen == [18, 12] and made.address.port == server.port
    with FakeCoordinator() as other, coordinator(other) as made:
        other.scripts[10] = lambda _: code(0) | {"error_message": None, "node_id": 9, "host": "nowhere", "port": 1}
        assert beat(made) == 0 and made.address == Address("nowhere", 1) and made.broker_id == 9


def test_the_first_address_that_answers_counts(server: FakeCoordinator) -> None:
    with coordinator(f"127.0.0.1:1,{server.address}") as made:
        assert beat(made) == 0 and server.connections == 1
    with pytest.raises(ConfigError):
        coordinator("")
    nobody = pytest.raises(NotReachedError, match=r"s: 127.0.0.1:1: Connection refused; 127.0.0.1:2: Conn")
    with coordinator("127.0.0.1:1,127.0.0.1:2", 0.1) as made, nobody:
        beat(made)


def test_another_broker_at_the_same_address_is_refused(server: FakeCoordinator) -> None:
    """It has other groups; the former one may come back."""
    with coordinator(server) as made:
        assert beat(made) == 0
        server.cluster = "d"
        server.cut()
        for _ in range(2):
            with pytest.raises(OtherClusterError, match=r"cluster d, it was c"):
                beat(made)
        server.cluster = "c"
        assert beat(made) == 0


def test_who_may_not_ask_is_told_so(server: FakeCoordinator) -> None:
    nowhere = {"error_message": None, "node_id": -1, "host": "", "port": -1}
    server.scripts[10] = lambda _: code(30) | nowhere
    with coordinator(server) as made:
        with pytest.raises(CoordinatorError, match="group 'g': the broker does not allow that") as caught:
            beat(made)
        assert caught.value.code == 30 and not made.cluster
        codes = iter([15, 0])
        server.scripts[10] = lambda _: code(next(codes)) | nowhere | {"error_message": "soon"}
        assert beat(made) == 0


def test_a_broker_without_groups_is_named(server: FakeCoordinator) -> None:
    server.keys.remove(11)
    says = pytest.raises(GroupCoordinatorError, match=r"not coordinate groups \(requests \[11\]\)")
    with coordinator(server) as made, says:
        beat(made)


def test_a_broker_of_other_protocols_is_named(server: FakeCoordinator) -> None:
    server.scripts[18] = lambda _: None
    with coordinator(server, 0.2) as made, pytest.raises(NotReachedError, match="does not speak today's protocol"):
        beat(made)


def test_an_answer_may_take_long(server: FakeCoordinator) -> None:
    """What was posted is looked for; meanwhile nothing else is asked, unless that is given up."""
    with coordinator(server) as made:
        with pytest.raises(NotReachedError, match="nothing was posted"):
            made.poll(0)
        server.held.clear()
        with pytest.raises(NotReachedError):
            coordinator(server, 0.05).post(HEARTBEAT)
        server.held.set()
        made.post(HEARTBEAT)
        deadline = time.monotonic() + PATIENCE
        while (found := made.poll(0.01)) is None:
            assert time.monotonic() < deadline
        assert requests.parse_code(found) == 0 and made.is_connected
        with pytest.raises(NotReachedError, match="nothing was posted"):
            made.poll(0)
        server.scripts[12] = lambda _: code(27)
        server.held.clear()
        made.post(HEARTBEAT)
        assert made.poll(0.02) is None
        made.forget()
        server.held.set()
        connections = server.connections
        assert beat(made) == 27 and server.connections == connections + 1
        made.forget()
        assert beat(made) == 27 and server.connections == connections + 1


def test_a_connection_that_breaks_while_an_answer_is_waited_for(server: FakeCoordinator) -> None:
    with coordinator(server) as made:
        server.scripts[12] = lambda _: None
        made.post(HEARTBEAT)
        with pytest.raises(NotReachedError, match="is gone"):
            while made.poll(0.05) is None:
                pass
        assert not made.is_connected
        with pytest.raises(NotReachedError, match="nothing was posted"):  # nobody waits for what is lost
            made.poll(0)
        del server.scripts[12]
        assert beat(made) == 0


def test_an_answer_to_something_else_ends_the_connection(server: FakeCoordinator) -> None:
    with coordinator(server) as made:
        made.post(HEARTBEAT)
        made._posted += 1
        with pytest.raises(ProtocolError, match="is answered as"):
            while made.poll(0.05) is None:
                pass
        assert made._connection is None and beat(made) == 0 and server.connections == 2


def test_an_address_that_is_of_no_use_is_left(server: FakeCoordinator) -> None:
    """Its connection is closed before the next one is tried."""
    with FakeCoordinator() as first:
        nowhere = {"error_message": None, "node_id": -1, "host": "", "port": -1}
        first.scripts[10] = lambda _: code(15) | nowhere
        with coordinator(f"{first.address},{server.address}") as made:
            assert beat(made) == 0 and server.count(12) == 1
            wait_until("the first one is closed", lambda: not first._sockets)


def test_who_waits_can_be_interrupted(server: FakeCoordinator) -> None:
    """From another thread, at once, and for good."""
    with coordinator(server, 10 * PATIENCE) as made:
        assert beat(made) == 0
        server.held.clear()
        timer = threading.Timer(0.1, made.interrupt)
        timer.start()
        began = time.monotonic()
        with pytest.raises(CoordinationError, match="was closed"):
            beat(made)
        timer.join()
        assert time.monotonic() - began < PATIENCE and made.is_closed
        server.held.set()
        with pytest.raises(CoordinationError, match="was closed"):
            beat(made)
        made.close()
        made.close()


def test_who_is_interrupted_tries_no_other_address(server: FakeCoordinator) -> None:
    with FakeCoordinator() as first, coordinator(f"{first.address},{server.address}") as made:
        first.scripts[3] = lambda _: made.interrupt()  # type: ignore[func-returns-value]
        with pytest.raises(CoordinationError, match="was closed"):
            beat(made)
        assert (first.connections, server.connections) == (1, 0)


def test_what_is_asked_behind_what_was_posted_has_its_own_answer(server: FakeCoordinator) -> None:
    with coordinator(server) as made:
        made.post(HEARTBEAT)
        assert beat(made) == 0 and server.connections == 2
        with pytest.raises(NotReachedError, match="nothing was posted"):
            made.poll(0)


def test_a_connection_that_does_not_take_what_is_posted_is_left(
    server: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with coordinator(server) as made:
        assert beat(made) == 0
        former = made._connection
        assert former is not None

        def refuse(_: object, request: Request) -> int:
            raise TransportError("broken")

        monkeypatch.setattr(type(former), "send", refuse)
        with pytest.raises(NotReachedError, match="broken"):
            made.post(HEARTBEAT)
        assert not made.is_connected and made._connection is None and former.fileno() == -1
        monkeypatch.undo()
        assert beat(made) == 0 and server.connections == 2


def test_nothing_is_left_open(server: FakeCoordinator) -> None:
    with coordinator(server) as made:
        beat(made)
        connection = made._connection
        assert connection is not None and connection.fileno() >= 0
    assert connection.fileno() == -1


def test_every_code_has_words() -> None:
    assert meaning_of(22) == "the group has gone on without this member (error 22)"
    assert meaning_of(9999).endswith("(error 9999)")
    assert isinstance(CoordinatorError("x", 3), GroupCoordinatorError) and CoordinatorError("x", 3).code == 3


def test_a_name_that_nobody_knows_is_reported() -> None:
    with coordinator("surely.invalid:9092", 0.3) as made, pytest.raises(NotReachedError, match=r"surely\.invalid"):
        beat(made)
