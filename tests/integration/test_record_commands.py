"""Topics of record batches in ``fastlog topics`` and ``fastlog consume``, as today's clients fill them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from fastlog import testing
from fastlog.client import kafka_fields, record_requests
from fastlog.client.addresses import Address
from fastlog.client.kafka_connection import NotSpokenError, connected
from fastlog.client.records import EARLIEST, LATEST, RecordBroker, RecordsError, records_in
from fastlog.errors import InvalidFetchSizeError, ProtocolError, TransportError
from fastlog.record_batches import Record, build
from fastlog.testing import RunningBroker
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker
from tests.harness.timing import PATIENCE

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with testing.broker(processors=1) as running:
        yield running


@pytest.fixture
def records(broker: RunningBroker) -> Iterator[RecordBroker]:
    with RecordBroker([Address(broker.host, broker.port)], timeout=PATIENCE) as made:
        yield made


def run(broker: RunningBroker, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Stdout and stderr of a command, which ends with that code."""
    command = [sys.executable, "-m", "fastlog", *arguments, "--brokers", broker.address]
    done = subprocess.run(command, capture_output=True, timeout=2 * PATIENCE, check=False)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout.decode(), done.stderr.decode()


def fill(broker: RunningBroker, topic: str, count: int = 6, *, codec: str = "none", first: int = 0) -> None:
    """Records 0, 1, … with key, time and header, the last one a tombstone."""
    producer = Producer({"bootstrap.servers": broker.address, "compression.type": codec, "acks": "all"})
    for number in range(first, first + count):
        value = None if number == first + count - 1 else b"value %d" % number
        producer.produce(
            topic, value, b"key %d" % number, 0, timestamp=1_700_000_000_000 + number, headers=[("n", b"%d" % number)]
        )
    assert producer.flush(PATIENCE) == 0


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_are_read(broker: RunningBroker, codec: str) -> None:
    topic = f"codec-{codec}"
    fill(broker, topic, codec=codec)
    out, err = run(broker, "consume", "--topic", topic, "--exit-at-end", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert found == [
        {
            "topic": topic, "partition": 0, "offset": number, "next_offset": number + 1,
            "payload": None if number == 5 else f"value {number}", "base64": False,
            "key": f"key {number}", "key_base64": False, "timestamp": 1_700_000_000_000 + number,
            "headers": [{"name": "n", "value": str(number), "base64": False}],
        }
        for number in range(6)
    ]  # fmt: skip
    assert "consumed 6 messages, 35 bytes" in err and "next offset by partition: 0:6" in err


def test_where_reading_begins_and_ends(broker: RunningBroker) -> None:
    topic = "begins"
    fill(broker, topic, 5)
    fill(broker, topic, 5, first=5)

    def offsets(*arguments: str, code: int = 0) -> list[int]:
        out, _ = run(broker, "consume", "--topic", topic, "-f", r"%o\n", *arguments, code=code)
        return [int(line) for line in out.split()]

    assert offsets("--exit-at-end") == list(range(10))
    assert offsets("--exit-at-end", "--offset", "-3") == [7, 8, 9]
    assert offsets("--exit-at-end", "--offset", "-30") == list(range(10))
    assert offsets("--exit-at-end", "--partition", "0", "--offset", "3") == list(range(3, 10))
    assert offsets("--exit-at-end", "--partition", "0", "--offset", "10") == []
    assert offsets("--exit-at-end", "--offset", "end") == []
    assert offsets("--max-messages", "7", "--offset", "2") == list(range(2, 9))
    assert offsets("--timeout", "300ms", "--offset", "8") == [8, 9]
    assert offsets("--timeout", "300ms", "--offset", "end", code=4) == []
    # of the first record with that time or a later one: 1.7e12 ms and 5 ms
    assert offsets("--exit-at-end", "--offset", "2023-11-14T22:13:20.005+00:00") == list(range(5, 10))
    assert offsets("--exit-at-end", "--offset", "1s") == []
    for offset in ("11", "99"):
        _, err = run(broker, "consume", "--topic", topic, "--offset", offset, code=2)
        assert f"offset {offset} is not in {topic}, partition 0" in err and "ends at 10" in err
    _, err = run(broker, "consume", "--topic", topic, "--partition", "1", code=2)
    assert "has no partition 1" in err


def test_several_partitions(broker: RunningBroker) -> None:
    run(broker, "topics", "create", "three", "--format", "records", "--partitions", "3")
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(30):
        producer.produce("three", b"%d" % number, partition=number % 3)
    assert producer.flush(PATIENCE) == 0
    out, err = run(broker, "consume", "--topic", "three", "--exit-at-end", "-f", r"%p %o %s\n", "--fetch-bytes", "100")
    rows = sorted(tuple(map(int, line.split())) for line in out.splitlines())
    assert rows == sorted((number % 3, number // 3, number) for number in range(30))
    assert "0:10, 1:10, 2:10" in err
    _, err = run(broker, "consume", "--topic", "three", "--offset", "2", code=2)
    assert "--offset N needs --partition" in err
    out, _ = run(broker, "topics", "describe", "three", "--no-headers")
    assert [line.split("\t")[1:] for line in out.splitlines()] == [
        [str(number), "ok", "0", "10", "10", "0"] for number in range(3)
    ]
    assert run(broker, "topics", "offsets", "three", "--partition", "1", "--no-headers")[0] == "three\t1\t10\n"
    assert run(broker, "topics", "offsets", "three", "--time", "earliest", "--no-headers")[0].count("\t0\n") == 3


def test_what_comes_later_is_printed_through_a_restart() -> None:
    """Follows; the broker goes and comes back; each record once, until a signal."""
    with testing.broker(processors=1) as own:
        fill(own, "later", 2)
        command = [
            sys.executable,
            "-m",
            "fastlog",
            "consume",
            "--topic",
            "later",
            "-f",
            r"%o\n",
            "--brokers",
            own.address,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
            try:
                assert reading.stdout is not None
                assert [reading.stdout.readline() for _ in range(2)] == [b"0\n", b"1\n"]
                own.restart()
                fill(own, "later", 2, first=2)
                assert [reading.stdout.readline() for _ in range(2)] == [b"2\n", b"3\n"]
                reading.send_signal(signal.SIGINT)
                out, err = reading.communicate(timeout=PATIENCE)
            finally:
                reading.kill()
        assert out == b"" and b"next offset by partition: 0:4" in err


def test_a_broker_that_does_not_come_back_ends_it() -> None:
    with testing.broker(processors=1) as own:
        fill(own, "gone", 2)
        command = [
            sys.executable, "-m", "fastlog", "consume", "--topic", "gone", "-f", r"%o\n", "--brokers", own.address,
            "--connect-timeout", "1s",
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
            try:
                assert reading.stdout is not None
                assert reading.stdout.readline() == b"0\n"
                own.stop()
                _, err = reading.communicate(timeout=PATIENCE)
            finally:
                reading.kill()
        assert reading.returncode == 3
        assert b"reading stopped at gone, partition 0, offset 2" in err


def test_a_topic_from_its_making_to_its_end(broker: RunningBroker) -> None:
    out, _ = run(
        broker, "topics", "create", "life", "--format", "records", "--partitions", "2", "--set", "segment.bytes=1000000"
    )
    assert out == "topic\tpartitions\nlife\t2\n"
    _, err = run(broker, "topics", "create", "life", "--format", "records", code=1)
    assert "topic 'life' was not created" in err and "exists" in err
    _, err = run(broker, "topics", "create", "other", "--format", "records", "--set", "no.such=1", code=1)
    assert "no.such" in err
    _, err = run(broker, "topics", "create", "other", "--set", "segment.bytes=1000000", code=2)
    assert "--set needs --format records" in err
    listed = {row["topic"]: row for row in map(json.loads, run(broker, "topics", "list", "--json")[0].splitlines())}
    assert listed["life"] == {"topic": "life", "partitions": 2, "configured": 2, "bytes": 0, "format": "records"}
    assert not any(name.startswith("__") for name in listed) and "other" not in listed
    assert "__fastlog_metadata" in run(broker, "topics", "list", "--internal")[0]
    fill(broker, "life")
    (row,) = (
        line for line in run(broker, "topics", "list", "--no-headers")[0].splitlines() if line.startswith("life\t")
    )
    assert int(row.split("\t")[3]) > 100
    assert run(broker, "topics", "delete", "life", "--no-headers")[0] == f"{broker.address}\tlife\t2\n"
    _, err = run(broker, "topics", "delete", "life", code=2)
    assert "none of the brokers has it" in err
    _, err = run(broker, "consume", "--topic", "life", "--exit-at-end", code=2)
    assert "topic 'life' does not exist" in err


def test_settings_are_shown_and_changed(broker: RunningBroker) -> None:
    run(broker, "topics", "create", "settled", "--format", "records", "--set", "retention.ms=100000")

    def settings(*arguments: str) -> dict[str, tuple[str, str]]:
        out, _ = run(broker, "topics", "settings", "settled", "--json", *arguments)
        return {row["setting"]: (row["value"], row["from"]) for row in map(json.loads, out.splitlines())}

    first = settings()
    assert first["retention.ms"] == ("100000", "topic")
    assert first["segment.bytes"][1] == "broker"
    changed = settings("--set", "segment.bytes=2000000", "--unset", "retention.ms")
    assert changed["segment.bytes"] == ("2000000", "topic")
    assert changed["retention.ms"][1] == "broker"
    _, err = run(broker, "topics", "settings", "settled", "--set", "segment.bytes=x", "--set", "flush.ms=7", code=2)
    assert "segment.bytes" in err
    assert settings() == changed
    _, err = run(broker, "topics", "settings", "settled", "--set", "flush.ms=7", "--unset", "flush.ms", code=2)
    assert "named twice" in err
    run(broker, "topics", "create", "old")
    _, err = run(broker, "topics", "settings", "old", code=2)
    assert "has no settings of its own" in err
    _, err = run(broker, "topics", "settings", "none", code=2)
    assert "topic 'none' does not exist" in err


def test_a_template_shows_messages_as_well(broker: RunningBroker) -> None:
    """Of topics of Kafka 0.7, alone and in a group."""
    with testing.broker(processors=1) as own:
        subprocess.run(
            [sys.executable, "-m", "fastlog", "produce", "--topic", "old", "--brokers", own.address],
            input=b"a\nb\n", check=True, capture_output=True,
        )  # fmt: skip
        for group in ((), ("--group", "g")):
            out, _ = run(own, "consume", "--topic", "old", "--exit-at-end", "-f", r"%t/%p/%o/%K/%s;", *group)
            assert out == "old/0/0/-1/a;old/0/11/-1/b;"
    for wrong in (
        ("-f", "%s", "--json"),
        ("-f", "%s", "--delimiter", ","),
        ("-f", "%s", "--length-prefixed"),
        ("-f", "%q"),
    ):
        run(broker, "consume", "--topic", "old", *wrong, code=2)


# -- the client --------------------------------------------------------------------------------------------------------


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
    batches = list(records_in(found[places[0]], 2))
    assert [following for following, _ in batches] == [4, 8]
    assert [record.offset for _, taken in batches for record in taken] == list(range(2, 8))
    with pytest.raises(InvalidFetchSizeError):
        list(records_in(found[places[0]]._replace(batches=found[places[0]].batches[:70]), 0))
    assert records.fetch({places[0]: 9})[places[0]].code == 1
    assert records.append({("none", 0): build(made)}, is_flushed=False)["none", 0].code == 3
    with pytest.raises(RecordsError, match="does not exist") as refused:
        records.offsets([("none", 0)], LATEST)
    assert refused.value.code == 3 and refused.value.topic == "none"
    records.add_partitions("client", 3)
    assert records.topics(["client"])["client"].partitions == (0, 1, 2)
    with pytest.raises(RecordsError):
        records.add_partitions("client", 3)
    assert records.sizes()["client", 2] == 0
    records.delete("client")
    assert records.topics(["client"])["client"].code == 3
    with pytest.raises(RecordsError):
        records.delete("client")


def test_a_fetch_waits_for_what_comes(broker: RunningBroker, records: RecordBroker) -> None:
    records.create("waits", 1, {})
    begun = time.monotonic()
    assert records.fetch({("waits", 0): 0}, max_wait=0.3)["waits", 0].batches == b""
    assert time.monotonic() - begun >= 0.3


def test_a_connection_that_broke_is_made_again(broker: RunningBroker) -> None:
    with testing.broker(processors=1) as own, RecordBroker([Address(own.host, own.port)], timeout=PATIENCE) as client:
        assert client.topics([]) == {}
        own.restart()
        wait_until("it is asked again", lambda: client.topics([]) == {})
        own.stop()
        with pytest.raises(TransportError):
            client.topics()
        own.start()
        assert client.topics([]) == {}


def test_a_broker_without_todays_protocol_is_told_apart() -> None:
    with (
        FakeBroker() as fake,
        RecordBroker([Address("127.0.0.1", fake.port)], timeout=PATIENCE) as client,
        pytest.raises(NotSpokenError, match="topics of record batches"),
    ):
        client.topics()


ASKED = [
    (record_requests.metadata(None), record_requests.parse_metadata),
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
    (record_requests.describe_log_dirs(), record_requests.parse_log_dirs),
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
            whole = connection.ask(request, deadline).rest()
            parse(kafka_fields.Answer(whole))  # type: ignore[operator]
            for wrong in (*(whole[:size] for size in range(len(whole))), whole + b"\0"):
                with pytest.raises(ProtocolError):
                    parse(kafka_fields.Answer(wrong))  # type: ignore[operator]
    finally:
        connection.close()
