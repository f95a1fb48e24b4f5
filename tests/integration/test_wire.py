"""Requests 0-4 of Kafka 0.7 over real sockets: recorded frames, rules of produce, vectors of offsets and segments.

Source: Kafka 0.7.2 and its unit tests (LogTest, LogOffsetTest, LogManagerTest, PrimitiveApiTest).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until

HELLO = raw.entry(b"hello")
BODY_P0 = "0004 74657374 00000000 0000000f 0000000b01003610a68668656c6c6f"
BODY_ANY = "0004 74657374 ffffffff 0000000f 0000000b01003610a68668656c6c6f"
PRODUCE = "0000001f 0000" + BODY_P0
PRODUCE_ANYWHERE = "0000001f 0000" + BODY_ANY
MULTIPRODUCE = "0000003e 0003 0002" + BODY_P0 + BODY_ANY
FETCH = "00000018 0001 0004 74657374 00000000 0000000000000000 00100000"
MULTIFETCH = (
    "00000030 0002 0002 000474657374 00000000 0000000000000000 00100000000474657374 00000001 000000000000000f 00100000"
)
LATEST = "00000018 0004 0004 74657374 00000000 ffffffffffffffff 0000000a"
EARLIEST = "00000018 0004 0004 74657374 00000000 fffffffffffffffe 0000000a"

ROLLED, KEPT, VECTOR = "rolled", "kept", "vector"


def exchange(client: raw.RawClient, request: str, answer: str) -> None:
    """Sends recorded bytes; the answer must be exactly the recorded one."""
    client.send_raw(bytes.fromhex(request))
    expected = bytes.fromhex(answer)
    assert client.recv_exactly(len(expected)).hex() == expected.hex()


def test_recorded_frames(start_broker: Callable[..., Broker]) -> None:
    """Every recorded frame of 0.7 is understood, and answered with exactly the recorded bytes."""
    broker = start_broker(settings={"num.partitions": 4})
    with broker.connect() as client:
        exchange(client, LATEST, "0000000e 0000 00000001 0000000000000000")
        client.send_raw(raw.offsets_frame("test", 0, int(time.time() * 1000), 10))
        assert client.recv_exactly(10).hex() == "00000006000000000000"
        exchange(client, FETCH, "00000002 0000")

        client.send_raw(bytes.fromhex(PRODUCE))
        client.produce("test", 1, raw.entry(b"hello", 0))
        client.wait_visible("test", 0, 15)
        client.wait_visible("test", 1, 14)
        exchange(client, FETCH, "00000011 0000 0000000b01003610a68668656c6c6f")
        parts = "00000011 0000 0000000b01003610a68668656c6c6f 00000002 0001"
        exchange(client, MULTIFETCH, "0000001d 0000" + parts)
        exchange(client, LATEST, "00000016 0000 00000002 000000000000000f 0000000000000000")
        exchange(client, EARLIEST, "0000000e 0000 00000001 0000000000000000")
        exchange(client, raw.fetch_frame("test", 0, 16).hex(), "00000002 0001")
        exchange(client, raw.fetch_frame("", 0, 0).hex(), "00000002 ffff")

        client.send_raw(bytes.fromhex(PRODUCE_ANYWHERE + MULTIPRODUCE))
        states = client.metadata(["test"]).topics["test"].partitions
        assert sum(state.log_end for state in states.values()) == 15 + 14 + 3 * 15
        assert states[0].log_end >= 30
        for partition, state in states.items():
            client.wait_visible("test", partition, state.log_end)
        stored = b"".join(client.read_all("test", partition) for partition in range(4))
        assert sorted(raw.deep_payloads(stored)) == [b"hello"] * 5


# --- produce and multiproduce ---


def test_partition_minus_one_is_drawn_among_all(broker: Broker, client: raw.RawClient, topic: str) -> None:
    """Partition -1 spreads over the configured partitions; each produce goes to exactly one."""
    for _ in range(200):
        client.produce(topic, -1, HELLO)
    states = client.metadata([topic]).topics[topic].partitions
    counts = [state.log_end / len(HELLO) for state in states.values()]
    assert sum(counts) == 200
    assert len(counts) == 4 and min(counts) > 20


def test_partition_minus_one_is_drawn_for_each_part(client: raw.RawClient, topic: str) -> None:
    """Also behind a part that waited for its partition to be made: what was drawn for that one is for it alone."""
    client.send_raw(raw.multiproduce_frame([(topic, -1, HELLO)] * 100))
    ends = [state.log_end for state in client.metadata([topic]).topics[topic].partitions.values()]
    assert sum(ends) == 100 * len(HELLO)
    assert len(ends) == 4 and min(ends) > 0


@pytest.mark.parametrize("partition", [4, 9999, -2, -(2**31)])
def test_other_partitions_close_the_connection(broker: Broker, topic: str, partition: int) -> None:
    """Produce to a partition that does not exist closes and stores nothing; only -1 means "any"."""
    with broker.connect() as client:
        client.produce(topic, partition, HELLO)
        assert client.is_closed()
    assert not list(broker.log_dirs[0].glob(f"{topic}-*"))


BAD_SETS = {
    "wrong checksum": raw.entry(b"bad", crc=7),
    "magic 2": raw.entry(b"bad", 2),
    "codec 3": raw.entry(b"bad", 1, 3),
    "size 0": bytes(4) + HELLO,
    "not gzip": raw.entry(b"bad", 1, raw.GZIP),
    "not snappy": raw.entry(b"\xff" * 40, 1, raw.SNAPPY),
}


@pytest.mark.parametrize("bad", BAD_SETS.values(), ids=BAD_SETS)
def test_multiproduce_keeps_what_precedes_a_bad_part(
    broker: Broker, client: raw.RawClient, topic: str, bad: bytes
) -> None:
    """Parts before the bad one are stored, the bad one and those behind it are not, and the connection closes."""
    with broker.connect() as producer:
        parts = [(topic, 0, HELLO), (topic, 1, raw.entry(b"two", 0)), (topic, 0, HELLO + bad), (topic, 2, HELLO)]
        producer.send_raw(raw.multiproduce_frame(parts) + raw.produce_frame(topic, 3, HELLO))
        assert producer.is_closed()
    assert [client.log_end(topic, partition) for partition in range(4)] == [15, 12, 0, 0]
    client.wait_visible(topic, 0, 15)
    assert client.read_all(topic, 0) == HELLO


def test_multiproduce_to_a_wrong_partition_keeps_what_precedes_it(
    broker: Broker, client: raw.RawClient, topic: str
) -> None:
    """A wrong partition or an illegal name ends the request there and closes; the parts before it stay."""
    for wrong in ((topic, 4, HELLO), ("a/b", 0, HELLO)):
        before = client.log_end(topic, 0)
        with broker.connect() as producer:
            producer.send_raw(raw.multiproduce_frame([(topic, 0, HELLO), wrong, (topic, 1, HELLO)]))
            assert producer.is_closed()
        assert client.log_end(topic, 0) == before + len(HELLO)
        assert client.log_end(topic, 1) == 0


def test_multiproduce_skips_a_message_that_is_too_large(client: raw.RawClient, topic: str) -> None:
    """A part with a payload above max.message.size is dropped, the others are stored, the connection stays open."""
    large = raw.entry(b"x" * 1_000_001)
    client.send_raw(raw.multiproduce_frame([(topic, 0, HELLO), (topic, 1, HELLO + large), (topic, 2, HELLO)]))
    assert [client.log_end(topic, partition) for partition in range(4)] == [15, 0, 15, 0]


def test_multiproduce_of_nothing(client: raw.RawClient, topic: str) -> None:
    """No parts: nothing happens and the connection goes on."""
    client.send_raw(raw.multiproduce_frame([]))
    assert client.offsets(topic, 0) == [0]


@pytest.mark.parametrize("codec", [raw.GZIP, raw.SNAPPY])
def test_the_limit_holds_for_the_compressed_size(client: raw.RawClient, topic: str, codec: int) -> None:
    """A wrapper counts with its payload as sent: small ones pass whatever they inflate to, large ones are dropped."""
    payloads = [b"y" * 1000] * 2000 if codec == raw.GZIP else [b"y" * 1000] * 900
    small = raw.message_set(payloads, codec=codec)
    large = raw.entry(raw.snappy_encode(raw.message_set([b"z" * 1_000_000])), 1, raw.SNAPPY)
    client.produce(topic, 0, large)
    client.produce(topic, 0, small)
    assert client.log_end(topic, 0) == len(small)
    client.wait_visible(topic, 0, len(small))
    assert raw.deep_payloads(client.read_all(topic, 0)) == payloads


def test_compressed_sets_inside_compressed_sets(client: raw.RawClient, topic: str) -> None:
    """Any nesting within the limits, magics mixed inside, is stored verbatim and opens to the same messages."""
    inner = raw.message_set([b"a", b"b"], magic=0) + raw.message_set([b"c"], codec=raw.SNAPPY) + raw.entry(b"d")
    nested = raw.wrapper(raw.wrapper(inner, raw.GZIP) + raw.entry(b"e"), raw.SNAPPY)
    client.produce(topic, 0, nested)
    client.wait_visible(topic, 0, len(nested))
    stored = client.read_all(topic, 0)
    assert stored == nested
    assert raw.deep_payloads(stored) == [b"a", b"b", b"c", b"d", b"e"]


DAMAGED_INSIDE = {
    "wrong checksum": raw.entry(b"good") + raw.entry(b"bad", crc=7),
    "cut": raw.entry(b"good") + raw.entry(b"cut short")[:-1],
    "magic 2": raw.entry(b"bad", 2),
    "deeper": raw.wrapper(raw.entry(b"bad", crc=7), raw.SNAPPY),
}


@pytest.mark.parametrize("codec", [raw.GZIP, raw.SNAPPY])
@pytest.mark.parametrize("inner", DAMAGED_INSIDE.values(), ids=DAMAGED_INSIDE)
def test_damage_inside_a_compressed_set(
    broker: Broker, client: raw.RawClient, topic: str, inner: bytes, codec: int
) -> None:
    """The messages inside a wrapper are checked as well: the connection closes and nothing is stored."""
    with broker.connect() as producer:
        producer.produce(topic, 0, raw.wrapper(inner, codec))
        assert producer.is_closed()
    assert client.log_end(topic, 0) == 0


# --- vectors of 0.7's unit tests ---


@pytest.fixture(scope="module")
def small_segments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose topics roll after a few messages, with retention looking all the time."""
    settings = {
        "topic.log.file.size": f"{VECTOR}:100,{ROLLED}:130,{KEPT}:130",
        "topic.log.retention.size": f"{KEPT}:710",
        "log.cleanup.interval.mins": 0.001,
        "topic.partition.count.map": "two:2",
    }
    with Broker(tmp_path_factory.mktemp("small"), settings=settings) as running:
        yield running


def append_one_by_one(client: raw.RawClient, topic: str, message: bytes, count: int) -> None:
    """Appends messages in requests of their own, each acknowledged before the next."""
    for index in range(count):
        appended = client.produce_ack(topic, 0, message)
        assert appended == (0, 0, index * len(message), (index + 1) * len(message))
    client.wait_visible(topic, 0, count * len(message))


def test_offsets_before_a_time(small_segments: Broker) -> None:
    """20 messages of 12 bytes with a limit of 100: segments at 0, 108, 216; the answers are those of LogOffsetTest."""
    with small_segments.connect() as client:
        append_one_by_one(client, VECTOR, raw.entry(b"ab"), 20)
        assert list(small_segments.segments(VECTOR, 0)) == [0, 108, 216]
        answer = "00000026 0000 00000004 00000000000000f0 00000000000000d8 000000000000006c 0000000000000000"
        exchange(client, raw.offsets_frame(VECTOR, 0, raw.LATEST, 10).hex(), answer)
        assert client.offsets(VECTOR, 0, raw.LATEST, 2) == [240, 216]
        assert client.offsets(VECTOR, 0, raw.EARLIEST, 10) == [0]
        time.sleep(0.03)
        assert client.offsets(VECTOR, 0, int(time.time() * 1000) - 10, 10) == [216, 108, 0]
        assert client.offsets(VECTOR, 0, int(time.time() * 1000) - 3_600_000, 10) == []


def test_fetch_never_crosses_a_segment_border(small_segments: Broker) -> None:
    """An answer ends with its segment, and the next offset continues in the following one."""
    with small_segments.connect() as client:
        message = raw.entry(b"ab")
        topic = VECTOR
        if client.log_end(topic, 0) == 0:
            append_one_by_one(client, topic, message, 20)
        assert len(client.fetch_ok(topic, 0, 0)) == 108
        assert len(client.fetch_ok(topic, 0, 96)) == 12
        assert len(client.fetch_ok(topic, 0, 108)) == 108
        assert len(client.fetch_ok(topic, 0, 216)) == 24
        assert client.read_all(topic, 0) == message * 20


def test_roll(small_segments: Broker) -> None:
    """1000 messages of 14 bytes with a limit of 130 give exactly 100 segments of 10."""
    with small_segments.connect() as client:
        append_one_by_one(client, ROLLED, raw.entry(b"abcd"), 1000)
    segments = small_segments.segments(ROLLED, 0)
    assert list(segments) == list(range(0, 14_000, 140))
    assert {path.stat().st_size for path in segments.values()} == {140}
    assert {len(path.name) for path in segments.values()} == {len("00000000000000000000.kafka")}


def test_retention_by_size(small_segments: Broker) -> None:
    """1000 messages of 14 bytes in segments of 140 with a limit of 710: 6 segments stay, reads below are refused."""
    with small_segments.connect() as client:
        for _ in range(1000):
            assert client.produce_ack(KEPT, 0, raw.entry(b"abcd")).error == 0
        client.wait_visible(KEPT, 0, 14_000)
        wait_until("94 segments deleted", lambda: client.offsets(KEPT, 0, raw.EARLIEST, 1) == [13_160])
        wait_until("files are gone", lambda: len(small_segments.segments(KEPT, 0)) == 6)
        assert client.read_all(KEPT, 0, 13_160) == raw.entry(b"abcd") * 60
        assert client.fetch(KEPT, 0, 13_146).error == 1
        assert client.fetch(KEPT, 0, 0).error == 1
        assert client.offsets(KEPT, 0, raw.LATEST, 100)[-1] == 13_160


def test_partition_count_of_one_topic(small_segments: Broker) -> None:
    """topic.partition.count.map two:2 allows partitions 0 and 1 of that topic, and only 0 of others."""
    with small_segments.connect() as client:
        client.produce("two", 1, HELLO)
        assert client.log_end("two", 1) == len(HELLO)
        assert client.fetch("two", 2, 0).error == 3
        assert client.fetch("another", 1, 0).error == 3
        client.produce("two", 2, HELLO)
        assert client.is_closed()
    assert not small_segments.has_directory("two", 2)


# --- reading ---


def test_three_bad_parts_of_a_multifetch(client: raw.RawClient, topic: str) -> None:
    """The outer code is 0, each part has its own; one bad part does not touch the others."""
    client.produce(topic, 0, HELLO)
    client.wait_visible(topic, 0, 15)
    size = 1 << 20
    bad = [(topic, 0, -1, size), (topic, 0, 16, size), (topic, -1, 0, size)]
    assert client.multifetch(bad) == [(1, b""), (1, b""), (3, b"")]
    mixed = [(topic, 9, 0, size), (topic, 0, 0, size), ("", 0, 0, size), (topic, 0, 0, -5), (topic, 3, 0, size)]
    assert client.multifetch(mixed) == [(3, b""), (0, HELLO), (-1, b""), (4, b""), (0, b"")]


def test_reading_creates_nothing(broker: Broker, client: raw.RawClient, topic: str) -> None:
    """FETCH, MULTIFETCH, OFFSETS and METADATA of a topic nobody wrote are answered, and no directory appears."""
    assert client.fetch(topic, 0, 0) == (0, b"")
    assert client.multifetch([(topic, 0, 0, 100), (topic, 1, 7, 100)]) == [(0, b""), (0, b"")]
    assert client.offsets(topic, 0, raw.LATEST) == [0]
    assert client.offsets(topic, 0, raw.EARLIEST) == [0]
    assert client.offsets(topic, 0, int(time.time() * 1000)) == []
    assert client.metadata([topic]).topics[topic].partitions == {}
    assert not list(broker.log_dirs[0].glob(f"{topic}*"))


def test_clean_stop_and_restart_keep_everything(start_broker: Callable[..., Broker]) -> None:
    """After SIGTERM the exit code is 0, the same bytes are served again, and appends continue behind them."""
    broker = start_broker()
    with broker.connect() as client:
        client.produce("kept", 0, HELLO * 100)
        client.log_end("kept", 0)
    assert broker.stop() == 0
    assert broker.stored_bytes("kept", 0) == HELLO * 100
    broker.start()
    with broker.connect() as client:
        assert client.offsets("kept", 0) == [1500, 0]
        assert client.produce_ack("kept", 0, HELLO, raw.FLUSHED) == (0, 0, 1500, 1515)
        assert client.read_all("kept", 0) == HELLO * 101
