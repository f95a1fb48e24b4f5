"""The same bytes give the same log and the same answers, however they are cut into pieces on their way."""

from __future__ import annotations

import itertools
import random
import struct
import time
from collections.abc import Callable, Iterable

import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker

NAME_BYTES = len("topic0000")
ONE, TWO, BAD = raw.entry(b"one"), raw.entry(b"two", 0), raw.entry(b"bad", crc=3)
WRAPPED = raw.message_set([b"a", b"b", b"c"], codec=raw.GZIP)
CUT = raw.entry(b"cut short")[:-2]


def good_stream(topic: str) -> bytes:
    """Every kind of request, and answers that depend on nothing but the requests before them."""
    flushed = raw.produce_ack_body(topic, 0, ONE, raw.FLUSHED)
    return b"".join(
        [
            raw.produce_frame(topic, 0, ONE + TWO),
            raw.multiproduce_frame([(topic, 0, WRAPPED), (topic, 0, ONE + CUT)]),
            raw.own_frame(raw.PRODUCE_ACK, flushed, correlation=11),
            raw.fetch_frame(topic, 0, 0),
            raw.fetch_frame(topic, 0, 4000),
            raw.offsets_frame(topic, 0, -1, 10),
            raw.multifetch_frame([(topic, 0, len(ONE), 30), (topic, 9, 0, 9)]),
            raw.own_frame(raw.METADATA, raw.metadata_body([topic]), correlation=12),
            raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body(topic, 0, BAD), correlation=13),
        ]
    )


def ending_stream(topic: str) -> bytes:
    """Good requests, then one that closes the connection, then one that must leave nothing."""
    flushed = raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body(topic, 0, TWO, raw.FLUSHED), correlation=5)
    bad = raw.multiproduce_frame([(topic, 0, ONE), (topic, 0, TWO + BAD), (topic, 0, WRAPPED)])
    return raw.produce_frame(topic, 0, ONE) * 3 + flushed + bad + raw.produce_frame(topic, 0, WRAPPED)


def send_in_pieces(broker: Broker, pieces: Iterable[bytes], pause: float = 0.0) -> bytes:
    """Everything the broker answers until it closes; the client closes its side after the last piece."""
    answers = bytearray()
    with broker.connect() as client:
        try:
            for index, piece in enumerate(pieces):
                if index and pause:
                    time.sleep(pause)
                client.send_raw(piece)
            client.finish_sending()
            while data := client.socket.recv(65536):
                answers += data
        except ConnectionError:
            pass  # the broker closes on the bad request while later bytes are still on their way
    return bytes(answers)


def run(broker: Broker, topic: str, pieces: Iterable[bytes], pause: float = 0.0) -> tuple[bytes, bytes]:
    """The answers, with the topic's name blanked, and the bytes of partition 0."""
    answers = send_in_pieces(broker, pieces, pause).replace(topic.encode(), b"?" * NAME_BYTES)
    return answers, broker.stored_bytes(topic, 0)


def cut_at(data: bytes, *places: int) -> list[bytes]:
    edges = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges) if start < end]


def test_the_good_stream_is_answered_as_it_should_be(broker: Broker, topic: str) -> None:
    """The reference of the other tests is right itself."""
    log = ONE + TWO + WRAPPED + ONE + ONE
    with broker.connect() as client:
        client.send_raw(good_stream(topic))
        correlation, answer = client.recv_own()
        assert (correlation, answer.error) == (11, 0)
        assert answer.body == struct.pack(">iqq", 0, len(log) - len(ONE), len(log))
        assert client.recv_answer() == (0, log)
        assert client.recv_answer() == (1, b"")
        assert raw.decode_offsets(client.recv_answer().body) == [len(log), 0]
        assert raw.decode_multifetch(client.recv_answer().body) == [(0, log[len(ONE) :][:30]), (3, b"")]
        correlation, answer = client.recv_own()
        state = raw.decode_metadata(answer.body).topics[topic].partitions[0]
        assert (correlation, answer.error, state) == (12, 0, (0, 0, 0, len(log), len(log)))
        correlation, answer = client.recv_own()
        assert (correlation, answer.error) == (13, 2)
    assert broker.stored_bytes(topic, 0) == log


@pytest.mark.slow
def test_split_at_every_byte(broker: Broker, new_topic: Callable[[], str]) -> None:
    """Two pieces, cut at each place in turn."""
    first = new_topic()
    stream = good_stream(first)
    expected = run(broker, first, [stream])
    for place in range(1, len(stream)):
        topic = new_topic()
        assert run(broker, topic, cut_at(good_stream(topic), place), pause=0.001) == expected, f"cut at {place}"


@pytest.mark.slow
def test_byte_by_byte(broker: Broker, new_topic: Callable[[], str]) -> None:
    """Each byte in a segment of its own."""
    first, second = new_topic(), new_topic()
    expected = run(broker, first, [good_stream(first)])
    assert run(broker, second, cut_at(good_stream(second), *range(len(good_stream(second)))), pause=0.0005) == expected


@pytest.mark.slow
def test_random_pieces(broker: Broker, new_topic: Callable[[], str]) -> None:
    """Any number of pieces of any size."""
    source = random.Random(42)
    first = new_topic()
    expected = run(broker, first, [good_stream(first)])
    for _ in range(40):
        topic = new_topic()
        stream = good_stream(topic)
        places = source.sample(range(1, len(stream)), source.randint(2, 40))
        assert run(broker, topic, cut_at(stream, *places), pause=0.0003) == expected, f"cut at {sorted(places)}"


@pytest.mark.slow
def test_a_bad_request_leaves_nothing_however_it_comes(broker: Broker, new_topic: Callable[[], str]) -> None:
    """What precedes the bad part is stored; the bad part, what follows it, and later requests are not."""
    length = len(ending_stream("topic0000"))
    cuts = [(), tuple(range(length)), *((place,) for place in range(1, length, 7))]
    for places in cuts:
        topic = new_topic()
        pieces = cut_at(ending_stream(topic), *places)
        run(broker, topic, pieces, pause=0.0003 if len(pieces) > 2 else 0.002)
        assert broker.stored_bytes(topic, 0) == ONE * 3 + TWO + ONE, f"cut at {places[:3]}"


def test_thousands_of_requests_in_one_piece(broker: Broker, topic: str) -> None:
    """Pipelined single-message produces to four partitions in turn give the same logs as one set for each."""
    messages = [raw.entry(b"%06d" % number, number & 1) for number in range(8000)]
    frames = [raw.produce_frame(topic, number % 4, message) for number, message in enumerate(messages)]
    with broker.connect() as client:
        client.send_raw(b"".join(frames))
        for partition in range(4):
            expected = b"".join(messages[partition::4])
            assert client.log_end(topic, partition) == len(expected)
            client.wait_visible(topic, partition, len(expected))
            assert client.read_all(topic, partition) == expected


def test_produces_and_fetches_mixed_in_one_piece(broker: Broker, topic: str) -> None:
    """Each flushed acknowledgement is followed by a fetch that sees exactly what was acknowledged until then."""
    rounds = 100
    body = raw.produce_ack_body(topic, 0, ONE, raw.FLUSHED)
    stream = [
        raw.own_frame(raw.PRODUCE_ACK, body, correlation=number) + raw.fetch_frame(topic, 0, number * len(ONE))
        for number in range(rounds)
    ]
    with broker.connect() as client:
        client.send_raw(b"".join(stream))
        for number in range(rounds):
            correlation, answer = client.recv_own()
            assert (correlation, answer.error) == (number, 0)
            assert client.recv_answer() == (0, ONE)
