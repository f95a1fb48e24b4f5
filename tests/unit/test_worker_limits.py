"""Every limit of a processor, tried at one less, equal and one more; and waits that end when they are due."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fastlog.log import _files
from fastlog.workers.kafka07.answers import Answers
from tests.harness import raw_client as raw
from tests.harness.broker import wait_until
from tests.harness.processor import Processor
from tests.harness.sanitizer import SLOWER
from tests.harness.timing import PATIENCE, sooner_than
from tests.harness.today_client import Client, batch, values_of
from tests.harness.workers import PARTITIONS, Workers, drain, is_silent

GOOD = raw.entry(b"good")
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with (
        Workers(
            tmp_path_factory.mktemp("log"),
            partitions=4,
            max_request_bytes=2 * MEGABYTE,
            max_message_bytes=1000,
            fetch_max_wait_ms=60,
        ) as running,
        running.connect() as client,
    ):
        assert client.produce_ack("t", 0, GOOD * 3, raw.FLUSHED).error == 0
        yield running


def own(kind: int, body: bytes) -> bytes:
    return raw.own_frame(kind, body, correlation=4)


def is_refused(workers: Workers, request: bytes) -> bool:
    """Whether the connection is closed for it, without an answer; else the next request is answered."""
    with workers.connect() as client:
        client.send_raw(request)
        if client.is_closed(0.03):
            return True
        client.send_raw(raw.offsets_frame("t", 0, raw.EARLIEST, 1))
        try:
            return raw.decode_offsets(client.recv_answer().body) != [0]
        except raw.ConnectionClosed:
            return True


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "refused"), [(-1, True), (0, True), (1, True), (2 * MEGABYTE, False), (2 * MEGABYTE + 1, True)]
)
def test_the_size_of_a_request(workers: Workers, size: int, refused: bool) -> None:
    """What is refused is refused before it has come."""
    if refused:
        assert is_refused(workers, struct.pack(">i", size))
        return
    head = raw.place("t", 1)
    messages = size - 2 - len(head) - 4
    body = head + struct.pack(">i", messages) + (raw.entry(bytes(990)) * (messages // 1000 + 1))[:messages]
    assert not is_refused(workers, struct.pack(">ih", size, raw.PRODUCE) + body)
    with workers.connect() as client:
        assert client.log_end("t", 1) == messages // 1000 * 1000


def test_a_request_of_two_bytes_has_a_kind(workers: Workers) -> None:
    """It is too short for anything else, and refused for that."""
    for kind in (raw.PRODUCE, raw.FETCH, raw.MULTIFETCH, raw.MULTIPRODUCE, raw.OFFSETS, raw.METADATA):
        with workers.connect() as client:
            client.send_raw(raw.frame(kind, b""))
            assert client.is_closed()


@pytest.mark.parametrize(("size", "error"), [(999, 0), (1000, 0), (1001, 102)])
@pytest.mark.parametrize("magic", [0, 1])
def test_the_size_of_a_message(workers: Workers, size: int, error: int, magic: int) -> None:
    with workers.connect() as client:
        end = client.log_end("t", 2)
        one = raw.entry(bytes(size), magic)
        assert client.produce_ack("t", 2, GOOD + one + GOOD).error == error
        client.produce("t", 2, one)
        assert client.log_end("t", 2) == end + (0 if error else 2 * len(GOOD) + 2 * len(one))


@pytest.mark.parametrize(("size", "error"), [(MEGABYTE - 1, 0), (MEGABYTE, 0), (MEGABYTE + 1, 107)])
def test_the_size_of_a_request_that_is_decoded(workers: Workers, size: int, error: int) -> None:
    """Names of 200 bytes and one that fills it up; they are illegal, and said to be."""
    room = size - 8 - 4
    names = [b"/" * 200] * (room // 202 - 2)
    names.append(b"/" * (room - 202 * len(names) - 2))
    request = own(raw.METADATA, raw.metadata_body(names))
    assert len(request) == 4 + size
    with workers.connect() as client:
        client.send_raw(request)
        _, answer = client.recv_own()
        assert answer.error == error
        assert client.offsets("t", 0, raw.EARLIEST) == [0]


@pytest.mark.parametrize(("size", "expected"), [
    (0, b""), (1, GOOD[:1]), (13, GOOD[:13]), (14, GOOD), (15, GOOD + GOOD[:1]), (42, GOOD * 3), (43, GOOD * 3),
    (2**31 - 1, GOOD * 3),
])  # fmt: skip
def test_the_size_of_a_fetch(workers: Workers, size: int, expected: bytes) -> None:
    with workers.connect() as client:
        assert client.fetch("t", 0, 0, size) == (0, expected)
        assert client.multifetch([("t", 0, 0, size), ("t", 0, 28, size)])[0] == (0, expected)
        assert client.held_fetch("t", 0, 0, size, max_wait_ms=0) == (0, 42, 0, expected)
        for wrong in (-1, -(2**31)):
            assert client.fetch("t", 0, 0, wrong) == (4, b"")
            assert client.held_fetch("t", 0, 0, wrong) == (4, 42, 0, b"")
            assert client.multifetch([("t", 0, 0, wrong)]) == [(4, b"")]


@pytest.mark.parametrize(("offset", "error", "body"), [
    (-1, 1, b""), (0, 0, GOOD * 3), (1, 2, b""), (13, 2, b""), (14, 0, GOOD * 2), (15, 2, b""), (28, 0, GOOD),
    (41, 2, b""), (42, 0, b""), (43, 1, b""), (2**63 - 1, 1, b""), (-(2**63), 1, b""),
])  # fmt: skip
def test_the_offset_of_a_fetch(workers: Workers, offset: int, error: int, body: bytes) -> None:
    with workers.connect() as client:
        assert client.fetch("t", 0, offset) == (error, body)
        assert client.multifetch([("t", 0, offset, 99)]) == [(error, body)]
        assert client.held_fetch("t", 0, offset, max_wait_ms=0) == (error, 42, 0, body)


@pytest.mark.parametrize(
    ("partition", "error"), [(-2, 3), (-1, 3), (0, 0), (3, 0), (4, 3), (2**31 - 1, 3), (-(2**31), 3)]
)
def test_the_number_of_a_partition_to_read(workers: Workers, partition: int, error: int) -> None:
    """Partition -1 is chosen for a produce alone."""
    with workers.connect() as client:
        assert client.fetch("nobody", partition, 0) == (error, b"")
        assert client.multifetch([("nobody", partition, 0, 9)]) == [(error, b"")]
        held = client.held_fetch("nobody", partition, 0, max_wait_ms=0)
        assert held == (error, -1 if error else 0, -1 if error else 0, b"")


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 256])
def test_a_name_that_cannot_be_is_an_unknown_error_to_0_7(workers: Workers, name: str) -> None:
    """What it is here has a number of its own, which 0.7 does not know."""
    with workers.connect() as client:
        assert client.fetch(name, 0, 0) == (-1, b"")
        assert client.multifetch([("t", 0, 0, 14), (name, 0, 0, 14)]) == [(0, GOOD), (-1, b"")]


@pytest.mark.parametrize("count", [0, 1, 2, 32_767])
def test_the_parts_of_a_multifetch(workers: Workers, count: int) -> None:
    with workers.connect() as client:
        assert client.multifetch([("nobody", 0, 0, 9)] * count) == [(0, b"")] * count
    assert is_refused(workers, raw.frame(raw.MULTIFETCH, struct.pack(">h", -1)))
    assert is_refused(workers, raw.frame(raw.MULTIFETCH, struct.pack(">h", 2) + raw.fetch_body("t", 0, 0, 9)))


# -- how many ----------------------------------------------------------------------------------------------------------


def test_as_many_partitions_as_there_is_room_for(tmp_path: Path) -> None:
    """The next one is an error, for whoever asks for it; the others go on."""
    with Workers(tmp_path, partitions=100) as workers, workers.connect() as client:
        for partition in range(PARTITIONS):
            assert client.produce_ack("t", partition, GOOD).error == 0
        for _ in range(2):
            assert client.produce_ack("t", PARTITIONS, GOOD).error == 103
            assert client.create_topic("u", 1) == (103, -1)
        with workers.connect() as plain:
            plain.produce("t", PARTITIONS, GOOD)
            assert plain.is_closed()
        assert client.fetch("t", PARTITIONS, 0) == (0, b"")
        assert client.produce_ack("t", PARTITIONS - 1, GOOD, raw.FLUSHED).error == 0


def direct(directory: Path, listener: socket.socket, **options: int) -> Processor:
    """A processor that accepts connections itself."""
    listener.setblocking(False)
    return Processor(directory, listeners=(listener.fileno(),), heartbeat_ms=10_000_000, **options)


def serves(client: raw.RawClient) -> bool:
    try:
        return client.offsets("t", 0) == [0]
    except (raw.ConnectionClosed, ConnectionError):
        return False


@pytest.mark.parametrize("limit", [1, 3])
def test_the_connections_of_a_broker_whose_processors_accept(tmp_path: Path, limit: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        processor = direct(tmp_path, listener, max_connections=limit)
        stack.callback(processor.close)
        clients = [raw.RawClient(listener.getsockname()[1]) for _ in range(limit + 2)]
        assert [serves(client) for client in clients] == [True] * limit + [False] * 2
        clients[0].close()
        wait_until("it is gone", lambda: processor.open_connections == limit - 1)
        with raw.RawClient(listener.getsockname()[1]) as late:
            assert serves(late)
        for client in clients:
            client.close()


def test_the_descriptors_of_requests_for_many_partitions(tmp_path: Path) -> None:
    """Half of a processor's, counted once each: of more partitions, some come with the next request."""
    with Workers(tmp_path, partitions=12) as workers, workers.connect() as client:
        for partition in range(12):
            assert client.produce_ack("t", partition, GOOD, raw.FLUSHED).error == 0
        for _ in range(12):
            assert client.multifetch([("t", 0, 0, 100)] * 3) == [(0, GOOD)] * 3
        found = client.multifetch([("t", partition, 0, 100) for partition in range(12)])
        assert found == [(0, GOOD)] * 8 + [(0, b"")] * 4
        with Client(workers) as today:
            today.make("new")
            for partition in range(12):
                assert today.produce(("new", partition, batch(b"x")), acks=-1)[0].error_code == 0
            every = [("new", partition, 0) for partition in range(12)]
            for parts, count in ((every[:1] * 20, 20), (every, 8)):
                assert [len(values_of(part)) for part in today.fetch(*parts, limit=1000)].count(1) == count


def test_the_connections_of_one_processor(tmp_path: Path) -> None:
    with Workers(tmp_path, connection_limit=2) as workers, ExitStack() as stack:
        clients = [stack.enter_context(workers.connect()) for _ in range(4)]
        assert [serves(client) for client in clients] == [True, True, False, False]
        clients[1].close()
        wait_until("it is gone", lambda: workers.held()["connections"] == 1)
        assert serves(stack.enter_context(workers.connect()))


@pytest.mark.parametrize(("budget", "over"), [(131_071, 1), (131_072, 0), (131_073, 0)])
def test_the_memory_for_requests(tmp_path: Path, budget: int, over: int) -> None:
    """The beginning of a large request has a buffer of 128 kB: as much as the budget is not over it."""
    with Workers(tmp_path, request_memory_bytes=budget) as workers, workers.connect() as client:
        client.send_raw(raw.produce_frame("t", 0, raw.entry(bytes(900_000)))[:100])
        wait_until("it has a buffer", lambda: workers.held()["memory"])
        before = workers.count("received_bytes")
        client.send_raw(bytes(10))
        wait_until("more is received", lambda: workers.count("received_bytes") == before + 10)
        assert (workers.held()["memory"], workers.held()["over budget"]) == (131_072, over)


# -- waits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["t", "nobody"])
@pytest.mark.parametrize(
    ("asked_ms", "least_ms"), [(-1, 0), (0, 0), (59, 59), (60, 60), (10_000_000, 60), (2**31 - 1, 60)]
)
def test_a_held_fetch_waits_no_longer_than_is_allowed(
    workers: Workers, topic: str, asked_ms: int, least_ms: int
) -> None:
    with workers.connect() as client, sooner_than(15):
        begun = time.monotonic()
        end = 42 if topic == "t" else 0
        assert client.held_fetch(topic, 0, end, max_wait_ms=asked_ms) == (0, end, 0, b"")
        assert time.monotonic() - begun >= least_ms / 1000


@pytest.mark.parametrize(
    ("least", "waits"), [(-1, False), (0, False), (27, False), (28, False), (29, True), (2**31 - 1, True)]
)
def test_a_held_fetch_waits_for_its_least_bytes_exactly(tmp_path: Path, least: int, waits: bool) -> None:
    with Workers(tmp_path, fetch_max_wait_ms=10_000_000) as workers, workers.connect() as client:
        assert client.produce_ack("t", 0, GOOD * 3, raw.FLUSHED).error == 0
        client.send_raw(own(raw.HELD_FETCH, raw.held_fetch_body("t", 0, 14, 100, 10_000_000, least)))
        if waits:
            client.wait_received()
            workers.wait_still()
            assert is_silent(client)
        else:
            assert raw.decode_held(client.recv_own()[1]) == (0, 42, 0, GOOD * 2)


IDLE_MS = 300 * SLOWER


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Workers]:
    """Idle connections are closed soon; the loop looks for them often."""
    with Workers(tmp_path, heartbeat_ms=10, idle_ms=IDLE_MS, fetch_max_wait_ms=10_000_000) as running:
        with running.connect() as client:
            for _ in range(8):  # each has to be whole before the limit
                assert client.produce_ack("t", 0, raw.entry(bytes(900_000)), raw.FLUSHED).error == 0
        yield running


def says_nothing(client: raw.RawClient) -> None:
    """Only connected."""


def begins_a_request(client: raw.RawClient) -> None:
    client.send_raw(raw.fetch_frame("t", 0, 0)[:7])


def takes_no_answer(client: raw.RawClient) -> None:
    client.send_raw(raw.fetch_frame("t", 0, 0, 8 * MEGABYTE) * 4)


def answered_once(client: raw.RawClient) -> None:
    assert client.offsets("t", 0, raw.EARLIEST) == [0]


@pytest.mark.parametrize("act", [says_nothing, begins_a_request, takes_no_answer, answered_once])
def test_an_idle_connection_is_closed_when_it_is_due(impatient: Workers, act: Callable[[raw.RawClient], None]) -> None:
    before, begun = impatient.count("idle_closed"), time.monotonic()
    with impatient.connect() as client:
        act(client)
        wait_until("it is closed", lambda: impatient.count("idle_closed") == before + 1)
        assert time.monotonic() - begun >= IDLE_MS / 1000
        drain(client)
    wait_until("all is given back", lambda: not impatient.held()["pins"] and not impatient.held()["memory"])


def test_a_request_that_drips_is_closed_though_it_is_never_idle(impatient: Workers) -> None:
    begun = time.monotonic()
    with impatient.connect() as client, pytest.raises((BrokenPipeError, ConnectionResetError)):
        for byte in raw.fetch_frame("t", 0, 0) * 1000:
            client.send_raw(bytes([byte]))
            time.sleep(IDLE_MS / 6000)
    assert time.monotonic() - begun >= IDLE_MS / 1000
    assert impatient.count("idle_closed") == 1


class Pace:
    """Sleeps between two things that a client does, and knows whether the machine let it do them in time."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.longest = 0.0

    def step(self) -> None:
        time.sleep(IDLE_MS / 6000)
        self.look()

    def look(self) -> None:
        now = time.monotonic()
        self.longest = max(self.longest, now - self._last)
        self._last = now


def steadily(impatient: Workers, act: Callable[[raw.RawClient, Pace], None]) -> None:
    """Have a client act; it is not closed, unless the machine stood still: then it begins again."""
    deadline = time.monotonic() + 3 * PATIENCE  # it may have waited once for what could not be any more
    while True:
        before, pace = impatient.count("idle_closed"), Pace()
        try:
            with impatient.connect_narrow() as client:
                act(client, pace)
            assert impatient.count("idle_closed") == before
        except (AssertionError, ConnectionError, raw.ConnectionClosed):
            pace.look()
            if pace.longest < IDLE_MS / 2000 or time.monotonic() > deadline:
                raise
        else:
            return


@pytest.mark.parametrize("size", [4, 70_000], ids=["small", "large"])
def test_who_pipelines_for_longer_than_the_limit_stays(impatient: Workers, size: int) -> None:
    """There is always the beginning of a request left over, but never the same; large ones have their own buffer."""

    def pipeline(client: raw.RawClient, pace: Pace) -> None:
        before, stream = impatient.count("produce_requests"), raw.produce_frame("u", 0, raw.entry(bytes(size)))
        client.send_raw(stream[:9])
        for number in range(20):
            client.send_raw(stream[9:] + stream[:9])
            wait_until("it is taken", lambda number=number: impatient.count("produce_requests") > before + number)
            pace.step()

    steadily(impatient, pipeline)


def test_who_takes_a_long_answer_slowly_stays(impatient: Workers) -> None:
    """And may have sent the beginning of a request behind it, which is not read on before."""

    def take(client: raw.RawClient, pace: Pace) -> None:
        size, next_one = 6 + 8 * 900_010, raw.offsets_frame("t", 0, raw.EARLIEST, 1)
        client.send_raw(raw.fetch_frame("t", 0, 0, 8 * MEGABYTE) + next_one[:7])
        for _ in range(12):
            size -= len(client.recv_exactly(size // 20))
            pace.step()
        assert len(client.recv_exactly(size)) == size
        client.send_raw(next_one[7:])
        assert raw.decode_offsets(client.recv_answer().body) == [0]

    steadily(impatient, take)


def test_a_turn_that_takes_long_is_not_held_against_clients(tmp_path: Path) -> None:
    """The loop stands for longer than the limit: who is silent, and who has sent half a request, stays."""
    limit_ms = 1000 * SLOWER
    with Workers(tmp_path, heartbeat_ms=10, idle_ms=limit_ms) as workers, ExitStack() as stack:
        silent, half = (stack.enter_context(workers.connect()) for _ in range(2))
        request = raw.offsets_frame("t", 0, raw.EARLIEST, 1)
        assert silent.offsets("t", 0, raw.EARLIEST) == [0]
        before = workers.count("received_bytes")
        half.send_raw(request[:7])
        wait_until("it has begun", lambda: workers.count("received_bytes") == before + 7)
        _files.arm(f"handover.taken@1=slow:{limit_ms + 200}", "test")
        other = stack.enter_context(workers.connect())
        assert other.offsets("t", 0, raw.EARLIEST) == [0]
        turns = workers.turns()
        wait_until("the loop has looked for idle ones", lambda: workers.turns() > turns + 3)
        assert workers.count("idle_closed") == 0
        half.send_raw(request[7:])
        assert raw.decode_offsets(half.recv_answer().body) == [0]


def test_who_waits_for_the_broker_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For several times the limit: in a held fetch, for a flush, room, a thread, the end of another one's creation."""
    go, inner = threading.Event(), Answers._metadata

    def metadata(*arguments: Any) -> Any:
        assert go.wait(PATIENCE)
        return inner(*arguments)

    monkeypatch.setattr(Answers, "_metadata", metadata)
    with (
        Workers(
            tmp_path,
            flusher=False,
            heartbeat_ms=10,
            idle_ms=IDLE_MS,
            fetch_max_wait_ms=10_000_000,
            flush_interval_messages=4,
        ) as workers,
        ExitStack() as stack,
    ):
        held, flushed, room, asking, creating = (stack.enter_context(workers.connect()) for _ in range(5))
        held.send_raw(own(raw.HELD_FETCH, raw.held_fetch_body("nobody", 0, 0, 9, 10_000_000, 1)))
        flushed.send_raw(own(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, GOOD, raw.FLUSHED)))
        room.send_raw(own(raw.PRODUCE_ACK, raw.produce_ack_body("u", 0, GOOD)) * 5)
        for _ in range(4):
            assert room.recv_own()[1].error == 0
        asking.send_raw(own(raw.METADATA, raw.metadata_body(["t"])))
        assert workers.arena.create_lock()
        creating.send_raw(raw.produce_frame("v", 0, GOOD))
        time.sleep(4 * IDLE_MS / 1000)
        assert workers.count("idle_closed") == 0
        workers.arena.create_unlock()
        go.set()
        assert asking.recv_own()[1].error == 0
        wait_until("it is made", lambda: any(view.topic == "v" and view.log_end for view in workers.arena.views()))
        workers.start_flusher()
        assert flushed.recv_own()[1].error == room.recv_own()[1].error == 0
        flushed.produce("nobody", 0, GOOD)
        assert raw.decode_held(held.recv_own()[1]).messages == GOOD[:9]


def test_the_time_for_a_request_begins_when_the_one_before_it_is_done(tmp_path: Path) -> None:
    """Half of it came with the one before it, which waited for room for longer than the limit."""
    limit_ms = 1500 * SLOWER
    settings = {"heartbeat_ms": 10, "idle_ms": limit_ms, "flush_interval_messages": 4}
    with Workers(tmp_path, flusher=False, **settings) as workers, workers.connect() as client:
        request = own(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, GOOD))
        client.send_raw(request * 5 + request[:9])
        for _ in range(4):
            assert client.recv_own()[1].error == 0
        time.sleep(1.1 * limit_ms / 1000)
        workers.start_flusher()
        assert client.recv_own()[1].error == 0
        turns = workers.processors[0].loop.turns
        wait_until("the loop has looked for idle ones", lambda: workers.processors[0].loop.turns > turns + 3)
        client.send_raw(request[9:])
        assert client.recv_own()[1].error == 0


def test_who_waits_for_the_memory_of_an_answer_stays(tmp_path: Path) -> None:
    """Two others take theirs slowly meanwhile, and have it for several times the limit."""
    settings = {"heartbeat_ms": 10, "idle_ms": IDLE_MS, "request_memory_bytes": 1 << 16}
    with Workers(tmp_path, **settings) as workers:  # type: ignore[arg-type]
        asked = own(raw.METADATA, raw.metadata_body(["t"] * 9_999))

        def wait(first: raw.RawClient, pace: Pace) -> None:
            with workers.connect_narrow() as second, workers.connect() as last:
                first.send_raw(asked)
                wait_until("it is answered", lambda: workers.processors[0].loop.answer_bytes > 1 << 16)
                second.send_raw(asked)
                wait_until("it is the one over the budget", lambda: workers.held()["over budget"] == 1)
                last.send_raw(asked)
                while is_silent(second):
                    first.recv_exactly(1024)
                    pace.step()
                for _ in range(12):
                    for taking in (first, second):
                        taking.recv_exactly(4096)
                    pace.step()
                assert is_silent(last)
                for taking in (first, second):
                    taking.close()
                assert last.recv_own()[1].error == 0

        steadily(workers, wait)


def test_who_sends_on_has_the_memory_for_as_long_as_it_takes(tmp_path: Path) -> None:
    """Others wait for it: who has it and sends nothing would be closed."""
    frame = own(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, raw.entry(bytes(900_000))))
    settings = {"heartbeat_ms": 10, "stalled_ms": IDLE_MS, "request_memory_bytes": 1 << 18}
    with Workers(tmp_path, **settings) as workers:  # type: ignore[arg-type]

        def send(client: raw.RawClient, pace: Pace) -> None:
            waits, sent = workers.count("over_budget_waits"), 400_000
            client.send_raw(frame[:sent])
            wait_until("it has the memory", lambda: workers.held()["over budget"] == 1)
            with workers.connect() as other:
                other.send_raw(frame[:sent])
                wait_until("another one waits", lambda: workers.count("over_budget_waits") > waits)
                for _ in range(12):
                    client.send_raw(frame[sent : sent + 1000])
                    sent += 1000
                    pace.step()
                client.send_raw(frame[sent:])
                assert client.recv_own()[1].error == 0

        steadily(workers, send)


@pytest.mark.slow
def test_a_client_of_0_7_waits_five_seconds_for_a_flush_that_it_is_owed(tmp_path: Path) -> None:
    """Then it gets what there is; the next one that it asks for waits anew."""
    with Workers(tmp_path, flush_interval_messages=2) as workers, ExitStack() as stack:
        asking = [stack.enter_context(workers.connect()) for _ in range(3)]
        assert asking[0].produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        _files.arm("open@1-=EMFILE,mark@1-=EMFILE", "test")
        begun = time.monotonic()
        asking[0].send_raw(raw.produce_frame("t", 0, GOOD * 2) + raw.fetch_frame("t", 0, 14))
        wait_until("it is appended", lambda: workers.arena.view(0).log_end == 42)
        asking[1].send_raw(raw.offsets_frame("t", 0, raw.LATEST, 1))
        asking[2].send_raw(raw.multifetch_frame([("t", 0, 14, 9)]))
        for client in asking:
            client.wait_received()
            assert is_silent(client) or time.monotonic() - begun >= 5
        assert asking[0].recv_answer() == (0, b"")
        assert time.monotonic() - begun >= 5
        assert raw.decode_offsets(asking[1].recv_answer().body) == [14]
        assert raw.decode_multifetch(asking[2].recv_answer().body) == [(0, b"")]
        _files.arm("", "test")
        with sooner_than(20):
            for client in asking:
                assert client.fetch("t", 0, 14).body == GOOD * 2


@pytest.mark.parametrize("stalled_seconds", [0, 1])
def test_the_last_call_of_a_stop_ends_when_it_is_due(tmp_path: Path, stalled_seconds: int) -> None:
    """Who still waits for a flush that does not come is closed then. While a disk stalls, that time has not begun."""
    with Workers(tmp_path, flusher=False) as workers, workers.connect() as client:
        client.send_raw(own(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, GOOD, raw.FLUSHED)))
        wait_until("it is appended", lambda: workers.count("appends") == 1)
        begun = time.monotonic()
        if stalled_seconds:
            workers.arena.set_stalled(time.monotonic_ns() + stalled_seconds * 10**9)
        with sooner_than(15):
            workers.processors[0].close()
        assert time.monotonic() - begun >= 2.5 + stalled_seconds
        assert workers.processors[0].results == [0]
