"""fastlog's own requests: acknowledged produce, held fetch, metadata, cut points, local read, topic creation."""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections.abc import Callable

import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.harness.timing import sooner_than

GOOD, OLD = raw.entry(b"good"), raw.entry(b"old!", 0)
BAD = raw.entry(b"bad!", crc=9)
ILLEGAL = ["", ".", "..", "a/b", "a\nb", "a" * 256, b"\xff"]


def in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# --- acknowledged produce ---


def test_appended_gives_the_place_in_the_log(client: raw.RawClient, topic: str) -> None:
    """Each acknowledgement says where its set starts and where the next one will."""
    assert client.produce_ack(topic, 2, GOOD) == (0, 2, 0, 14)
    assert client.produce_ack(topic, 2, OLD + GOOD) == (0, 2, 14, 41)
    assert client.produce_ack(topic, 2, b"") == (0, 2, 41, 41)
    assert client.log_end(topic, 2) == 41
    client.wait_visible(topic, 2, 41)
    assert client.read_all(topic, 2) == GOOD + OLD + GOOD


def test_flushed_means_visible(broker: Broker, client: raw.RawClient, topic: str) -> None:
    """When the acknowledgement arrives, a fetch on any connection gets the message."""
    with broker.connect() as reader:
        for number in range(20):
            assert client.produce_ack(topic, 0, GOOD, raw.FLUSHED).error == 0
            assert reader.offsets(topic, 0, raw.LATEST, 1) == [(number + 1) * len(GOOD)]
            assert reader.fetch_ok(topic, 0, number * len(GOOD)) == GOOD


def test_the_chosen_partition_is_named(client: raw.RawClient, topic: str) -> None:
    """Partition -1 comes back as the one that was drawn, and the set lies there."""
    ends = [0] * 4
    for _ in range(60):
        error, partition, base, end = client.produce_ack(topic, -1, GOOD)
        assert (error, base, end) == (0, ends[partition], ends[partition] + 14)
        ends[partition] = end
    assert min(ends) > 0


REFUSED = {
    "wrong checksum": (BAD, 0, 2),
    "good, then wrong checksum": (GOOD + BAD, 0, 2),
    "magic 2": (raw.entry(b"x", 2), 0, 2),
    "codec 3": (raw.entry(b"x", 1, 3), 0, 2),
    "no gzip": (raw.entry(b"x", 1, 1), 0, 2),
    "damage inside a wrapper": (raw.wrapper(GOOD + BAD, raw.SNAPPY), 0, 2),
    "size 0": (bytes(4), 0, 2),
    "payload above max.message.size": (raw.entry(bytes(1_000_001)), 0, 102),
    "partition 4": (GOOD, 4, 3),
    "partition -2": (GOOD, -2, 3),
}


@pytest.mark.parametrize(("messages", "partition", "error"), REFUSED.values(), ids=REFUSED)
def test_a_refused_set_leaves_nothing(
    client: raw.RawClient, topic: str, messages: bytes, partition: int, error: int
) -> None:
    """The answer has the error and -1 for both offsets; the connection stays open and the log as it was."""
    answer = client.produce_ack(topic, partition, messages)
    assert (answer.error, answer.base_offset, answer.next_offset) == (error, -1, -1)
    assert client.log_end(topic, 0) == 0
    assert client.produce_ack(topic, 0, GOOD) == (0, 0, 0, 14)


@pytest.mark.parametrize("producer", [(1, -1, -1), (-1, 0, -1), (-1, -1, 0), (0, 0, 0)])
def test_fields_without_a_meaning_yet_are_refused(
    client: raw.RawClient, topic: str, producer: tuple[int, int, int]
) -> None:
    """A producer id, epoch or sequence is answered with error 105, and nothing is stored."""
    assert client.produce_ack(topic, 0, GOOD, producer=producer).error == 105
    assert client.log_end(topic, 0) == 0


@pytest.mark.parametrize("acks", [0, 3, -1])
def test_unknown_acks_are_refused(client: raw.RawClient, topic: str, acks: int) -> None:
    """Only "appended" and "flushed" can be asked for."""
    assert client.produce_ack(topic, 0, GOOD, acks).error == 107
    assert client.log_end(topic, 0) == 0


def test_acknowledgements_keep_the_order_of_requests(client: raw.RawClient, topic: str) -> None:
    """Pipelined over partitions, kinds of acknowledgement and errors, answers come in order with their ids."""
    expected = []
    stream = []
    ends = [0] * 4
    for number in range(400):
        partition = number % 4
        if number % 7 == 3:
            body = raw.produce_ack_body(topic, partition, BAD)
            expected.append((number, 2, -1, -1))
        else:
            body = raw.produce_ack_body(topic, partition, GOOD, raw.FLUSHED if number % 50 == 0 else raw.APPENDED)
            expected.append((number, 0, ends[partition], ends[partition] + 14))
            ends[partition] += 14
        stream.append(raw.own_frame(raw.PRODUCE_ACK, body, correlation=number))
    client.send_raw(b"".join(stream))
    for wanted in expected:
        correlation, answer = client.recv_own()
        assert (correlation, answer.error, *struct.unpack(">iqq", answer.body)[1:]) == wanted


# --- versions and names ---

BODIES: dict[int, Callable[[str | bytes], bytes]] = {
    raw.PRODUCE_ACK: lambda name: raw.produce_ack_body(name, 0, GOOD),
    raw.HELD_FETCH: lambda name: raw.held_fetch_body(name, 0, 0, 100, 0, 0),
    raw.CUT_POINTS: lambda name: raw.place(name, 0) + struct.pack(">qqqi", 0, 10, 10, 10),
    raw.LOCAL_READ: lambda name: raw.place(name, 0),
    raw.CREATE_TOPIC: lambda name: raw.place(name, 0),
    raw.DELETE_TOPIC: raw.text,
}


@pytest.mark.parametrize("kind", [*BODIES, raw.METADATA])
@pytest.mark.parametrize("version", [0, 3, -1, 32767])
def test_an_unknown_version_is_said(client: raw.RawClient, topic: str, kind: int, version: int) -> None:
    """Error 104 under the right correlation id; the connection goes on."""
    body = BODIES[kind](topic) if kind in BODIES else raw.metadata_body([topic])
    assert client.ask_own(kind, body, version).error == 104
    if kind != raw.METADATA:
        assert client.ask_own(kind, body, 2).error == 104
    assert client.metadata([topic]).topics[topic].partitions == {}


@pytest.mark.parametrize("name", ILLEGAL, ids=ascii)
@pytest.mark.parametrize("kind", BODIES)
def test_an_illegal_topic_name_is_said(client: raw.RawClient, kind: int, name: str | bytes) -> None:
    """Error 100; the connection goes on."""
    assert client.ask_own(kind, BODIES[kind](name)).error == 100


@pytest.mark.parametrize("kind", [1007, 1100, 32767])
def test_an_unknown_own_request_closes(broker: Broker, kind: int) -> None:
    """An id above the highest one is no request of this broker; metadata says which that is."""
    with broker.connect() as client:
        assert client.metadata([]).own_ids == (1000, 1006)
        client.send_raw(raw.own_frame(kind, b""))
        assert client.is_closed()


# --- held fetch ---


def test_a_held_fetch_answers_at_once_when_there_is_something(client: raw.RawClient, topic: str) -> None:
    """Bytes that are visible already come without waiting, with watermark and log start; the size limit holds."""
    assert client.produce_ack(topic, 0, GOOD * 3, raw.FLUSHED).error == 0
    with sooner_than(15):
        assert client.held_fetch(topic, 0, 0, max_wait_ms=20_000) == (0, 42, 0, GOOD * 3)
        assert client.held_fetch(topic, 0, 14, 20, max_wait_ms=20_000) == (0, 42, 0, (GOOD * 2)[:20])


def test_a_held_fetch_is_a_reason_to_flush(broker: Broker, client: raw.RawClient, topic: str) -> None:
    """A message arrives at a consumer that waits without waiting for the flush interval, a second each time."""
    client.produce_ack(topic, 0, GOOD, raw.FLUSHED)
    with broker.connect() as consumer, sooner_than(15):
        for number in range(1, 31):
            offset = number * len(GOOD)
            body = raw.held_fetch_body(topic, 0, offset, 1000, 20_000, 1)
            consumer.send_raw(raw.own_frame(raw.HELD_FETCH, body, correlation=number))
            time.sleep(0.02)
            client.produce(topic, 0, GOOD)
            correlation, answer = consumer.recv_own()
            assert correlation == number
            assert raw.decode_held(answer) == (0, offset + len(GOOD), 0, GOOD)


def test_a_held_fetch_ends_after_its_wait(client: raw.RawClient, topic: str) -> None:
    """Nothing came: an empty answer, not before the wait is over."""
    client.produce_ack(topic, 0, GOOD, raw.FLUSHED)
    for wait_ms in (0, 30, 200):
        started = time.monotonic()
        assert client.held_fetch(topic, 0, 14, max_wait_ms=wait_ms) == (0, 14, 0, b"")
        assert time.monotonic() - started >= wait_ms / 1000 - 0.005


def test_a_held_fetch_waits_for_its_least_bytes(broker: Broker, client: raw.RawClient, topic: str) -> None:
    """Less than min_bytes does not end the wait, the message that completes them does."""
    client.produce_ack(topic, 0, GOOD, raw.FLUSHED)
    with broker.connect() as consumer:
        body = raw.held_fetch_body(topic, 0, 0, 1000, 20_000, 3 * len(GOOD))
        consumer.send_raw(raw.own_frame(raw.HELD_FETCH, body))
        client.produce_ack(topic, 0, GOOD, raw.FLUSHED)
        assert not consumer.is_closed(within=0.05)
        client.produce_ack(topic, 0, GOOD, raw.FLUSHED)
        assert raw.decode_held(consumer.recv_own()[1]) == (0, 42, 0, GOOD * 3)


def test_a_held_fetch_waits_for_a_topic_nobody_wrote(broker: Broker, client: raw.RawClient, topic: str) -> None:
    """It is woken by the first message; waiting alone creates nothing."""
    with broker.connect() as consumer:
        consumer.send_raw(raw.own_frame(raw.HELD_FETCH, raw.held_fetch_body(topic, 1, 0, 1000, 20_000, 1)))
        assert not consumer.is_closed(within=0.05)
        assert not broker.has_directory(topic, 1)
        client.produce(topic, 1, GOOD)
        assert raw.decode_held(consumer.recv_own()[1]) == (0, 14, 0, GOOD)


def test_errors_of_a_held_fetch_come_at_once(client: raw.RawClient, topic: str) -> None:
    """Out of range, wrong partition, negative size, inside a message: no wait."""
    client.produce_ack(topic, 0, GOOD, raw.FLUSHED)
    with sooner_than(15):
        for partition, offset, size, error in [(0, 15, 9, 1), (0, -1, 9, 1), (4, 0, 9, 3), (0, 0, -1, 4), (0, 3, 9, 2)]:
            assert client.held_fetch(topic, partition, offset, size, max_wait_ms=20_000).error == error


def test_many_consumers_wait_for_one_message(broker: Broker, client: raw.RawClient, topic: str) -> None:
    """All of them get it, on every processor; requests behind a held fetch are answered after it."""
    client.produce_ack(topic, 0, GOOD, raw.FLUSHED)
    consumers = [broker.connect() for _ in range(20)]
    try:
        for number, consumer in enumerate(consumers):
            held = raw.own_frame(raw.HELD_FETCH, raw.held_fetch_body(topic, 0, 14, 1000, 20_000, 1), correlation=number)
            consumer.send_raw(held + raw.offsets_frame(topic, 0, -1, 1))
        assert not consumers[0].is_closed(within=0.05)
        client.produce(topic, 0, OLD)
        for number, consumer in enumerate(consumers):
            correlation, answer = consumer.recv_own()
            assert (correlation, raw.decode_held(answer)) == (number, (0, 27, 0, OLD))
            assert raw.decode_offsets(consumer.recv_answer().body) == [27]
    finally:
        for consumer in consumers:
            consumer.close()


def test_a_consumer_that_leaves_while_it_waits(broker: Broker, client: raw.RawClient, topic: str) -> None:
    """Its wait ends with the connection, and the others are served as before."""
    client.produce_ack(topic, 0, GOOD, raw.FLUSHED)
    for _ in range(20):
        with broker.connect() as consumer:
            consumer.send_raw(raw.own_frame(raw.HELD_FETCH, raw.held_fetch_body(topic, 0, 14, 1000, 20_000, 1)))
    assert client.produce_ack(topic, 0, GOOD, raw.FLUSHED) == (0, 0, 14, 28)
    assert client.held_fetch(topic, 0, 14) == (0, 28, 0, GOOD)


# --- metadata ---


def test_metadata_of_the_broker(broker: Broker, client: raw.RawClient) -> None:
    """It names itself as clients should reach it, and its limits."""
    found = client.metadata([])
    assert (found.broker_id, found.host, found.port) == (0, "127.0.0.1", broker.port)
    assert (found.max_message_bytes, found.max_request_bytes, found.max_wait_ms) == (1_000_000, 100 << 20, 30_000)
    assert found.topics == {}


def test_version_2_of_metadata_tells_when_a_log_was_made(client: raw.RawClient, topic: str) -> None:
    """The answer to version 1 stays as it was."""
    before_ms = time.time_ns() // 1_000_000
    assert client.produce_ack(topic, 0, GOOD, raw.FLUSHED).error == 0
    first = client.ask_own(raw.METADATA, raw.metadata_body([topic]), 1).body
    second = client.ask_own(raw.METADATA, raw.metadata_body([topic]), 2).body
    assert second[:-8] == first
    assert before_ms <= int.from_bytes(second[-8:], "big") <= time.time_ns() // 1_000_000


def test_metadata_of_topics(client: raw.RawClient, topic: str) -> None:
    """Partitions that exist, each with its positions; all topics when none is named; an error for an illegal name."""
    client.produce_ack(topic, 0, GOOD, raw.FLUSHED)
    client.produce_ack(topic, 3, GOOD * 2, raw.FLUSHED)
    expected = raw.TopicState(
        topic, 0, 4, {0: raw.PartitionState(0, 0, 0, 14, 14), 3: raw.PartitionState(3, 0, 0, 28, 28)}
    )
    assert client.metadata([topic]).topics[topic] == expected
    assert client.metadata().topics[topic] == expected
    several = client.metadata(["a/b", topic, "nobody-wrote-it"]).topics
    assert several["a/b"].error == 100
    assert several[topic] == expected
    assert several["nobody-wrote-it"] == ("nobody-wrote-it", 0, 4, {})
    assert "nobody-wrote-it" not in client.metadata().topics


def test_metadata_sees_what_is_not_flushed_yet(start_broker: Callable[..., Broker]) -> None:
    """Log end runs ahead of the high watermark until the flush; OFFSETS stays at the flushed end."""
    broker = start_broker(settings={"log.default.flush.interval.ms": 60_000, "log.flush.interval": 1_000_000})
    with broker.connect() as client:
        client.produce("t", 0, GOOD * 10)
        state = client.metadata(["t"]).topics["t"].partitions[0]
        assert (state.log_start, state.high_watermark, state.log_end) == (0, 0, 140)
        assert client.offsets("t", 0) == [0]
        client.wait_visible("t", 0, 140)
        assert client.metadata(["t"]).topics["t"].partitions[0].high_watermark == 140


@pytest.mark.parametrize("kind", ["fetch", "multifetch", "held fetch"])
def test_a_reader_near_the_watermark_has_the_next_flush_begin(start_broker: Callable[..., Broker], kind: str) -> None:
    """It does not have to stand there first; one that is far behind asks for nothing."""
    broker = start_broker(settings={"log.default.flush.interval.ms": 3_600_000, "log.flush.interval": 1_000_000})

    with broker.connect() as client:

        def read(offset: int, max_bytes: int) -> None:
            if kind == "fetch":
                assert client.fetch("t", 0, offset, max_bytes).error == 0
            elif kind == "multifetch":
                client.multifetch([("t", 0, offset, max_bytes)])
            else:
                client.held_fetch("t", 0, offset, max_bytes)

        def watermark() -> int:
            return client.metadata(["t"]).topics["t"].partitions[0].high_watermark

        client.produce_ack("t", 0, GOOD * 1000, raw.FLUSHED)
        client.produce_ack("t", 0, GOOD)
        read(0, 140)
        client.produce_ack("other", 0, GOOD, raw.FLUSHED)  # the flusher has looked at everything that is due
        assert watermark() == 14_000
        read(14_000 - 10 * 140, 140)
        wait_until("what was appended is flushed", lambda: watermark() == 14_014)


# --- cut points, local read, create ---


def test_cut_points_are_message_boundaries(client: raw.RawClient, topic: str) -> None:
    """Ascending, each the start of a message, the first one not before the start, none beyond the end."""
    messages = [raw.entry(b"x" * (number * 37 % 200), number & 1) for number in range(500)]
    client.produce_ack(topic, 0, b"".join(messages), raw.FLUSHED)
    boundaries = [0]
    for message in messages:
        boundaries.append(boundaries[-1] + len(message))
    end = boundaries[-1]
    for start, step in [(0, 1000), (1, 1000), (boundaries[7], 5000), (end - 100, 10), (0, 10 * end)]:
        error, points = client.cut_points(topic, 0, start, end, step)
        assert error == 0
        assert points == sorted(set(points))
        assert set(points) <= set(boundaries)
        assert points[0] == next(place for place in boundaries if place >= start)
        gaps = [after - before for before, after in itertools.pairwise(points)]
        assert all(gap >= step for gap in gaps[:-1])
        assert all(gap <= step + 210 for gap in gaps)
    assert len(client.cut_points(topic, 0, 0, end, 100, 5)[1]) == 5


def test_local_read_names_the_files(broker: Broker, client: raw.RawClient, topic: str) -> None:
    """Directory, format, positions and base offsets are those of the files on disk."""
    client.produce_ack(topic, 0, GOOD * 100, raw.FLUSHED)
    found = client.local_read(topic, 0)
    assert (found.error, found.format, found.log_start, found.high_watermark) == (0, "kafka-0.7", 0, 1400)
    assert found.directory == str(broker.partition_directory(topic, 0).resolve())
    assert found.bases == list(broker.segments(topic, 0)) == [0]
    assert client.local_read(topic, 9).error == 3


def test_create_topic(broker: Broker, client: raw.RawClient, topic: str) -> None:
    """All partitions exist afterwards, empty; asking again changes nothing."""
    assert client.create_topic(topic) == (0, 4)
    assert client.create_topic(topic) == (0, 4)
    assert all(broker.has_directory(topic, partition) for partition in range(4))
    states = client.metadata([topic]).topics[topic].partitions
    assert states == {partition: (partition, 0, 0, 0, 0) for partition in range(4)}
    assert client.produce_ack(topic, 3, GOOD, raw.FLUSHED) == (0, 3, 0, 14)


def test_create_topic_while_others_write_to_it(broker: Broker, topic: str) -> None:
    """Creation and first produces from many connections at once make each partition once and lose nothing."""
    errors: list[int] = []

    def work() -> None:
        with broker.connect() as one:
            errors.append(one.create_topic(topic)[0])
            errors.extend(one.produce_ack(topic, partition, GOOD).error for partition in range(4))

    threads = [in_background(work) for _ in range(8)]
    for thread in threads:
        thread.join(30)
    assert errors == [0] * 40
    with broker.connect() as client:
        assert [client.log_end(topic, partition) for partition in range(4)] == [8 * 14] * 4


def test_automatic_creation_can_be_switched_off(start_broker: Callable[..., Broker]) -> None:
    """Then a produce to a topic nobody created is refused, and one to a created topic is stored."""
    broker = start_broker(settings={"auto.create.topics": "false", "create.topic.requests": "true"})
    with broker.connect() as client:
        assert client.produce_ack("t", 0, GOOD).error == 3
        assert not broker.has_directory("t", 0)
        assert client.create_topic("t") == (0, 1)
        assert client.produce_ack("t", 0, GOOD).error == 0
