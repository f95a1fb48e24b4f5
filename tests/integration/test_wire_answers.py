"""The answers a running Kafka 0.7.2 gave, line by line, with the few that fastlog gives better.

The topic holds three messages of 14, 14 and 13 bytes; there are 4 partitions; max.message.size is 1,000,000.
Better here: a negative fetch size is error 4, OFFSETS on a partition that does not exist is an error code and no closed
connection, and an offset inside a message is an error and no garbage.
"""

from __future__ import annotations

import struct
import time
from typing import NamedTuple

import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until

FIRST, SECOND, THIRD = raw.entry(b"one1"), raw.entry(b"two2"), raw.entry(b"thr3", 0)
STORED = FIRST + SECOND + THIRD
TOPIC = "answers"
NOBODY = "nobody-wrote-this"
MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def three_messages(broker: Broker) -> None:
    """Three messages, 41 bytes, visible."""
    assert len(STORED) == 41
    with broker.connect() as client:
        client.produce(TOPIC, 0, STORED)
        client.wait_visible(TOPIC, 0, 41)


class Fetch(NamedTuple):
    """A request, and what it is answered with."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    error: int
    body: bytes = b""


FETCHES = {
    "topic nobody wrote, offset 0": Fetch(NOBODY, 0, 0, MIB, 0),
    "topic nobody wrote, offset 5": Fetch(NOBODY, 0, 5, MIB, 0),
    "from the start": Fetch(TOPIC, 0, 0, MIB, 0, STORED),
    "from the second message": Fetch(TOPIC, 0, 14, MIB, 0, STORED[14:]),
    "at the end": Fetch(TOPIC, 0, 41, MIB, 0),
    "one past the end": Fetch(TOPIC, 0, 42, MIB, 1),
    "offset -1": Fetch(TOPIC, 0, -1, MIB, 1),
    "the largest offset": Fetch(TOPIC, 0, 2**63 - 1, MIB, 1),
    "the smallest offset": Fetch(TOPIC, 0, -(2**63), MIB, 1),
    "inside the first message": Fetch(TOPIC, 0, 3, MIB, 2),
    "inside the last message": Fetch(TOPIC, 0, 39, MIB, 2),
    "max size 20 cuts the second message": Fetch(TOPIC, 0, 0, 20, 0, STORED[:20]),
    "max size 5 is less than one message": Fetch(TOPIC, 0, 0, 5, 0, STORED[:5]),
    "max size 0": Fetch(TOPIC, 0, 0, 0, 0),
    "max size -1": Fetch(TOPIC, 0, 0, -1, 4),
    "the smallest max size": Fetch(TOPIC, 0, 0, -(2**31), 4),
    "the largest max size": Fetch(TOPIC, 0, 0, 2**31 - 1, 0, STORED),
    "partition 9999": Fetch(TOPIC, 9999, 0, MIB, 3),
    "partition -1": Fetch(TOPIC, -1, 0, MIB, 3),
    "empty topic name": Fetch("", 0, 0, MIB, -1),
}


@pytest.mark.parametrize("case", FETCHES.values(), ids=FETCHES)
def test_fetch(client: raw.RawClient, case: Fetch) -> None:
    """The answer has that error and exactly those bytes, and the connection serves the next request."""
    answer = client.fetch(case.topic, case.partition, case.offset, case.max_bytes)
    assert answer == (case.error, case.body)
    assert client.fetch_ok(TOPIC, 0, 0) == STORED


OFFSETS = {
    "-1, 10": (TOPIC, -1, 10, [41, 0]),
    "-1, 1": (TOPIC, -1, 1, [41]),
    "-2, 10": (TOPIC, -2, 10, [0]),
    "-1, 0": (TOPIC, -1, 0, []),
    "2^62, 1": (TOPIC, 2**62, 1, [41]),
    "2^63 - 1, 1": (TOPIC, 2**63 - 1, 1, [41]),
    "one second after 1970": (TOPIC, 1000, 10, []),
    "-3, 10": (TOPIC, -3, 10, []),
    "the smallest time": (TOPIC, -(2**63), 10, []),
    "the largest count": (TOPIC, -1, 2**31 - 1, [41, 0]),
    "topic nobody wrote, -1": (NOBODY, -1, 1, [0]),
    "topic nobody wrote, -2": (NOBODY, -2, 1, [0]),
}


@pytest.mark.parametrize(("topic", "when", "count", "expected"), OFFSETS.values(), ids=OFFSETS)
def test_offsets(client: raw.RawClient, topic: str, when: int, count: int, expected: list[int]) -> None:
    """The answer is error 0 and those offsets, descending."""
    assert client.offsets(topic, 0, when, count) == expected


def test_offsets_now(client: raw.RawClient) -> None:
    """A time in the future gives the end as well; now gives nothing where nobody wrote."""
    now = int(time.time() * 1000)
    assert client.offsets(TOPIC, 0, now + 3_600_000, 10) == [41, 0]
    assert client.offsets(NOBODY, 0, now, 1) == []


@pytest.mark.parametrize(
    ("topic", "partition", "error"), [(TOPIC, 9999, 3), (TOPIC, -1, 3), ("", 0, -1), ("a/b", 0, -1)]
)
def test_offsets_of_what_does_not_exist(client: raw.RawClient, topic: str, partition: int, error: int) -> None:
    """The answer is an error code and no offsets; the connection stays open."""
    answer = client.ask(raw.offsets_frame(topic, partition, -1, 1))
    assert answer.error == error
    assert raw.decode_offsets(answer.body) == []
    assert client.offsets(TOPIC, 0) == [41, 0]


def test_multifetch(client: raw.RawClient) -> None:
    """Start, end, past the end; and of nothing."""
    parts = [(TOPIC, 0, offset, MIB) for offset in (0, 41, 42)]
    assert client.multifetch(parts) == [(0, STORED), (0, b""), (1, b"")]
    assert client.multifetch([]) == []


class Produce(NamedTuple):
    """A message set, whether the connection stays open, and by how much the log grows."""

    messages: bytes
    stays_open: bool
    growth: int = 0


GOOD = raw.entry(b"good")
PRODUCES = {
    "wrong checksum": Produce(raw.entry(b"bad!", crc=1), False),
    "good message, then one of wrong checksum": Produce(GOOD + raw.entry(b"bad!", crc=1), False),
    "good message, then a cut one": Produce(GOOD + raw.entry(b"cut short")[:-3], True, 14),
    "good message, then three bytes": Produce(GOOD + bytes(3), True, 14),
    "magic 2": Produce(raw.entry(b"bad!", 2), False),
    "magic 0 and 1 in one set": Produce(raw.entry(b"old!", 0) + GOOD, True, 27),
    "empty set": Produce(b"", True),
    "empty payloads": Produce(raw.entry(b"") + raw.entry(b"", 0), True, 19),
    "payload of 1000000 bytes": Produce(raw.entry(bytes(1_000_000)), True, 1_000_010),
    "payload of 1000001 bytes": Produce(raw.entry(bytes(1_000_001)), True),
    "payload of 3000000 bytes": Produce(raw.entry(bytes(3_000_000)), True),
    "good message, then a large one": Produce(GOOD + raw.entry(bytes(1_000_001)), True),
    "a message of size 0": Produce(bytes(4), False),
    "a message of size 4": Produce(struct.pack(">i", 4) + bytes(4), False),
    "a message of negative size": Produce(struct.pack(">i", -1) + bytes(20), False),
    "gzip that is none": Produce(raw.entry(b"no gzip", 1, 1), False),
    "snappy that is none": Produce(raw.entry(b"\xff\xff\xff\xff\xff\xff", 1, 2), False),
    "codec 3": Produce(raw.entry(b"bad!", 1, 3), False),
}


@pytest.mark.parametrize("case", PRODUCES.values(), ids=PRODUCES)
def test_produce(broker: Broker, client: raw.RawClient, topic: str, case: Produce) -> None:
    """The log grows by exactly that much, and the connection is closed or goes on; no answer comes in either case."""
    with broker.connect() as producer:
        producer.produce(topic, 0, case.messages)
        if case.stays_open:
            assert producer.fetch_ok(TOPIC, 0, 0) == STORED
        else:
            assert producer.is_closed()
    assert client.log_end(topic, 0) == case.growth
    if case.growth:
        client.wait_visible(topic, 0, case.growth)
        assert client.fetch_ok(topic, 0, 0, 2_000_000) == case.messages[: case.growth]


def test_produce_and_close(broker: Broker, client: raw.RawClient, topic: str) -> None:
    """What came before the client closed its side is stored; then the broker closes too."""
    with broker.connect() as producer:
        producer.produce(topic, 0, GOOD)
        producer.finish_sending()
        assert producer.is_closed()
    assert client.log_end(topic, 0) == 14


def test_fifty_produces_offsets_and_fetch_on_one_connection(broker: Broker, topic: str) -> None:
    """Requests behind produces see them all appended; the fetch at offset 0 gives the 10 bytes it asks for."""
    with broker.connect() as client:
        for _ in range(50):
            client.produce(topic, 0, GOOD)
        assert client.log_end(topic, 0) == 700
        client.wait_visible(topic, 0, 700)
        assert client.offsets(topic, 0) == [700, 0]
        assert client.fetch_ok(topic, 0, 0, 10) == GOOD[:10]


def test_fetch_byte_by_byte(client: raw.RawClient) -> None:
    """A request may come in any pieces."""
    for byte in raw.fetch_frame(TOPIC, 0, 0):
        client.send_raw(bytes([byte]))
    assert client.recv_answer() == (0, STORED)


FETCH_FRAME = raw.fetch_frame(TOPIC, 0, 0)
CLOSING = {
    "type 5": raw.frame(5, FETCH_FRAME[6:]),
    "type -1": raw.frame(-1, FETCH_FRAME[6:]),
    "type 18": raw.frame(18, struct.pack(">hih", 3, 1, -1)),
    "type 999": raw.frame(999, FETCH_FRAME[6:]),
    "size 0": struct.pack(">i", 0),
    "size 1": struct.pack(">ib", 1, 0),
    "size -1": struct.pack(">i", -1),
    "size 2147483647": struct.pack(">i", 2**31 - 1),
    "fetch cut short": struct.pack(">i", len(FETCH_FRAME) - 8) + FETCH_FRAME[4:-4],
    "nothing but the type": raw.frame(raw.FETCH, b""),
    "set larger than its frame": raw.frame(raw.PRODUCE, raw.place(TOPIC, 0) + struct.pack(">i", 100) + GOOD),
    "set of negative size": raw.frame(raw.PRODUCE, raw.place(TOPIC, 0) + struct.pack(">i", -1) + GOOD),
}


@pytest.mark.parametrize("data", CLOSING.values(), ids=CLOSING)
def test_requests_that_close_the_connection(broker: Broker, client: raw.RawClient, data: bytes) -> None:
    """No answer; answers to requests before it still come; others are served; the log is as it was."""
    with broker.connect() as bad:
        bad.send_raw(FETCH_FRAME + data)
        assert bad.recv_answer() == (0, STORED)
        assert bad.is_closed()
    assert client.log_end(TOPIC, 0) == 41
    assert client.fetch_ok(TOPIC, 0, 0) == STORED


def test_a_frame_of_another_protocol_is_named(broker: Broker) -> None:
    """What opens today's protocol is none of 0.7: behind a request of that, it closes the connection with a line."""
    with broker.connect() as client:
        client.send_raw(FETCH_FRAME + raw.frame(18, struct.pack(">hih", 3, 1, -1)))
        assert client.recv_answer() == (0, STORED)
        assert client.is_closed()
    # of identical lines one is written in ten seconds, so it may stand further up
    wait_until("a line that names the protocol", lambda: "speaks Kafka 0.7" in broker.log_text())


def test_fetch_with_four_bytes_more(client: raw.RawClient) -> None:
    """Bytes of a frame behind the request are ignored."""
    client.send_raw(raw.frame(raw.FETCH, FETCH_FRAME[6:] + bytes(4)))
    assert client.recv_answer() == (0, STORED)
    client.send_raw(raw.frame(raw.OFFSETS, raw.offsets_frame(TOPIC, 0, -1, 1)[6:] + bytes(4)))
    assert raw.decode_offsets(client.recv_answer().body) == [41]
