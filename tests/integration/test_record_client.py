"""The client of record batches that commands and jobs have, against a broker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fastlog import testing
from fastlog.client import kafka_fields, record_requests, record_topics
from fastlog.client.addresses import Address
from fastlog.client.kafka_connection import NotSpokenError, connected
from fastlog.client.records import EARLIEST, LATEST, RecordBroker, RecordsError, records_in
from fastlog.errors import InvalidFetchSizeError, ProtocolError, TransportError
from fastlog.record_batches import Record, build
from fastlog.testing import RunningBroker
from tests.harness.broker import KEPT, wait_until
from tests.harness.fake_broker import FakeBroker
from tests.harness.timing import PATIENCE


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with testing.broker(processors=1, properties=KEPT) as running:
        yield running


@pytest.fixture
def records(broker: RunningBroker) -> Iterator[RecordBroker]:
    with RecordBroker([Address(broker.host, broker.port)], timeout=PATIENCE) as made:
        yield made


def test_records_go_in_and_come_out(records: RecordBroker) -> None:
    records.create("client", 2, {})
    made = [Record(b"k", b"v%d" % number, 1000 + number) for number in range(4)]
    assert records.append({("client", 0): build(made)}, is_flushed=False)["client", 0] == (0, 0)
    assert records.append({("client", 0): build(made), ("client", 1): build(made[:1])}, is_flushed=True) == {
        ("client", 0): (0, 4),
        ("client", 1): (0, 0),
    }
    places = [("client", 0), ("client", 1)]
    assert records.offsets(places, EARLIEST) == dict.fromkeys(places, 0)
    assert records.offsets(places, LATEST) == {places[0]: 8, places[1]: 1}
    assert records.offsets(places, 1001) == {places[0]: 1, places[1]: -1}
    found = records.fetch({places[0]: 2, places[1]: 1})
    assert found[places[1]].batches == b"" and found[places[0]].high_watermark == 8
    taken_in = list(records_in(found[places[0]], 2))
    assert [following for following, _ in taken_in] == [4, 8]
    assert [record.offset for _, taken in taken_in for record in taken] == list(range(2, 8))
    with pytest.raises(InvalidFetchSizeError):
        list(records_in(found[places[0]]._replace(batches=found[places[0]].batches[:70]), 0))
    assert records.fetch({places[0]: 9})[places[0]].code == 1
    assert records.append({("none", 0): build(made)}, is_flushed=False)["none", 0].code == 3
    with pytest.raises(RecordsError, match="does not exist") as refused:
        records.offsets([("none", 0)], LATEST)
    assert refused.value.code == 3 and refused.value.topic == "none"
    records.add_partitions("client", 3)
    assert records.known_topics(["client"])["client"].partitions == (0, 1, 2)
    with pytest.raises(RecordsError):
        records.add_partitions("client", 3)
    assert records.sizes()["client", 2] == 0
    records.delete("client")
    assert records.known_topics(["client"])["client"].code == 3
    with pytest.raises(RecordsError):
        records.delete("client")


def test_a_fetch_waits_for_what_comes(broker: RunningBroker, records: RecordBroker) -> None:
    records.create("waits", 1, {})
    begun = time.monotonic()
    assert records.fetch({("waits", 0): 0}, max_wait=0.3)["waits", 0].batches == b""
    assert time.monotonic() - begun >= 0.3


def test_a_connection_that_broke_is_made_again(broker: RunningBroker) -> None:
    with testing.broker(processors=1) as own, RecordBroker([Address(own.host, own.port)], timeout=PATIENCE) as client:
        assert client.known_topics([]) == {}
        own.restart()
        wait_until("it is asked again", lambda: client.known_topics([]) == {})
        own.stop()
        with pytest.raises(TransportError):
            client.known_topics()
        own.start()
        assert client.known_topics([]) == {}


def test_a_broker_without_todays_protocol_is_told_apart() -> None:
    with (
        FakeBroker() as fake,
        RecordBroker([Address("127.0.0.1", fake.port)], timeout=PATIENCE) as client,
        pytest.raises(NotSpokenError, match="topics of record batches"),
    ):
        client.known_topics()


ASKED = [
    (record_topics.known_topics(None), record_topics.parse_known_topics),
    (record_requests.list_offsets([("cut", 0)], LATEST), record_requests.parse_offsets),
    (
        record_requests.fetch({("cut", 0): 0}, max_wait_ms=0, min_bytes=0, max_bytes=1000),
        record_requests.parse_fetched,
    ),
    (
        record_requests.produce({("cut", 0): build([Record(b"k", b"v", 1)])}, acks=1, timeout_ms=1000),
        record_requests.parse_appended,
    ),
    (record_requests.create_topic("cut", 1, {}, 1000), record_requests.parse_created),
    (record_requests.create_partitions("cut", 1, 1000), record_requests.parse_created),
    (record_requests.delete_topic("no-such", 1000), record_requests.parse_deleted),
    (record_requests.describe_settings("cut"), record_requests.parse_settings),
    (record_requests.alter_settings("cut", {"flush.ms": None}), record_requests.parse_altered),
    (record_topics.stored(None), record_topics.parse_sizes),
    (record_requests.new_producer(), record_requests.parse_producer),
]


def test_an_answer_that_is_cut_short_is_none(broker: RunningBroker, records: RecordBroker) -> None:
    """At every byte; and so is one with a byte behind its end."""
    records.create("cut", 1, {"retention.ms": "5000"})
    records.append({("cut", 0): build([Record(b"k", b"v", 1)])}, is_flushed=True)
    deadline = time.monotonic() + PATIENCE
    connection = connected(Address(broker.host, broker.port), "test", deadline)
    try:
        connection.begin("this test works", deadline)
        for request, parse in ASKED:
            whole = connection.ask(request, time.monotonic() + PATIENCE).rest()  # each: parsing takes its time
            parse(kafka_fields.Answer(whole))  # type: ignore[operator]
            for wrong in (*(whole[:size] for size in range(len(whole))), whole + b"\0"):
                with pytest.raises(ProtocolError):
                    parse(kafka_fields.Answer(wrong))  # type: ignore[operator]
    finally:
        connection.close()
