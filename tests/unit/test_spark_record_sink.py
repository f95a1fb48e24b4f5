"""Rows to topics of record batches, over brokers that are made up: which topics those are, where each row goes, and
that a batch is stored once however often it has to be sent."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastlog import record_batches
from fastlog.client.addresses import Address
from fastlog.client.kafka_connection import NotSpokenError
from fastlog.client.record_requests import Appended
from fastlog.client.record_topics import KnownTopic
from fastlog.client.records import RecordsError
from fastlog.errors import ConfigError, DeliveryError, MessageTooLargeError, TransportError
from fastlog.spark import record_packing
from fastlog.spark.record_packing import RecordRows, SinkTopic, SinkTopics
from fastlog.spark.sink_options import parse_sink_options

pa = pytest.importorskip("pyarrow")

ID = bytes(range(16))


class Backoff:
    """Lets so many failures pass."""

    most = 3

    def __init__(self, seconds: float) -> None:
        self.failures = 0

    def failed(self, error: Exception) -> None:
        self.failures += 1
        if self.failures > self.most:
            raise error


@pytest.fixture(autouse=True)
def backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_packing, "BoundedBackoff", Backoff)


# -- which topics ------------------------------------------------------------------------------------------------------


class MadeUp:
    """The brokers of a list, by their ports: what each says of the topic ``t``."""

    def __init__(self) -> None:
        self.records: dict[int, Any] = {}
        """A code and partitions, an error, or a list of these in turn."""
        self.of_messages: dict[int, int | None] = {}
        """The id of a broker, None for one that speaks plain 0.7; below 0: it has the topic as one of messages."""
        self.created: list[tuple[int, str]] = []
        self.create_error: Exception | None = None
        self.closed = 0
        self.largest = "1048588"

    def broker(self, addresses: list[Address], **_: Any) -> Any:
        port = addresses[0].port

        def known_topics(names: list[str]) -> dict[str, KnownTopic]:
            found = self.records[port]
            if isinstance(found, list):
                found = found.pop(0) if len(found) > 1 else found[0]
            if isinstance(found, Exception):
                raise found
            code, partitions = found
            return {"t": KnownTopic(code, ID, partitions, False)}

        def create(topic: str, partitions: int, settings: dict[str, str]) -> None:
            assert (partitions, settings) == (-1, {})
            self.created.append((port, topic))
            if self.create_error is not None:
                raise self.create_error

        def close() -> None:
            self.closed += 1

        settings = {"max.message.bytes": SimpleNamespace(value=self.largest)}
        return SimpleNamespace(known_topics=known_topics, create=create, close=close, settings=lambda topic: settings)

    def messages(self, addresses: list[Address], seconds: float) -> Any:
        found = self.of_messages.get(addresses[0].port, 0)

        def metadata_or_none(topics: tuple[str, ...]) -> Any:
            if found is None:
                return None
            item = SimpleNamespace(name="t", partitions=[1] if found < 0 else [])
            return SimpleNamespace(broker_id=abs(found), topics=[item])

        return SimpleNamespace(metadata_or_none=metadata_or_none)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    made = MadeUp()
    monkeypatch.setattr(record_packing, "RecordBroker", made.broker)
    monkeypatch.setattr(record_packing, "Broker", made.messages)
    return made


def topics_of(*ports: int, **given: str) -> SinkTopics:
    named = ",".join(f"h:{port}" for port in ports)
    return SinkTopics(parse_sink_options({"brokers": named, "topic": "t", **given}))


NONE, TWO = (3, ()), (0, (0, 1))


def test_a_topic_is_what_its_broker_says(brokers: MadeUp) -> None:
    """Asked once; the id of a broker is that of its answer, 0 of one that tells none."""
    brokers.records = {1: NONE, 2: TWO}
    brokers.of_messages = {2: 7}
    topics = topics_of(1, 2)
    found = topics.find("t")
    assert found is not None and (found.name, found.broker, found.partitions) == ("t", 7, (0, 1))
    brokers.records = {}
    assert topics.find("t") is found
    topics.close()
    assert brokers.closed == 2
    brokers.records, brokers.of_messages = {1: TWO}, {1: None}
    plain = topics_of(1).find("t")
    assert plain is not None and plain.broker == 0


def test_topics_of_messages_are_none(brokers: MadeUp) -> None:
    """Though clients of today see them; nor are those of brokers that speak 0.7 alone, or that nobody has."""
    brokers.records = {1: TWO, 2: NotSpokenError("no")}
    brokers.of_messages = {1: -5}
    for given in ({}, {"schema": "kafka"}):
        assert topics_of(1, 2, **given).find("t") is None
    brokers.records = {1: NONE}
    brokers.of_messages = {}
    assert topics_of(1).find("t") is None
    assert brokers.created == []


def test_a_topic_that_two_brokers_have(brokers: MadeUp) -> None:
    brokers.records = {1: TWO, 2: TWO}
    with pytest.raises(ConfigError, match="several have a topic of record batches 't': name one of them"):
        topics_of(1, 2).find("t")


@pytest.mark.parametrize("error", [None, RecordsError("exists", 36)])
def test_a_topic_is_made_where_the_schema_says_so(brokers: MadeUp, error: Exception | None) -> None:
    """Another task may be quicker; on several brokers nobody knows where."""
    brokers.records = {1: [NONE, TWO]}
    brokers.create_error = error
    found = topics_of(1, schema="kafka").find("t")
    assert found is not None and found.partitions == (0, 1)
    assert brokers.created == [(1, "t")]
    brokers.records = {1: NONE, 2: NONE}
    with pytest.raises(ConfigError, match="no broker has the topic 't': make it on one of them, or name only that"):
        topics_of(1, 2, schema="kafka").find("t")


def test_a_topic_that_was_made_and_is_not_shown_yet_is_waited_for(brokers: MadeUp) -> None:
    """With pauses, and not for ever."""
    brokers.records = {1: [NONE, NONE, NONE, NONE, TWO]}
    found = topics_of(1, schema="kafka").find("t")
    assert found is not None and found.partitions == (0, 1)
    brokers.records = {1: NONE}
    with pytest.raises(TransportError, match="the topic 't' was made, and is not shown yet"):
        topics_of(1, schema="kafka").find("t")


def test_a_topic_that_cannot_be_made(brokers: MadeUp) -> None:
    brokers.records = {1: NONE}
    brokers.create_error = RecordsError("not allowed", 29)
    with pytest.raises(RecordsError, match="not allowed"):
        topics_of(1, schema="kafka").find("t")


@pytest.mark.parametrize("passing", [TransportError("away"), (5, ()), (15, ())])
def test_a_broker_that_is_away_for_a_moment(brokers: MadeUp, passing: Any) -> None:
    """It is not taken for one without the topic, which would be made a second time."""
    brokers.records = {1: [passing, passing, TWO]}
    assert topics_of(1, schema="kafka").find("t") is not None
    assert brokers.created == []
    brokers.records = {1: passing}
    with pytest.raises(TransportError):
        topics_of(1).find("t")


@pytest.mark.parametrize(
    ("largest", "batch_bytes", "most"),
    [
        ("1048588", "1MiB", (1048588 - 61) * 6 // 7),
        ("1048588", "100000", 100000),
        ("1000", "1MiB", 1024),
        ("", "1MiB", 1024),
    ],
)
def test_the_bytes_of_a_batch(brokers: MadeUp, largest: str, batch_bytes: str, most: int) -> None:
    """What the topic takes, less what a codec may add; or what the user says, if that is less."""
    brokers.records = {1: TWO}
    brokers.largest = largest
    found = topics_of(1, **{"batch.bytes": batch_bytes}).find("t")
    assert found is not None and found.most_bytes == most


# -- rows --------------------------------------------------------------------------------------------------------------


class Log:
    """A broker that keeps batches; ``answers`` come first, each an error, a code, or ``lost``: stored, and not said."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.batches: dict[int, list[bytes]] = {}
        self.sent: list[bytes] = []
        self.flushed: list[bool] = []
        self.producers: list[Any] = [SimpleNamespace(id=77, epoch=3)]
        self.sequences: dict[int, int] = {}

    def new_producer(self) -> Any:
        found = self.producers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def append(self, wanted: dict[tuple[str, int], bytes], *, is_flushed: bool) -> dict[tuple[str, int], Appended]:
        ((place, data),) = wanted.items()
        self.sent.append(data)
        self.flushed.append(is_flushed)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return {place: Appended(answer, -1)}
        ((header, _),) = record_batches.batches(data)
        if header.base_sequence < self.sequences.get(place[1], 0):
            return {place: Appended(46, -1)}
        self.sequences[place[1]] = header.base_sequence + header.record_count
        offset = sum(len(list(record_batches.records(one))) for one in self.batches.get(place[1], []))
        self.batches.setdefault(place[1], []).append(data)
        if answer == "lost":
            raise TransportError("the answer is lost")
        return {place: Appended(0, offset)}

    def values(self) -> dict[int, list[bytes | None]]:
        return {
            number: [record.value for data in some for record in record_batches.records(data)]
            for number, some in self.batches.items()
        }


def topic_of(log: Log, partitions: tuple[int, ...] = (0, 1, 2), most: int = 2**20) -> SinkTopic:
    given: Any = log
    return SinkTopic("t", given, 5, partitions, most, turn=0)


def rows_of(**given: str) -> RecordRows:
    return RecordRows(parse_sink_options({"brokers": "h:1", "topic": "t", **given}))


def values(count: int, first: int = 0) -> Any:
    return pa.array([b"%d" % (first + number) for number in range(count)], pa.binary())


def test_rows_without_a_key_go_on_from_one_partition_to_the_next() -> None:
    """With each batch of Arrow, all of it to one."""
    log = Log()
    rows, topic = rows_of(), topic_of(log)
    for number in range(4):
        assert rows.send(topic, {"value": values(2, 2 * number)}) == 2
    assert log.values() == {1: [b"0", b"1", b"6", b"7"], 2: [b"2", b"3"], 0: [b"4", b"5"]}
    assert {place: tuple(found) for place, found in rows.delivered.items()} == {
        ("t", 5, 1): (0, 4, 4), ("t", 5, 2): (0, 2, 2), ("t", 5, 0): (0, 2, 2),
    }  # fmt: skip
    assert log.flushed == [True] * 4


def test_partitions_by_hand_go_before_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order; a row with neither goes where those without a key do."""
    monkeypatch.setattr(record_packing, "hash_keys", lambda keys: np.array([4, -1, 1, 5, -1]))
    log = Log()
    keys = pa.array([b"a", None, b"b", b"a", None], pa.binary())
    by_hand = pa.array([None, 0, 2, -1, None], pa.int32())
    broker = pa.array([None, 5, -1, 5, None], pa.int32())
    columns = {"value": values(5), "key": keys, "partition": by_hand, "broker": broker}
    rows_of(acks="appended").send(topic_of(log, (0, 2, 7)), columns)
    assert log.values() == {0: [b"1"], 2: [b"0", b"2", b"4"], 7: [b"3"]}
    assert log.flushed == [False] * 3


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"partition": [0, 3, 9]}, "column partition: 't' has 3 partitions, and not 3"),
        ({"partition": [0, 1, 2], "broker": [5, 5, 0]}, "column broker: the topic 't' is one of broker 5 alone"),
    ],
)
def test_rows_that_have_no_place(columns: dict[str, list[int]], said: str) -> None:
    """Nothing of the batch is sent."""
    log = Log()
    given = {name: pa.array(numbers, pa.int32()) for name, numbers in columns.items()}
    with pytest.raises(ConfigError, match=said):
        rows_of().send(topic_of(log), {"value": values(3), **given})
    assert log.sent == []


def test_batches_have_their_producer_and_their_turn() -> None:
    """Of each partition the sequence goes on; a batch has as many records as may be in one."""
    log = Log()
    rows, topic = rows_of(), topic_of(log, (0,))
    rows._options = replace(rows._options, batch_messages=2)
    rows.send(topic, {"value": values(5)})
    rows.send(topic, {"value": values(1, 5)})
    headers = [header for data in log.batches[0] for header, _ in record_batches.batches(data)]
    told = [(item.base_sequence, item.record_count, item.last_offset_delta, item.base_offset) for item in headers]
    assert told == [(0, 2, 1, 0), (2, 2, 1, 0), (4, 1, 0, 0), (5, 1, 0, 0)]
    assert {(item.producer_id, item.producer_epoch, item.leader_epoch) for item in headers} == {(77, 3, -1)}
    assert log.values() == {0: [b"%d" % number for number in range(6)]}


def test_a_sequence_begins_anew_behind_the_largest() -> None:
    log = Log()
    rows, topic = rows_of(), topic_of(log, (0,))
    rows._sequences["t", 0] = 2**31 - 2
    rows.send(topic, {"value": values(2)})
    assert rows._sequences["t", 0] == 0
    rows._sequences["t", 0] = 2**31 - 1
    log.sequences.clear()
    rows.send(topic, {"value": values(2)})
    assert rows._sequences["t", 0] == 1


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_batch_is_stored_once_however_often_it_is_sent(codec: str) -> None:
    """It is the same each time: its answer may have been lost."""
    log = Log(TransportError("away"), 6, "lost")
    rows = rows_of(compression=codec)
    rows.send(topic_of(log, (0,)), {"value": values(3)})
    rows.send(topic_of(log, (0,)), {"value": values(2, 3)})
    assert len(log.sent) == 5
    assert len(set(log.sent[:4])) == 1
    assert log.values() == {0: [b"%d" % number for number in range(5)]}
    (header, _), *_ = record_batches.batches(log.batches[0][0])
    assert header.codec == (1 if codec == "gzip" else 0)
    assert tuple(rows.delivered["t", 5, 0]) == (3, 5, 5), "where a duplicate lies nobody has said"


@pytest.mark.parametrize(("code", "again"), [(56, True), (74, True), (3, True), (29, False), (87, False)])
def test_what_a_broker_refuses(code: int, again: bool) -> None:
    """Where another try may help it is made, and in the end said how many were not delivered."""
    log = Log(code)
    rows = rows_of()
    if again:
        rows.send(topic_of(log, (0,)), {"value": values(2)})
        assert log.values() == {0: [b"0", b"1"]}
        log.answers = [code] * 4
    with pytest.raises(DeliveryError, match="2 records were not delivered"):
        rows.send(topic_of(log, (0,)), {"value": values(2, 2)})
    assert len(log.sent) == (6 if again else 1)


def test_what_is_too_large() -> None:
    """The broker says so: another try would be refused as well."""
    log = Log(10)
    with pytest.raises(MessageTooLargeError):
        rows_of().send(topic_of(log, (0,)), {"value": values(1)})
    assert len(log.sent) == 1


def test_a_producer_is_asked_for_until_there_is_one() -> None:
    """Once for each broker; a refusal ends it."""
    log = Log()
    log.producers = [TransportError("away"), RecordsError("begins", 15), SimpleNamespace(id=9, epoch=0)]
    rows = rows_of()
    rows.send(topic_of(log, (0,)), {"value": values(1)})
    rows.send(topic_of(log, (0,)), {"value": values(1, 1)})
    assert rows._producers == {5: (9, 0)}
    log.producers = [RecordsError("no", 31)]
    with pytest.raises(RecordsError, match="no"):
        rows_of().send(topic_of(log, (0,)), {"value": values(1)})
