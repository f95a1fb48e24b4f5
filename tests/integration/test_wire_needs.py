"""What fifteen old client libraries in eight languages need from a broker, each need as a test."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker
from tests.harness.timing import sooner_than

GOOD = raw.entry(b"good")
DATA_SEGMENTS_IN = 152  # where struct tcp_info counts the segments with data that came in
DELAYED_ACKNOWLEDGEMENT_SECONDS = 0.04


@pytest.fixture
def filled(client: raw.RawClient, topic: str) -> str:
    """A topic with three visible messages."""
    client.produce(topic, 0, GOOD * 3)
    client.wait_visible(topic, 0, 42)
    return topic


@pytest.fixture
def nagle_client(broker: Broker) -> Iterator[raw.RawClient]:
    """A connection that leaves Nagle's algorithm on, as most old clients do."""
    with broker.connect() as connected:
        connected.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        yield connected


def segments_received(client: raw.RawClient) -> int:
    info = client.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    return int(struct.unpack_from("=I", info, DATA_SEGMENTS_IN)[0])


def test_1_a_small_answer_comes_in_one_segment(client: raw.RawClient, filled: str) -> None:
    """Size, error and a small body are never split: some clients read them with one call each and break."""
    requests = [
        raw.fetch_frame(filled, 0, 0),
        raw.fetch_frame(filled, 0, 42),
        raw.fetch_frame(filled, 0, 99),
        raw.fetch_frame(filled, 9999, 0),
        raw.offsets_frame(filled, 0, -1, 10),
        raw.multifetch_frame([(filled, 0, 99, 10), (filled, 9, 0, 10)]),
    ]
    for request in requests * 20:
        before = segments_received(client)
        client.ask(request)
        assert segments_received(client) - before == 1, request.hex()


def test_1_size_and_error_of_a_large_answer_come_together(client: raw.RawClient, topic: str) -> None:
    """The first bytes of any answer hold at least size and error, and all of it comes."""
    message = raw.entry(b"x" * 1000)
    client.produce(topic, 0, message * 300)
    client.wait_visible(topic, 0, len(message) * 300)
    for size in (1461, 9_001, 65_537, 262_145, 300_001):
        client.send_raw(raw.fetch_frame(topic, 0, 0, size))
        pieces = [client.socket.recv(1 << 20)]
        while sum(map(len, pieces)) < size + 6:
            pieces.append(client.socket.recv(1 << 20))
        assert len(pieces[0]) >= 6
        assert b"".join(pieces)[6:] == (message * 300)[:size]


def test_2_bytes_are_stored_untouched(broker: Broker, client: raw.RawClient, topic: str) -> None:
    """Magic 0 and 1 lie side by side as they came, on disk and on the wire."""
    data = (
        raw.entry(b"old", 0) + raw.entry(b"new", 1) + raw.message_set([b"a", b"b"], codec=raw.GZIP) + raw.entry(b"", 0)
    )
    client.produce(topic, 0, data)
    client.wait_visible(topic, 0, len(data))
    assert client.fetch_ok(topic, 0, 0) == data
    assert broker.stored_bytes(topic, 0) == data


def test_2_a_produce_has_no_answer(client: raw.RawClient, topic: str) -> None:
    """Nothing comes back for PRODUCE and MULTIPRODUCE, stored or dropped."""
    client.produce(topic, 0, GOOD)
    client.send_raw(raw.multiproduce_frame([(topic, 0, GOOD), (topic, 1, GOOD)]))
    client.produce(topic, 0, raw.entry(bytes(1_000_001)))
    client.produce(topic, 0, b"")
    assert not client.is_closed(within=0.15)


def test_3_a_fetch_may_end_inside_a_message(client: raw.RawClient, filled: str) -> None:
    """Any size is served from the asked offset; what was cut comes whole with the next fetch from its start."""
    for size in range(1, 43):
        assert client.fetch_ok(filled, 0, 0, size) == (GOOD * 3)[:size]
    assert client.read_all(filled, 0, max_bytes=15) == GOOD * 3


def test_4_the_connection_survives_errors(client: raw.RawClient, filled: str) -> None:
    """After each kind of error answer the same connection serves a good fetch."""
    for topic, partition, offset, size in [(filled, 0, 43, 9), (filled, 9, 0, 9), ("", 0, 0, 9), (filled, 0, 0, -1)]:
        assert client.fetch(topic, partition, offset, size).error != 0
        assert client.fetch_ok(filled, 0, 0) == GOOD * 3


@pytest.mark.parametrize("count", [1, 20, 2000])
def test_5_everything_before_a_fin_is_processed(broker: Broker, client: raw.RawClient, topic: str, count: int) -> None:
    """A client that closes right after its last send loses nothing."""
    with broker.connect() as producer:
        producer.send_raw(raw.produce_frame(topic, 0, GOOD) * count)
    deadline = time.monotonic() + 5
    while client.log_end(topic, 0) < count * len(GOOD) and time.monotonic() < deadline:
        time.sleep(0.002)
    assert client.log_end(topic, 0) == count * len(GOOD)


def test_5_answers_come_after_a_half_close(broker: Broker, filled: str) -> None:
    """A client may close its sending side and still read every answer, then the end."""
    with broker.connect() as client:
        client.send_raw(raw.fetch_frame(filled, 0, 0) * 30)
        client.finish_sending()
        assert [client.recv_answer() for _ in range(30)] == [(0, GOOD * 3)] * 30
        assert client.is_closed()


def test_6_answers_come_in_the_order_of_requests(client: raw.RawClient, filled: str) -> None:
    """Requests sent at once, each with an answer that tells it from the others, are answered one after the other."""
    sizes = [size for _ in range(20) for size in (5, 0, 42, 1)]
    client.send_raw(b"".join(raw.fetch_frame(filled, 0, 0, size) for size in sizes))
    assert [client.recv_answer() for _ in sizes] == [(0, (GOOD * 3)[:size]) for size in sizes]


def test_6_a_produce_is_handled_before_the_requests_behind_it(client: raw.RawClient, topic: str) -> None:
    """Sent in one piece, METADATA sees each produce before it; OFFSETS never shows more, or half a message."""
    for count in range(1, 30):
        body = raw.metadata_body([topic])
        request = raw.produce_frame(topic, 0, GOOD) + raw.own_frame(raw.METADATA, body)
        client.send_raw(request + raw.offsets_frame(topic, 0, -1, 1))
        _, answer = client.recv_own()
        assert raw.decode_metadata(answer.body).topics[topic].partitions[0].log_end == count * len(GOOD)
        (end,) = raw.decode_offsets(client.recv_answer().body)
        assert end <= count * len(GOOD) and end % len(GOOD) == 0
    client.wait_visible(topic, 0, 29 * len(GOOD))


def test_7_small_writes_do_not_wait_for_delayed_acknowledgements(nagle_client: raw.RawClient, topic: str) -> None:
    """Size and body sent apart, 200 times, with Nagle's algorithm on: not the 40 ms each that a delayed one costs."""
    frame = raw.produce_frame(topic, 0, GOOD)
    with sooner_than(200 * DELAYED_ACKNOWLEDGEMENT_SECONDS * 3 / 4):
        for _ in range(200):
            nagle_client.send_raw(frame[:4])
            nagle_client.send_raw(frame[4:])
        assert nagle_client.log_end(topic, 0) == 200 * len(GOOD)


def test_7_requests_in_two_writes_are_answered_at_once(nagle_client: raw.RawClient, filled: str) -> None:
    """Size and body apart, waiting for each answer: no round waits for a delayed acknowledgement."""
    frame = raw.fetch_frame(filled, 0, 0)
    with sooner_than(200 * DELAYED_ACKNOWLEDGEMENT_SECONDS * 3 / 4):
        for _ in range(200):
            nagle_client.send_raw(frame[:4])
            nagle_client.send_raw(frame[4:])
            assert nagle_client.recv_answer() == (0, GOOD * 3)


@pytest.mark.parametrize("when", [7 * 10**18, 2**63 - 1, 2**53, 10**15])
def test_8_a_far_future_time_gives_the_end(client: raw.RawClient, filled: str, when: int) -> None:
    """No overflow turns a time far ahead into one long ago."""
    assert client.offsets(filled, 0, when, 10) == [42, 0]


def test_9_raw_snappy_blocks_are_accepted(client: raw.RawClient, topic: str) -> None:
    """A wrapper whose payload is one raw block, without the stream header, is stored and opens to its messages."""
    payloads = [b"first", b"second" * 1000, b""]
    wrapped = raw.entry(raw.snappy_encode(raw.message_set(payloads)), 1, raw.SNAPPY)
    client.produce(topic, 0, wrapped)
    client.wait_visible(topic, 0, len(wrapped))
    stored = client.read_all(topic, 0)
    assert stored == wrapped
    assert raw.deep_payloads(stored) == payloads


def test_10_a_large_fetch_is_answered_whole(client: raw.RawClient, topic: str) -> None:
    """145 kB come in one answer, as do 900 kB."""
    message = raw.entry(b"x" * 190)
    client.produce(topic, 0, message * 5000)
    client.wait_visible(topic, 0, 1_000_000)
    for size in (145_000, 900_000):
        assert client.fetch_ok(topic, 0, 0, size) == (message * 5000)[:size]
