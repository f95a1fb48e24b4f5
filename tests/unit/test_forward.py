"""Requests that the coordinator answers, from the client's bytes to its own, and the ends of either process."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from fastlog.config import BrokerConfig
from fastlog.log import _files
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import COORDINATOR, FIRST_PROCESSOR
from fastlog.log.manager import LogManager
from fastlog.workers import child
from fastlog.workers.coordinator.frames import BODY_BYTES, HEAD_BYTES, LAYOUT, PIECE_BYTES, Frame, Head
from fastlog.workers.coordinator.loop import Loop
from fastlog.workers.coordinator.process import Answer, Coordinator
from fastlog.workers.net.handover import HandOver
from tests import toy_protocol
from tests.harness import raw_client as raw
from tests.harness.broker import wait_until
from tests.harness.calls import Call, read_calls
from tests.harness.processor import Processor
from tests.harness.timing import PATIENCE

Place = tuple[Processor, Callable[[], socket.socket]]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Place]:
    """A processor, and a function that connects to it."""
    running = Processor(tmp_path, forwarding=toy_protocol.make_forwarding)
    clients: list[socket.socket] = []

    def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            running.send_record(theirs, HandOver(1, "10.1.2.3", 4711))
        ours.settimeout(PATIENCE)
        clients.append(ours)
        return ours

    yield running, connect
    for each in clients:
        each.close()
    while Played.made:
        Played.made.pop().coordinator.close()
    running.close()


def request(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def received(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += client.recv(size - len(data)) or pytest.fail("it has ended")
    return data


class Played:
    """A coordinator on the test's own thread, which answers when the test says so."""

    made: ClassVar[list[Played]] = []

    def __init__(self, running: Processor) -> None:
        fd = running.coordinator.fileno()
        config = BrokerConfig(log_dirs=tuple(running.arena.log_dirs))
        shared = child.Shared(config, running.arena, (), (), (), 64, forward_coordinator=(fd,))
        self.loop = Loop()
        self.asked: list[tuple[Frame, Answer]] = []
        self.coordinator = Coordinator(shared, self.loop, lambda frame, answer, _: self.asked.append((frame, answer)))
        Played.made.append(self)

    def wait_asked(self, count: int) -> list[tuple[Frame, Answer]]:
        """Turn until so many requests have come whole; takes them."""

        def is_enough() -> bool:
            self.coordinator.turn(0.02)
            return len(self.asked) >= count

        wait_until(f"{count} requests", is_enough)
        assert len(self.asked) == count
        found, self.asked = self.asked, []
        return found

    def turn_until(self, what: str, holds: Callable[[], bool]) -> None:
        wait_until(what, lambda: bool(self.coordinator.turn(0.01)) or holds())

    def die(self, running: Processor) -> None:
        """As the supervisor says it."""
        Played.made.remove(self)
        self.coordinator.close()
        running.arena.end_incarnation(COORDINATOR)
        running.arena.wake_all()


def is_over(client: socket.socket) -> bool:
    client.settimeout(PATIENCE)
    return client.recv(1) == b""


@pytest.mark.parametrize("size", [1, 100, BODY_BYTES, BODY_BYTES + 1, 5_000_000])
def test_a_request_and_its_answer_come_as_they_are(served: Place, size: int) -> None:
    running, connect = served
    played = Played(running)
    source = random.Random(size)
    body, made = source.randbytes(size), source.randbytes(size)
    client = connect()
    sending = threading.Thread(target=client.sendall, args=(request(body),))
    sending.start()
    ((frame, answer),) = played.wait_asked(1)
    sending.join(PATIENCE)
    assert frame.body == body
    assert (frame.principal, frame.listener, frame.host, frame.port) == (0, 1, "10.1.2.3", 4711)
    answer(made)
    got: list[bytes] = []
    receiving = threading.Thread(target=lambda: got.append(received(client, size)))
    receiving.start()
    played.turn_until("it is received", lambda: bool(got))
    assert got == [made]
    assert running.loop.held["jobs"] == 0
    wait_until("its memory is given back", lambda: running.loop.answer_bytes < 200_000)


def test_requests_of_one_connection_come_one_after_the_other(served: Place) -> None:
    running, connect = served
    played = Played(running)
    client = connect()
    client.sendall(request(b"one") + request(b"two"))
    ((first, answer),) = played.wait_asked(1)
    played.coordinator.turn(0.05)
    assert first.body == b"one" and not played.asked
    answer(b"ONE")
    ((second, answer),) = played.wait_asked(1)
    assert (second.body, second.connection) == (b"two", first.connection) and second.number > first.number
    answer(b"TWO")
    played.coordinator.turn(0)
    assert received(client, 6) == b"ONETWO"


def test_connections_do_not_wait_for_each_other(served: Place) -> None:
    running, connect = served
    played = Played(running)
    clients = [connect() for _ in range(40)]
    for number, client in enumerate(clients):
        client.sendall(request(b"%d" % number))
    asked = played.wait_asked(40)
    assert len({frame.connection for frame, _ in asked}) == 40
    random.Random(1).shuffle(asked)
    for frame, answer in asked:
        answer(b"[" + frame.body + b"]")
    played.coordinator.turn(0)
    for number, client in enumerate(clients):
        assert received(client, len(b"[%d]" % number)) == b"[%d]" % number
    assert running.loop.held["jobs"] == 0


@pytest.mark.parametrize("body", [b"", bytes((16 << 20) + 1)])
def test_a_request_that_the_coordinator_does_not_take_ends_its_connection(served: Place, body: bytes) -> None:
    running, connect = served
    client = connect()
    sending = threading.Thread(target=client.sendall, args=(request(body),))
    sending.start()
    assert is_over(client)
    sending.join(PATIENCE)
    with pytest.raises(BlockingIOError):
        running.coordinator.recv(1)


def test_no_answer_ends_the_connection_and_no_other(served: Place) -> None:
    running, connect = served
    played = Played(running)
    one, other = connect(), connect()
    one.sendall(request(b"one"))
    ((_, answer),) = played.wait_asked(1)
    other.sendall(request(b"other"))
    ((_, answer_other),) = played.wait_asked(1)
    answer(None)
    assert is_over(one)
    answer_other(b"!")
    assert received(other, 1) == b"!"


def test_a_handler_that_raises_ends_the_connection(served: Place, caplog: pytest.LogCaptureFixture) -> None:
    running, connect = served
    played = Played(running)

    def fails(_frame: Frame, _answer: Answer) -> None:
        raise ValueError("as a test wants")

    played.coordinator._handle = fails
    client = connect()
    client.sendall(request(b"one"))
    played.turn_until("it has been asked", lambda: "was not handled" in caplog.text)
    assert is_over(client)
    assert played.coordinator._held == 0


# -- a coordinator that dies -------------------------------------------------------------------------------------------


def test_connections_with_a_frame_under_way_close_and_the_others_live_on(served: Place) -> None:
    running, connect = served
    first = Played(running)
    asking, resting = connect(), connect()
    asking.sendall(request(b"one"))
    first.wait_asked(1)
    first.die(running)
    assert is_over(asking)
    second = Played(running)
    resting.sendall(request(b"two"))
    ((frame, answer),) = second.wait_asked(1)
    assert frame.body == b"two"
    answer(b"TWO")
    assert received(resting, 3) == b"TWO"
    assert running.loop.held["jobs"] == 0


def test_what_the_dead_one_had_half_of_closes_and_what_it_had_none_of_is_its_successors(served: Place) -> None:
    """It reads nothing, so a large frame stands in the socket, and the next waits behind it."""
    running, connect = served
    first = Played(running)
    half, whole = connect(), connect()
    sending = threading.Thread(target=half.sendall, args=(request(bytes(4_000_000)),))
    sending.start()
    sending.join(PATIENCE)
    wait_until("it is under way", lambda: running.loop.held["jobs"] == 1)
    whole.sendall(request(b"whole"))
    wait_until("both are under way", lambda: running.loop.held["jobs"] == 2)
    first.die(running)
    assert is_over(half)
    second = Played(running)
    ((frame, answer),) = second.wait_asked(1)
    assert frame.body == b"whole"
    answer(b"!")
    assert received(whole, 1) == b"!"


def test_an_answer_of_the_dead_one_is_dropped(served: Place) -> None:
    """It stood in the socket when its sender died, for a frame number that may be another's by now."""
    running, connect = served
    first = Played(running)
    client = connect()
    client.sendall(request(b"one"))
    ((frame, _),) = first.wait_asked(1)
    first.die(running)
    assert is_over(client)
    again = connect()
    second = Played(running)
    again.sendall(request(b"two"))
    ((now, answer),) = second.wait_asked(1)
    old = Head(now.number, now.connection, now.incarnation, 0, 3, 0).pack() + b"OLD"
    running.coordinator.send(old)
    answer(b"NEW")
    assert received(again, 3) == b"NEW"
    assert frame.number != now.number


# -- a processor that dies ---------------------------------------------------------------------------------------------


def test_answers_for_a_dead_processor_go_nowhere(served: Place) -> None:
    running, connect = served
    played = Played(running)
    client = connect()
    client.sendall(request(b"one"))
    ((_, answer),) = played.wait_asked(1)
    running.arena.end_incarnation(FIRST_PROCESSOR)
    answer(b"ONE")
    (link,) = played.coordinator._links
    assert not link.has_answers and link.queued == 0


def test_what_waits_for_a_dead_processor_is_forgotten(served: Place) -> None:
    running, connect = served
    played = Played(running)
    clients = [connect() for _ in range(20)]
    for client in clients:
        client.sendall(request(b"one"))
    (link,) = played.coordinator._links
    asked = played.wait_asked(20)
    running.arena.end_incarnation(FIRST_PROCESSOR)  # and nobody reads any more
    played.coordinator.wake()
    for _, answer in asked:
        answer(bytes(100_000))
    assert link.queued == 0 and not link.has_answers


# -- nobody blocks -----------------------------------------------------------------------------------------------------


def test_a_coordinator_that_does_not_read_holds_up_nobody_else(served: Place) -> None:
    """The loop goes on with other connections, and sends the rest when there is room."""
    running, connect = served
    clients = [connect() for _ in range(8)]
    bodies = [bytes([number]) * 300_000 for number in range(8)]
    sending = [
        threading.Thread(target=each.sendall, args=(request(body),)) for each, body in zip(clients, bodies, strict=True)
    ]
    for each in sending:
        each.start()
    for each in sending:
        each.join(PATIENCE)
    wait_until("all are under way", lambda: running.loop.held["jobs"] == 8)
    with running.connect() as other:
        other.sendall(struct.pack(">ih", 2, 77))  # a kind that Kafka 0.7 does not know
        assert is_over(other)
    turns = running.loop.turns
    threading.Event().wait(0.3)
    assert running.loop.turns - turns < 10, "it turns without anything to do"
    played = Played(running)
    asked = played.wait_asked(8)
    assert sorted(frame.body for frame, _ in asked) == bodies
    for frame, answer in asked:
        answer(frame.body[:1])
    for number, client in enumerate(clients):
        assert received(client, 1) == bytes([number])


def test_a_processor_that_does_not_take_answers_gets_no_more_requests_handled(tmp_path: Path) -> None:
    """What the coordinator holds for it stays within bounds."""
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 8, 16)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in (ours, theirs):
        one.setblocking(False)
    config = BrokerConfig(log_dirs=(str(tmp_path),))
    shared = child.Shared(config, arena, (), (), (), 64, forward_coordinator=(theirs.fileno(),))
    asked = 0

    def handle(_frame: Frame, answer: Answer, _let_go: object) -> None:
        nonlocal asked
        asked += 1
        answer(bytes(1 << 20))

    coordinator = Coordinator(shared, Loop(), handle)
    sent = 0
    for _ in range(3000):
        try:
            ours.send(Head(sent, 1, 0, 0, 1, 0).pack() + b"x")
            sent += 1
        except BlockingIOError:
            pass
        coordinator.turn(0)
    (link,) = coordinator._links
    assert (32 << 20) < link.queued < (32 << 20) + 64 * (1 << 20)
    assert asked < sent
    before, count = asked, 0
    while asked < sent or link.has_answers:
        with contextlib.suppress(BlockingIOError):
            count += len(ours.recv(PIECE_BYTES)) - HEAD_BYTES
        coordinator.turn(0)
    while True:
        try:
            count += len(ours.recv(PIECE_BYTES)) - HEAD_BYTES
        except BlockingIOError:
            break
    assert count == sent << 20 and before < asked == sent
    coordinator.close()
    for one in (ours, theirs):
        one.close()


@pytest.mark.parametrize("body", [b"", b"x"], ids=["without a byte", "that raises"])
def test_a_request_that_cannot_be_handled_is_answered_by_none(body: bytes, tmp_path: Path) -> None:
    """And lets go of what it held: the next one is handled."""
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 8, 16)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in (ours, theirs):
        one.setblocking(False)
    config = BrokerConfig(log_dirs=(str(tmp_path),))
    shared = child.Shared(config, arena, (), (), (), 64, forward_coordinator=(theirs.fileno(),))
    handled: list[bytes] = []

    def handle(frame: Frame, answer: Answer, _let_go: object) -> None:
        handled.append(frame.body)
        if frame.body == b"x":
            raise ZeroDivisionError("of a test")
        answer(b"answer")

    coordinator = Coordinator(shared, Loop(), handle)

    def answered(number: int, sent: bytes) -> bytes:
        ours.send(Head(number, 1, 0, 0, len(sent), 0).pack() + sent)
        data = b""
        for _ in range(20):
            coordinator.turn(0.01)
            with contextlib.suppress(BlockingIOError):
                data += ours.recv(PIECE_BYTES)
        return data

    assert len(answered(0, body)) % HEAD_BYTES == 0
    assert handled == ([body] if body else [])
    assert b"answer" in answered(1, b"good")
    coordinator.close()
    for one in (ours, theirs):
        one.close()


def test_requests_that_are_not_answered_are_received_up_to_a_bound(served: Place) -> None:
    """Beyond it, one whose beginning is there already still comes whole; no other begins."""
    running, connect = served
    played = Played(running)
    clients = [connect() for _ in range(9)]
    sending = [threading.Thread(target=each.sendall, args=(request(bytes(12 << 20)),)) for each in clients]
    for each in sending:
        each.start()
    played.turn_until("the bound is reached", lambda: len(played.asked) >= 6)
    for _ in range(100):
        played.coordinator.turn(0.002)
    assert 6 <= len(played.asked) <= 7
    while played.asked or any(each.is_alive() for each in sending) or running.loop.held["jobs"]:
        for _, answer in played.asked:
            answer(b"!")
        played.asked.clear()
        played.coordinator.turn(0.002)
    for each in sending:
        each.join(PATIENCE)


# -- connections that close in between ---------------------------------------------------------------------------------


def test_a_connection_that_is_reset_waits_for_no_answer(served: Place) -> None:
    """Its request is handled; the answer is for nobody."""
    running, connect = served
    played = Played(running)
    client = connect()
    client.sendall(request(b"one"))
    ((_, answer),) = played.wait_asked(1)
    client.close()
    wait_until("it is gone", lambda: running.open_connections == 0)
    assert running.loop.held["jobs"] == 0
    answer(b"ONE")
    other = connect()
    other.sendall(request(b"two"))
    ((_, answer),) = played.wait_asked(1)
    answer(b"TWO")
    assert received(other, 3) == b"TWO"


def test_a_request_that_is_received_goes_out_whole_when_its_connection_is_reset(served: Place) -> None:
    """Nothing that was received is cancelled. Half of it stands in the socket, because nobody reads."""
    running, connect = served
    client = connect()
    sending = threading.Thread(target=client.sendall, args=(request(bytes(1_000_000)),))
    sending.start()
    sending.join(PATIENCE)
    wait_until("it is under way", lambda: running.loop.held["jobs"] == 1)
    client.close()
    played = Played(running)
    ((frame, answer),) = played.wait_asked(1)
    assert len(frame.body) == 1_000_000
    wait_until("it is gone", lambda: running.open_connections == 0)
    answer(b"!")
    assert running.loop.held["jobs"] == 0


def stands_there(record: Path) -> bool:
    return Call("life.processor_past", pid=os.getpid()) in read_calls(record)


def test_an_answer_and_the_end_of_its_connection_come_in_one_turn(served: Place, tmp_path: Path) -> None:
    """The answer has come, and nobody has taken it yet, when the connection is found to be gone."""
    running, connect = served
    played = Played(running)
    manager = LogManager(running.config, running.arena)
    for turn in range(3):
        client, other = connect(), connect()
        for each in (client, other):
            each.sendall(request(b"one"))
        (_, first), (_, second) = played.wait_asked(2)
        record = tmp_path / f"calls-{turn}"
        _files.record(str(record))
        _files.arm("life.processor_past@1=slow:300", "test")
        manager.create_partition(f"t{turn}", 0)
        running.arena.wake_all()
        wait_until("it stands before its next turn", partial(stands_there, record))
        _files.record(None)
        first(b"ONE")
        second(b"ONE")
        played.coordinator.turn(0)
        client.close()
        assert received(other, 3) == b"ONE"
        other.close()
        wait_until("they are gone", lambda: running.open_connections == 0)
        assert running.loop.held["jobs"] == 0


@pytest.mark.parametrize("seed", range(3))
def test_pieces_that_nobody_asked_for_change_nothing(served: Place, seed: int) -> None:
    """Hostile heads and rubbish, then an answer as it should be."""
    running, connect = served
    played = Played(running)
    client = connect()
    client.sendall(request(b"one"))
    ((frame, answer),) = played.wait_asked(1)
    source = random.Random(seed)
    right = Head(frame.number, frame.connection, frame.incarnation, 0, 10, 0)
    for _ in range(200):
        wrong = right._replace(
            **{source.choice(["number", "connection", "processor", "coordinator"]): source.getrandbits(60)}
        )
        piece = source.choice([source.randbytes(source.randrange(1, 300)), wrong.pack() + b"0123456789"])
        played.turn_until("there is room", lambda piece=piece: _sent(running, piece))  # type: ignore[misc]
    answer(b"RIGHT")
    played.coordinator.turn(0)
    assert received(client, 5) == b"RIGHT"


@pytest.mark.parametrize(
    ("total", "place", "size"), [(5, 1, 2), (5, 0, 6), (5, 0, 0), ((64 << 20) + 1, 0, 5), (2**32 - 1, 2**32 - 2, 1)]
)
def test_an_answer_that_cannot_be_ends_the_connection(served: Place, total: int, place: int, size: int) -> None:
    running, connect = served
    played = Played(running)
    client = connect()
    client.sendall(request(b"one"))
    ((frame, _),) = played.wait_asked(1)
    running.coordinator.send(Head(frame.number, frame.connection, 0, 0, total, place).pack() + bytes(size))
    assert is_over(client)
    assert running.loop.held["jobs"] == 0
    assert running.loop.answer_bytes < 100_000


def test_an_answer_that_grows_on_its_way_ends_the_connection(served: Place) -> None:
    running, connect = served
    played = Played(running)
    client = connect()
    client.sendall(request(b"one"))
    ((frame, _),) = played.wait_asked(1)
    for total, place, size in ((10, 0, 5), (1000, 5, 995)):
        running.coordinator.send(Head(frame.number, frame.connection, 0, 0, total, place).pack() + bytes(size))
    assert is_over(client)
    assert running.loop.held["jobs"] == 0


def test_an_answer_before_the_end_of_its_request_is_none(served: Place) -> None:
    running, connect = served
    client = connect()
    body = bytes(1_000_000)
    sending = threading.Thread(target=client.sendall, args=(request(body),))
    sending.start()
    came = 0
    while came < len(body):
        wait_until("a piece", lambda: select.select([running.coordinator], [], [], 0.05)[0])
        piece = running.coordinator.recv(PIECE_BYTES)
        head = Head._make(LAYOUT.unpack_from(piece))
        came += len(piece) - HEAD_BYTES
        if head.place == 0:
            running.coordinator.send(Head(head.number, head.connection, 0, 0, 5, 0).pack() + b"early")
            # before there is room for the rest of the request
            wait_until("it is taken", lambda: not raw.unacknowledged(running.coordinator))
    sending.join(PATIENCE)
    running.coordinator.send(Head(head.number, head.connection, 0, 0, 5, 0).pack() + b"RIGHT")
    assert received(client, 5) == b"RIGHT"


def test_the_memory_of_a_half_answer_is_given_back(served: Place) -> None:
    running, connect = served
    played = Played(running)
    client = connect()
    client.sendall(request(b"one"))
    ((frame, _),) = played.wait_asked(1)
    running.coordinator.send(Head(frame.number, frame.connection, 0, 0, 5_000_000, 0).pack() + bytes(1000))
    wait_until("it is counted", lambda: running.loop.answer_bytes >= 5_000_000)
    played.die(running)
    assert is_over(client)
    wait_until("it is given back", lambda: running.loop.answer_bytes < 100_000)


def _sent(running: Processor, piece: bytes) -> bool:
    try:
        running.coordinator.send(piece)
    except BlockingIOError:
        return False
    return True
