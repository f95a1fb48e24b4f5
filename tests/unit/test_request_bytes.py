"""However the bytes of a request come and however slowly its answer is taken: the same answer, the same log.

A processor's loop is told of every piece before the next one is sent, so a cut is where the test puts it.
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import wait_until
from tests.harness.workers import Workers, is_silent

ONE, TWO, BAD = raw.entry(b"one"), raw.entry(b"two", 0), raw.entry(b"bad", crc=3)
WRAPPED = raw.message_set([b"a", b"b"], codec=raw.GZIP)
MEGABYTE = 1 << 20
MARK = raw.offsets_frame("still", 0, raw.LATEST, 1)
MARK_ANSWER = struct.pack(">ihiq", 14, 0, 1, len(ONE))
"""What follows every request here, and its answer: it shows where the answer before it ends."""


def own(kind: int, body: bytes) -> bytes:
    return raw.own_frame(kind, body, correlation=0x01020304)


def acked(topic: str, messages: bytes, acks: int = raw.APPENDED, partition: int = 0) -> bytes:
    return own(raw.PRODUCE_ACK, raw.produce_ack_body(topic, partition, messages, acks))


# request, and what it appends
APPENDING: dict[str, tuple[bytes, bytes]] = {
    "produce": (raw.produce_frame("t", 0, ONE + TWO), ONE + TWO),
    "multiproduce": (raw.multiproduce_frame([("t", 0, ONE), ("t", 0, WRAPPED), ("t", 0, TWO)]), ONE + WRAPPED + TWO),
    "appended": (acked("t", ONE), ONE),
    "flushed": (acked("t", WRAPPED, raw.FLUSHED), WRAPPED),
    "refused": (acked("t", ONE + BAD), b""),
    "empty": (raw.produce_frame("t", 0, b""), b""),
}
READING: dict[str, bytes] = {
    "fetch": raw.fetch_frame("still", 0, 0),
    "fetch, out of range": raw.fetch_frame("still", 0, 1),
    "multifetch": raw.multifetch_frame([("still", 0, 0, 100), ("still", 9, 0, 9), ("still", 0, 0, -1)]),
    "offsets": raw.offsets_frame("still", 0, raw.EARLIEST, 3),
    "held fetch": own(raw.HELD_FETCH, raw.held_fetch_body("still", 0, 0, 100, 0, 0)),
    "metadata": own(raw.METADATA, raw.metadata_body(["still", "a/b"])),
    "cut points": own(raw.CUT_POINTS, raw.cut_points_body("still", 0, 0, len(ONE), 1, 10)),
    "local read": own(raw.LOCAL_READ, raw.place("still", 0)),
    "create topic": own(raw.CREATE_TOPIC, raw.place("still", 1)),
    "delete topic": own(raw.DELETE_TOPIC, raw.text("none")),
    "another version": raw.own_frame(raw.LOCAL_READ, b"", version=9, correlation=3),
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("log"), partitions=20) as running, running.connect() as client:
        assert client.produce_ack("still", 0, ONE, raw.FLUSHED).error == 0
        assert client.fetch("still", 0, 0).body == ONE
        yield running


class Feed:
    """Sends pieces, each only when the processor has received the one before."""

    def __init__(self, workers: Workers, client: raw.RawClient) -> None:
        self._workers = workers
        self._client = client

    def __call__(self, piece: bytes) -> None:
        before = self._workers.count("received_bytes")
        self._client.send_raw(piece)
        wait_until("it is received", lambda: self._workers.count("received_bytes") == before + len(piece), pause=0)


def answer_of(workers: Workers, *pieces: bytes) -> bytes:
    """What comes back before the answer to the mark; the connection is a new one and stays open."""
    with workers.connect() as client:
        feed = Feed(workers, client)
        for number, piece in enumerate(pieces):
            if piece:
                assert number == 0 or is_silent(client)
                feed(piece)
        client.send_raw(MARK)
        found = b""
        while not found.endswith(MARK_ANSWER):
            found += client.recv_exactly(1)
        assert is_silent(client)
        return found.removesuffix(MARK_ANSWER)


@pytest.mark.parametrize("request_bytes", READING.values(), ids=READING)
def test_a_request_to_read_cut_at_every_byte(workers: Workers, request_bytes: bytes) -> None:
    """In two pieces, and in as many as it has bytes."""
    expected = answer_of(workers, request_bytes)
    assert len(expected) > 4
    for cut in range(1, len(request_bytes)):
        assert answer_of(workers, request_bytes[:cut], request_bytes[cut:]) == expected, cut
    assert answer_of(workers, *(bytes([byte]) for byte in request_bytes)) == expected


@pytest.mark.parametrize(("request_bytes", "appended"), APPENDING.values(), ids=APPENDING)
def test_a_request_to_append_cut_at_every_byte(workers: Workers, request_bytes: bytes, appended: bytes) -> None:
    """It is in the log once, all of it, when its last byte has come, and not before."""
    with workers.connect() as reader:
        for cut in [*range(1, len(request_bytes)), None]:
            end = reader.log_end("t", 0)
            if cut is None:
                answer = answer_of(workers, *(bytes([byte]) for byte in request_bytes))
            else:
                answer = answer_of(workers, request_bytes[:cut], request_bytes[cut:])
            check_acked(request_bytes, answer, end, end + len(appended) if appended else -1)
            assert reader.log_end("t", 0) == end + len(appended)
            reader.wait_visible("t", 0, end + len(appended))
            assert reader.fetch_ok("t", 0, end) == appended


def check_acked(request_bytes: bytes, answer: bytes, base: int, end: int) -> None:
    """An acknowledgement, where one is owed, says where the set lies."""
    if request_bytes[4:6] != struct.pack(">h", raw.PRODUCE_ACK):
        assert answer == b""
    elif end < 0:
        assert answer == struct.pack(">iihiqq", 26, 0x01020304, 2, 0, -1, -1)
    else:
        assert answer == struct.pack(">iihiqq", 26, 0x01020304, 0, 0, base, end)


def test_a_pipeline_of_all_kinds_cut_anywhere(workers: Workers) -> None:
    """Answers in the order of the requests, whatever the pieces: a part of one request, or several and a half."""
    source = random.Random(3)
    requests = [*READING.values(), *(request for request, _ in APPENDING.values())]
    with workers.connect() as reader:
        for turn in range(30):
            source.shuffle(requests)
            stream = b"".join(requests)
            cuts = sorted(source.sample(range(1, len(stream)), source.randint(1, 25)))
            with workers.connect() as client:
                feed = Feed(workers, client)
                end = reader.log_end("t", 0)
                for first, last in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                    feed(stream[first:last])
                for request in requests:
                    if request in READING.values():
                        assert client.recv_frame() == answer_of(workers, request)[4:], turn
                    else:
                        appended = next(data for one, data in APPENDING.values() if one == request)
                        if request[4:6] == struct.pack(">h", raw.PRODUCE_ACK):
                            expected = end + len(appended) if appended else -1
                            check_acked(request, client.recv_exactly(30), end, expected)
                        end += len(appended)
                assert reader.log_end("t", 0) == end


# -- more than the sockets hold ----------------------------------------------------------------------------------------


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Workers]:
    with Workers(tmp_path, partitions=4, max_message_bytes=20 * MEGABYTE) as running:
        yield running


@pytest.mark.parametrize("size", [1, 60_000, 65_521, 65_522, 65_536, 131_072, 262_144, 300_000, 1_500_000])
def test_a_request_larger_than_the_sockets(narrow: Workers, size: int) -> None:
    """And behind it, in the same pieces, small ones; with the sizes at which buffers change their kind."""
    message = raw.entry(random.Random(size).randbytes(size))
    stream = acked("t", message) + acked("t", ONE) + acked("t", message, raw.FLUSHED) + MARK.replace(b"still", b"other")
    with narrow.connect_narrow() as client:
        sender = threading.Thread(target=client.send_raw, args=(stream,))
        sender.start()
        end = 0
        for appended in (message, ONE, message):
            check_acked(acked("t", ONE), client.recv_exactly(30), end, end + len(appended))
            end += len(appended)
        assert client.recv_answer().error == 0
        sender.join()
        assert client.fetch_ok("t", 0, 0, 10 * MEGABYTE) == message + ONE + message
        wait_until("its memory is given back", lambda: not narrow.held()["memory"])


@pytest.mark.parametrize("kind", ["fetch", "multifetch", "held fetch", "small fetches", "cut points"])
def test_an_answer_larger_than_the_sockets_is_taken_byte_by_byte(narrow: Workers, kind: str) -> None:
    """Its first bytes one by one, the rest in odd pieces; then the connection goes on."""
    message = raw.entry(random.Random(1).randbytes(40_000))
    count = 16
    with narrow.connect_narrow() as client:
        for _ in range(count):
            assert client.produce_ack("t", 0, message, raw.FLUSHED).error == 0
        whole = message * count
        body: bytes
        if kind == "fetch":
            request, expected = raw.fetch_frame("t", 0, 0), struct.pack(">ih", len(whole) + 2, 0) + whole
        elif kind == "multifetch":
            request = raw.multifetch_frame([("t", 0, 0, MEGABYTE), ("t", 9, 0, 1), ("t", 0, len(message), 50_000)])
            part = whole[len(message) :][:50_000]
            parts = struct.pack(">ih", len(whole) + 2, 0) + whole + struct.pack(">ih", 2, 3)
            parts += struct.pack(">ih", len(part) + 2, 0) + part
            expected = struct.pack(">ih", len(parts) + 2, 0) + parts
        elif kind == "held fetch":
            request = own(raw.HELD_FETCH, raw.held_fetch_body("t", 0, 0, MEGABYTE, 0, 0))
            expected = struct.pack(">iihqq", len(whole) + 22, 0x01020304, 0, len(whole), 0) + whole
        elif kind == "small fetches":
            request = raw.fetch_frame("t", 0, 0, 10_000) * 100
            expected = (struct.pack(">ih", 10_002, 0) + message[:10_000]) * 100
        else:
            request = own(raw.CUT_POINTS, raw.cut_points_body("t", 0, 0, len(whole), 1, 100)) * 500
            points = [number * len(message) for number in range(count + 1)]
            body = struct.pack(">ihi", 0x01020304, 0, len(points)) + struct.pack(f">{len(points)}q", *points)
            expected = (struct.pack(">i", len(body)) + body) * 500
        sender = threading.Thread(target=client.send_raw, args=(request + MARK.replace(b"still", b"other"),))
        sender.start()
        found = bytearray(client.recv_exactly(1) + client.recv_exactly(3))
        for _ in range(50):
            found += client.recv_exactly(1)
        while len(found) < len(expected):
            found += client.recv_exactly(min(1 + len(found) % 7919, len(expected) - len(found)))
        assert bytes(found) == expected
        assert raw.decode_offsets(client.recv_answer().body) == [0]
        sender.join()
        assert client.produce_ack("t", 0, ONE).base_offset == len(whole)
    wait_until("all is given back", lambda: not narrow.held()["pins"] and not narrow.held()["connections"])


# -- pipelines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 15, 16, 17, 63, 64, 65, 4095, 4096, 4097, 9000])
def test_a_pipeline_of_acknowledged_produces_behind_a_flush(tmp_path: Path, count: int) -> None:
    """Answers are owed for all of them at once, up to a bound; they come in order, each for its own set."""
    with Workers(tmp_path, flusher=False, partitions=20) as workers, workers.connect() as client:
        sets = [raw.entry(b"%d" % (number % 11)) for number in range(count)]
        frames = [
            raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, one, raw.FLUSHED), correlation=number)
            for number, one in enumerate(sets)
        ]
        sender = threading.Thread(target=client.send_raw, args=(b"".join(frames),))
        sender.start()
        wait_until("as many are appended as may be owed", lambda: workers.count("own_requests") == min(count, 4096))
        workers.wait_still()
        assert workers.count("own_requests") == min(count, 4096)
        assert is_silent(client)
        workers.start_flusher()
        end = 0
        for number, one in enumerate(sets):
            assert client.recv_exactly(30) == struct.pack(">iihiqq", 26, number, 0, 0, end, end + len(one))
            end += len(one)
        sender.join()
        assert is_silent(client)
        assert workers.count("messages_in") == count


@pytest.mark.parametrize(
    ("partitions", "size"),
    [(1, 4_000), (15, 1), (16, 1), (17, 1), (20, 4_000), (1, 262_133), (1, 262_134), (1, 262_135), (17, 500_000)],
)
def test_a_pipeline_over_many_partitions(tmp_path: Path, partitions: int, size: int) -> None:
    """More than are gathered at once, with sets as large as what is gathered for one, and around it."""
    rounds = 3 if size > 10_000 else 40
    with Workers(tmp_path, partitions=20) as workers, workers.connect() as client, workers.connect() as reader:
        numbers = range(partitions * rounds)
        sets = [raw.entry(struct.pack(">i", number).rjust(size, b"x")[:size]) for number in numbers]
        frames = [raw.produce_frame("t", number % partitions, one) for number, one in enumerate(sets)]
        client.send_raw(b"".join(frames) + MARK)
        assert client.recv_answer().error == 0
        for partition in range(partitions):
            expected = b"".join(sets[partition::partitions])
            reader.wait_visible("t", partition, len(expected))
            assert reader.read_all("t", partition) == expected
        assert workers.count("messages_in") == len(sets)
        assert workers.count("bytes_in") == sum(map(len, sets))
        wait_until("their memory is given back", lambda: not workers.held()["memory"])


@pytest.mark.parametrize("count", [2047, 2048, 2049, 5000])
def test_more_requests_in_one_piece_than_one_write_takes(tmp_path: Path, count: int) -> None:
    messages = [raw.entry(b"%04d" % number) for number in range(count)]
    with Workers(tmp_path) as workers, workers.connect() as client:
        client.send_raw(b"".join(raw.produce_frame("t", 0, one) for one in messages) + MARK)
        assert client.recv_answer().error == 0
        client.wait_visible("t", 0, sum(map(len, messages)))
        assert client.read_all("t", 0) == b"".join(messages)
        assert workers.count("messages_in") == count


def test_requests_that_wait_keep_their_order(tmp_path: Path) -> None:
    """Those behind one that waits for room, for a new partition or for a decompression are not looked at before it."""
    squeezed = raw.wrapper(raw.entry(bytes(700_000)) * 3, raw.GZIP)
    with Workers(tmp_path, flush_interval_messages=10, partitions=4) as workers, workers.connect() as client:
        expected: list[tuple[int, int]] = []
        ends = [0] * 4
        stream = b""
        for number in range(200):
            partition = number % 4
            data = squeezed if number % 10 == 3 else ONE * (1 + number % 3)
            stream += acked("t", data, raw.APPENDED if number % 5 else raw.FLUSHED, partition)
            expected.append((ends[partition], ends[partition] + len(data)))
            ends[partition] += len(data)
        sender = threading.Thread(target=client.send_raw, args=(stream,))
        sender.start()
        for base, end in expected:
            _, answer = client.recv_own()
            assert (answer.error, *struct.unpack(">qq", answer.body[4:])) == (0, base, end)
        sender.join()
