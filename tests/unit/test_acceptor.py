"""The acceptor: who gets a connection, when it pauses, what it does without room or descriptors, and how it leaves."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from fastlog import acceptor as acceptor_module
from fastlog.acceptor import ACCEPTS_PER_TURN, Acceptor
from fastlog.broker import BACKLOG
from fastlog.config import BrokerConfig
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import ACCEPTOR, FIRST_PROCESSOR
from fastlog.workers.child import Listener, Shared
from fastlog.workers.net.handover import HandOver
from tests.harness.descriptors import open_descriptors
from tests.harness.virtual_time import VirtualTime

TICK = 0.25
PAUSE = 0.1
LEAVING = 2.0
"""What an acceptor takes at most for its leaving; processors wait 2.5 s for what it hands over."""
FULL = "accepting pauses reason=every hand-over queue is full: no processor takes connections now"


class Cells:
    """Stands for the arena: what processors say of themselves is set by the test."""

    def __init__(self, processors: int) -> None:
        self.processes = FIRST_PROCESSOR + processors
        self.stopping = 0
        self.busy = [0] * processors
        self.open = [0] * processors
        self.taken = [0] * processors
        self.pids = [1] * processors
        self.counted: dict[str, int] = {}
        self.beats = 0
        self.wakes_taken = 0
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def cell(self, number: int) -> tuple[int, int, int, int, int]:
        place = number - FIRST_PROCESSOR
        return self.pids[place], 0, self.busy[place], self.open[place], 0

    def handed_over(self, number: int) -> int:
        return self.taken[number - FIRST_PROCESSOR]

    def count(self, process: int, name: str, by: int = 1) -> None:
        assert process == ACCEPTOR
        self.counted[name] = self.counted.get(name, 0) + by

    def beat(self, process: int) -> None:
        assert process == ACCEPTOR
        self.beats += 1

    def eventfd(self, process: int) -> int:
        assert process == ACCEPTOR
        return self.wake_fd

    def wake_taken(self, process: int) -> None:
        assert process == ACCEPTOR
        self.wakes_taken += 1
        os.eventfd_read(self.wake_fd)


class Sockets:
    """Stands for the module ``socket``: some calls fail, and what was opened is closed with the test."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.accept_errors: list[int] = []  # for the next calls; 0: this one goes well
        self.accepts = 0
        self.send_errors: list[int] = []
        self.sends: list[int] = []  # the descriptor of each queue that was tried

        class Made(socket.socket):
            def accept(made) -> tuple[socket.socket, object]:
                self.accepts += 1
                _fail(self.accept_errors)
                connection, address = super().accept()
                stack.callback(connection.close)
                return connection, address

        def make(fileno: int) -> socket.socket:
            return stack.enter_context(Made(fileno=fileno))

        self.socket = make

    def send_fds(self, sender: socket.socket, buffers: list[bytes], fds: list[int]) -> int:
        self.sends.append(sender.fileno())
        _fail(self.send_errors)
        return socket.send_fds(sender, buffers, fds)


def _fail(errors: list[int]) -> None:
    number = errors.pop(0) if errors else 0
    if number:
        raise OSError(number, os.strerror(number))


class Place:
    """An acceptor with real sockets in virtual time: a listening socket, a queue for each processor, their load."""

    def __init__(self, stack: contextlib.ExitStack, processors: int = 2, **settings: Any) -> None:
        self.machine = VirtualTime()
        self.cells = Cells(processors)
        stack.callback(os.close, self.cells.wake_fd)
        self.listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        self.port = self.listener.getsockname()[1]
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(processors)]
        for pair in pairs:
            for end in pair:
                stack.enter_context(end)
        for ours, _ in pairs:
            ours.setblocking(False)
        self.receive = [ours for ours, _ in pairs]
        self.send = [theirs for _, theirs in pairs]
        self.stack = stack
        told = Listener("default", "kafka-0.7", "127.0.0.1", self.port, "127.0.0.1", self.port, self.listener.fileno())
        self.shared = Shared(
            BrokerConfig(processors=processors, **settings),
            cast(Arena, self.cells),
            (told,),
            tuple(end.fileno() for end in self.receive),
            tuple(end.fileno() for end in self.send),
            64,
            supervisor_pid=os.getppid(),
        )
        self.sockets = Sockets(stack)
        self.records: list[HandOver] = []  # that came with what was taken

    def begin(self) -> None:
        """A new acceptor, as after the death of one."""
        self.acceptor = Acceptor(self.shared)
        self.stack.callback(os.close, self.acceptor._spare)

    def connect(self, count: int = 1) -> list[socket.socket]:
        """Clients whose connections wait to be accepted."""
        return [self.stack.enter_context(socket.create_connection(("127.0.0.1", self.port))) for _ in range(count)]

    def arrive(self, count: int = 1) -> list[int]:
        """Let so many connect one after the other; which processor each went to, -1 for those that were refused."""
        found = []
        for _ in range(count):
            self.connect()
            self.run(0.01)
            (taken,) = self.taken() or [-1]
            found.append(taken)
        return found

    def run(self, seconds: float) -> None:
        """Let the acceptor work for a while; it goes on where it stopped when it is called again."""

        class Over(Exception):
            pass

        def end() -> None:
            raise Over

        self.machine.after(seconds, end)
        with pytest.raises(Over):
            self.acceptor.run()

    def stop(self) -> int:
        """Let it leave."""
        self.cells.stopping = 1
        return self.acceptor.run()

    def take(self, place: int, most: int = 1 << 20) -> list[socket.socket]:
        """What a processor finds in its queue; it closes them with the test."""
        found = []
        while len(found) < most:
            try:
                data, fds, _flags, _address = socket.recv_fds(self.receive[place], 64, 4)
            except BlockingIOError:
                break
            assert len(fds) == 1
            self.records.append(HandOver.unpack(data))
            found.append(self.stack.enter_context(socket.socket(fileno=fds[0])))
        return found

    def taken(self) -> list[int]:
        """For each connection in a queue, whose queue that is; they are taken out."""
        return [place for place in range(len(self.receive)) for _ in self.take(place)]

    def fill(self, place: int) -> int:
        """Fill the queue of a processor; how many it took."""
        with socket.socket() as some:
            for count in range(100_000):
                try:
                    socket.send_fds(self.send[place], [HandOver(0, "", 0).pack()], [some.fileno()])
                except OSError:
                    return count
        raise AssertionError("it has no end")


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Place]]:
    with contextlib.ExitStack() as stack:

        def made(processors: int = 2, **settings: Any) -> Place:
            place = Place(stack, processors, **settings)
            monkeypatch.setattr(acceptor_module, "time", place.machine)
            monkeypatch.setattr(acceptor_module, "select", place.machine)
            monkeypatch.setattr(acceptor_module, "socket", place.sockets)
            place.listener.setblocking(True)
            place.begin()
            assert not any(os.get_blocking(fd) for fd in (place.listener.fileno(), *place.shared.handoff_send))
            return place

        yield made


def is_closed(client: socket.socket) -> bool:
    """Whether the other end has closed this connection."""
    client.settimeout(5)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        client.recv(1)
    except BlockingIOError:
        return True
    return False


# -- whom it gives them to ---------------------------------------------------------------------------------------------


def test_equal_ones_take_turns(make: Callable[..., Place]) -> None:
    place = make(3)
    assert place.arrive(6) == [1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("busy", "opened", "expected"),
    [
        ([200, 100, 100], [0, 1, 2], 1),  # less busy goes before fewer connections
        ([199, 100, 100], [0, 1, 2], 0),  # less than a tenth says nothing
        ([99, 100, 0], [0, 0, 5], 0),
        ([100, 0, 99], [0, 5, 4], 2),
        ([0, 0, 0], [3, 2, 4], 1),
        ([1000, 999, 900], [0, 3, 2], 2),
    ],
)
def test_the_least_busy_one_takes_it(
    busy: list[int], opened: list[int], expected: int, make: Callable[..., Place]
) -> None:
    place = make(3)
    place.cells.busy, place.cells.open = busy, opened
    assert place.arrive(4)[:1] == [expected]


def test_connections_on_their_way_count_as_open(make: Callable[..., Place]) -> None:
    """What was handed over before this acceptor began and since taken does not; nor does a count that is ahead."""
    place = make(2)
    place.cells.taken = [100, 7]
    place.begin()
    place.cells.open = [0, 2]
    assert place.arrive(3)[:2] == [0, 0]  # then each has two
    place.cells.taken[0] += 2
    assert place.arrive(1) == [0]
    place.cells.taken = [200, 200]  # a processor that has counted more than this one knows of
    place.cells.open = [1, 0]
    assert place.arrive(1) == [1]


@pytest.mark.parametrize("received", [True, False])
def test_what_a_dead_processor_had_received_is_on_no_way_any_more(received: bool, make: Callable[..., Place]) -> None:
    """It died before it counted it; what still lies in its queue is its successor's, and counts until that takes it."""
    place = make(1, max_connections=2)
    place.connect(2)
    place.run(0.01)
    if received:
        assert len(place.take(0)) == 2
    place.cells.pids = [2]
    (client,) = place.connect()
    place.run(0.01)
    assert len(place.take(0)) == (1 if received else 2)
    assert is_open(client) is received


def test_the_bytes_of_a_connection_go_with_it(make: Callable[..., Place]) -> None:
    place = make(1)
    (client,) = place.connect()
    client.sendall(b"request")
    place.run(0.01)
    (served,) = place.take(0)
    assert served.recv(100) == b"request"
    served.sendall(b"answer")
    assert client.recv(100) == b"answer"
    served.close()
    assert is_closed(client)  # nobody else holds it


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("opened", "refused"), [([3, 1], False), ([3, 2], True), ([4, 2], True)])
def test_one_more_than_the_limit_is_closed(
    opened: list[int], refused: bool, make: Callable[..., Place], caplog: pytest.LogCaptureFixture
) -> None:
    """``max.connections`` holds over all processors; the refusal is counted, said, and disturbs nobody."""
    place = make(2, max_connections=5)
    place.cells.open = opened
    (client,) = place.connect()
    place.run(0.01)
    assert len(place.taken()) == (not refused)
    assert is_closed(client) if refused else is_open(client)
    assert place.cells.counted == ({"refused_connections": 1} if refused else {})
    assert caplog.messages == (["connection refused: max.connections=5 are open"] if refused else [])
    place.cells.open = [0, 0]
    place.cells.taken = [1, 1]
    assert place.arrive() != [-1]


def test_connections_on_their_way_count_against_the_limit(make: Callable[..., Place]) -> None:
    place = make(2, max_connections=4)
    clients = place.connect(6)
    place.run(0.01)
    assert len(place.taken()) == 4
    assert [is_open(client) for client in clients] == [True] * 4 + [False] * 2
    assert place.cells.counted == {"refused_connections": 2}


# -- no room -----------------------------------------------------------------------------------------------------------


def test_a_full_queue_is_passed_over(make: Callable[..., Place]) -> None:
    place = make(2)
    filled = place.fill(0)
    place.cells.open = [0, 500]
    place.connect(3)
    place.run(0.01)
    assert (len(place.take(0)), len(place.take(1))) == (filled, 3)
    assert not place.cells.counted


def test_a_try_that_found_a_full_queue_is_no_open_connection(make: Callable[..., Place]) -> None:
    place = make(2, max_connections=4)
    place.fill(0)
    place.cells.open = [0, 1]
    clients = place.connect(3)
    place.run(0.01)
    assert len(place.take(1)) == 3
    assert all(is_open(client) for client in clients)


def test_where_all_queues_are_full_it_pauses_and_loses_nothing(
    make: Callable[..., Place], caplog: pytest.LogCaptureFixture
) -> None:
    """One connection is held, the others wait in the backlog; it looks again ten times a second and not more often."""
    place = make(2)
    filled = [place.fill(0), place.fill(1)]
    clients = place.connect(3)
    for number, client in enumerate(clients):
        client.sendall(b"%d" % number)
    place.run(1.05)
    assert place.cells.counted == {"accept_pauses": 1}
    assert caplog.messages == [FULL]
    assert 10 <= len(place.machine.waits) <= 13
    assert place.machine.waits[1:] == pytest.approx([PAUSE] * (len(place.machine.waits) - 1), abs=0.001)
    for each, count in zip((0, 1), filled, strict=True):
        assert len(place.take(each, count)) == count
    place.run(PAUSE + 0.01)
    served = [*place.take(0), *place.take(1)]
    assert sorted(each.recv(10) for each in served) == [b"0", b"1", b"2"]
    assert caplog.messages == [FULL]
    waits = len(place.machine.waits)
    place.run(1.0)
    assert len(place.machine.waits) - waits <= 6  # it listens again, and only its heartbeat wakes it


def test_the_one_that_is_held_comes_before_those_that_wait(make: Callable[..., Place]) -> None:
    place = make(1)
    filled = place.fill(0)
    for number, client in enumerate(place.connect(3)):
        client.sendall(b"%d" % number)
    place.run(0.05)
    place.take(0, filled)
    place.run(0.2)
    assert [each.recv(10) for each in place.take(0)] == [b"0", b"1", b"2"]


def test_a_client_that_left_meanwhile_holds_up_nobody(make: Callable[..., Place]) -> None:
    place = make(1)
    filled = place.fill(0)
    first, second = place.connect(2)
    place.run(0.05)
    first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    first.close()
    second.sendall(b"2")
    place.take(0, filled)
    place.run(0.2)
    assert len(served := place.take(0)) == 2
    assert served[1].recv(10) == b"2"


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EPROTO, errno.EHOSTUNREACH, errno.EPERM])
def test_a_connection_that_went_away_in_the_queue_is_passed_over(number: int, make: Callable[..., Place]) -> None:
    place = make(1)
    place.connect(2)
    place.sockets.accept_errors = [number, 0, number]
    place.run(0.01)
    assert len(place.take(0)) == 2
    assert not place.cells.counted


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_descriptors_one_client_is_told_and_the_others_wait(
    number: int, make: Callable[..., Place], caplog: pytest.LogCaptureFixture
) -> None:
    """It pauses a tenth of a second, and keeps no descriptor more or less than it had."""
    place = make(1)
    before = open_descriptors()
    clients = place.connect(3)
    before = open_descriptors()
    place.sockets.accept_errors = [number]
    place.run(PAUSE - 0.001)
    assert is_closed(clients[0])
    assert [is_open(client) for client in clients[1:]] == [True, True]
    assert place.taken() == []
    assert place.sockets.accepts == 2
    assert place.cells.counted == {"accept_pauses": 1, "refused_connections": 1}
    assert caplog.messages == [
        f"accepting pauses reason={os.strerror(number)}: raise the limit of open files (ulimit -n)"
    ]
    assert open_descriptors().keys() == before.keys()
    place.run(0.002)
    assert len(place.take(0)) == 2
    assert place.cells.counted == {"accept_pauses": 1, "refused_connections": 1}


def test_the_spare_descriptor_is_got_back(make: Callable[..., Place], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot be had it is tried for again: nobody is refused meanwhile, and accepting goes on afterwards."""
    place = make(1)
    real_open, refuse = os.open, [True]

    def fake_open(*given: Any, **named: Any) -> int:
        if refuse[0]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real_open(*given, **named)

    monkeypatch.setattr(acceptor_module.os, "open", fake_open)
    clients = place.connect(4)
    place.sockets.accept_errors = [errno.EMFILE, 0, *[errno.EMFILE] * 3, 0]
    place.run(0.05)
    assert is_closed(clients[0])  # the spare one was there
    place.run(PAUSE)  # and now is not
    refuse[0] = False
    place.run(PAUSE)  # got back
    assert place.cells.counted == {"accept_pauses": 3, "refused_connections": 1}
    place.run(PAUSE)
    assert is_closed(clients[1])
    place.run(PAUSE)
    assert len(place.take(0)) == 2


def test_a_client_that_left_before_the_spare_descriptor_was_free(make: Callable[..., Place]) -> None:
    place = make(1)
    before = open_descriptors()
    place.sockets.accept_errors = [errno.EMFILE, errno.EAGAIN]
    (client,) = place.connect()
    inside = open_descriptors()
    place.run(0.01)
    assert len(inside) == len(before) + 1
    assert open_descriptors().keys() == inside.keys()
    assert place.cells.counted == {"accept_pauses": 1}
    place.run(PAUSE)
    assert len(place.take(0)) == 1 and is_open(client)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ETOOMANYREFS, errno.EMFILE, errno.ENOBUFS, errno.ENOMEM])
def test_a_hand_over_that_fails_for_now_is_tried_elsewhere_and_again(number: int, make: Callable[..., Place]) -> None:
    place = make(2)
    place.cells.open = [0, 5]
    place.sockets.send_errors = [number] * 3
    place.connect()
    place.run(0.01)
    assert place.taken() == [] and len(set(place.sockets.sends)) == 2
    place.run(PAUSE)
    assert place.taken() == [1]  # the first one fails once more


def test_a_hand_over_that_cannot_go_well_ends_the_acceptor(make: Callable[..., Place]) -> None:
    """Another one begins afresh; this one would go on for ever."""
    place = make(1)
    place.sockets.send_errors = [errno.EPIPE]
    place.connect()
    with pytest.raises(BrokenPipeError):
        place.acceptor.run()


# -- its loop ----------------------------------------------------------------------------------------------------------


def test_an_idle_acceptor_wakes_for_its_heartbeat_alone(make: Callable[..., Place]) -> None:
    place = make(2)
    place.run(10.1)
    assert place.machine.waits == [TICK] * 41
    assert place.cells.beats == 41


def test_a_burst_does_not_keep_it_from_its_heartbeat(make: Callable[..., Place]) -> None:
    """64 are taken at a stretch, whoever else waits."""
    place = make(4)
    place.connect(129)
    place.run(0.01)
    assert len(place.taken()) == 129
    assert place.cells.beats == 4  # 64, 64, 1, and the one that found nothing


def test_a_wake_up_is_taken(make: Callable[..., Place]) -> None:
    place = make(1)
    os.eventfd_write(place.cells.wake_fd, 1)
    place.run(1.0)
    assert place.cells.wakes_taken == 1
    assert len(place.machine.waits) <= 6


def test_it_leaves_when_its_parent_has_gone(make: Callable[..., Place]) -> None:
    place = make(1)
    object.__setattr__(place.shared, "supervisor_pid", os.getppid() + 1)
    place.connect()
    assert place.acceptor.run() == 1
    assert place.taken() == []


# -- the stop ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
def test_what_has_connected_is_handed_over_before_it_leaves(count: int, make: Callable[..., Place]) -> None:
    place = make(2)
    for number, client in enumerate(place.connect(count)):
        client.sendall(b"%d" % number)
    assert place.stop() == 0
    served = [*place.take(0), *place.take(1)]
    assert sorted(int(each.recv(10)) for each in served) == list(range(count))
    assert place.machine.passed == 0
    assert not place.cells.counted


def test_it_waits_for_room_when_it_leaves(make: Callable[..., Place], caplog: pytest.LogCaptureFixture) -> None:
    """A processor that is late takes all: the one that was accepted, and those in the backlog."""
    place = make(1)
    filled = place.fill(0)
    clients = place.connect(5)
    for client in clients:
        client.sendall(b"request")
    place.run(0.05)  # one of them is accepted, and waits
    place.machine.after(1.5, lambda: place.take(0, filled))
    assert place.stop() == 0
    assert [each.recv(10) for each in place.take(0)] == [b"request"] * 5
    assert 1.5 <= place.machine.passed < LEAVING
    assert caplog.messages == [FULL]
    assert len(place.machine.waits) < 200


def test_it_leaves_where_there_is_never_room(make: Callable[..., Place], caplog: pytest.LogCaptureFixture) -> None:
    """The one that it had accepted is closed, which is said; a stop does not wait for a processor that hangs."""
    place = make(2)
    place.fill(0), place.fill(1)
    first, second = place.connect(2)
    place.run(0.05)
    assert place.stop() == 0
    assert LEAVING <= place.machine.passed - 0.05 < LEAVING + 0.2
    assert caplog.messages == [FULL, "a connection is closed unserved: no processor took it before the stop"]
    assert place.cells.counted == {"accept_pauses": 1, "refused_connections": 1}
    assert is_closed(first)
    assert is_open(second)  # in the queue of the listening socket, which is the supervisor's


def test_a_stop_without_descriptors_waits_for_some(make: Callable[..., Place]) -> None:
    """One client is told that there were none, and the others are served."""
    place = make(1)
    clients = place.connect(3)
    place.sockets.accept_errors = [errno.ENFILE]
    assert place.stop() == 0
    assert is_closed(clients[0])
    assert len(place.take(0)) == 2
    assert place.machine.passed < LEAVING


def test_the_stop_keeps_the_limit(make: Callable[..., Place]) -> None:
    place = make(1, max_connections=2)
    clients = place.connect(3)
    assert place.stop() == 0
    assert len(place.take(0)) == 2
    assert is_closed(clients[2])


def test_as_many_are_taken_at_the_stop_as_wait(make: Callable[..., Place], monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of a listening socket holds one more than it was given; who goes on connecting holds up nothing."""
    monkeypatch.setattr(acceptor_module, "ACCEPTS_PER_TURN", 1)
    place = make(1, max_connections=1)
    place.cells.open = [1]  # so that all are refused at once
    place.connect(30)
    assert place.stop() == 0
    assert place.cells.counted["refused_connections"] * ACCEPTS_PER_TURN > BACKLOG + 1
    assert place.cells.counted["refused_connections"] < 20


def test_every_listener_is_served(tmp_path: Path, make: Callable[..., Place]) -> None:
    """Listeners are a list: with two, both are accepted from, paused and left in the same way."""
    place = make(1)
    with socket.create_server(("127.0.0.1", 0), backlog=8) as other:
        port = other.getsockname()[1]
        more = Listener("second", "kafka-0.7", "127.0.0.1", port, "127.0.0.1", port, other.fileno())
        object.__setattr__(place.shared, "listeners", (*place.shared.listeners, more))
        place.begin()
        with socket.create_connection(("127.0.0.1", port)) as client:
            place.connect()
            place.run(0.01)
            assert len(place.take(0)) == 2
            assert sorted(record.listener for record in place.records) == [0, 1]
            (second,) = (record for record in place.records if record.listener)
            assert second == HandOver(1, *client.getsockname())
            filled = place.fill(0)
            place.connect()
            place.run(0.05)
            with socket.create_connection(("127.0.0.1", port)):
                waits = len(place.machine.waits)
                place.run(0.5)
                assert len(place.machine.waits) - waits <= 7  # neither is looked at while there is no room
                assert place.stop() == 0
                assert len(place.take(0)) == filled
        client.close()


def test_one_that_waits_for_room_keeps_those_of_every_listener_waiting(make: Callable[..., Place]) -> None:
    """None is accepted in its place."""
    place = make(1)
    filled = place.fill(0)
    with socket.create_server(("127.0.0.1", 0), backlog=8) as other:
        address = other.getsockname()
        more = Listener("second", "kafka-0.7", *address, *address, other.fileno())
        object.__setattr__(place.shared, "listeners", (*place.shared.listeners, more))
        place.begin()
        with socket.create_connection(address):
            place.connect()
            place.run(0.05)
            assert len(place.take(0, filled)) == filled
            place.run(PAUSE + 0.01)
            assert len(place.take(0)) == 2
