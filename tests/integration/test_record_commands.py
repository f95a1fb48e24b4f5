"""Topics of record batches in ``fastlog topics`` and ``fastlog consume``, as today's clients fill them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.core import ParameterSource
from confluent_kafka import Consumer, Producer, TopicPartition

import fastlog
from fastlog import testing
from fastlog.client.addresses import Address
from fastlog.client.records import LATEST, RecordBroker, records_in
from fastlog.record_batches import Record, build
from fastlog.testing import RunningBroker
from fastlog.tools import options
from tests.harness.broker import KEPT
from tests.harness.record_commands import CODECS, fill, run, stored
from tests.harness.timing import PATIENCE


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with testing.broker(processors=1, properties=KEPT) as running:
        yield running


@pytest.fixture
def records(broker: RunningBroker) -> Iterator[RecordBroker]:
    with RecordBroker([Address(broker.host, broker.port)], timeout=PATIENCE) as made:
        yield made


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
    for _ in range(3):  # whoever is told that it is deleted may use its name
        run(broker, "topics", "create", "life", "--format", "records")
        run(broker, "topics", "delete", "life")
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
        run(own, "produce", "--topic", "old", data=b"a\nb\n")
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


# -- groups ------------------------------------------------------------------------------------------------------------


def test_the_lag_of_another_clients_group_is_told_and_its_offsets_are_set(broker: RunningBroker) -> None:
    """In records, exactly; of topics that nobody has committed, of what is removed, and by time."""
    run(broker, "topics", "create", "behind", "--format", "records", "--partitions", "2")
    fill(broker, "behind", 10)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "others", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("behind", 0, 4)], asynchronous=False)
    consumer.close()

    def lag() -> dict[int, tuple[object, ...]]:
        out, _ = run(broker, "lag", "--group", "others", "--json")
        rows = map(json.loads, out.splitlines())
        return {
            row["partition"]: tuple(
                row[name] for name in ("offset", "log_start", "log_size", "lag", "lag_messages_estimate")
            )
            for row in rows
            if row["topic"] == "behind"
        }

    def reset(*arguments: str) -> dict[int, tuple[object, ...]]:
        run(broker, "offsets", "reset", "--group", "others", "--topic", "behind", "--execute", *arguments)
        return lag()

    assert lag()[0] == (4, 0, 10, 6, 6)
    assert reset("--to-earliest") == {0: (0, 0, 10, 10, 10), 1: (0, 0, 0, 0, 0)}
    assert reset("--to-latest") == {0: (10, 0, 10, 0, 0), 1: (0, 0, 0, 0, 0)}
    assert reset("--to-time", "2023-11-14T22:13:20.003+00:00") == {0: (3, 0, 10, 7, 7), 1: (0, 0, 0, 0, 0)}
    assert reset("--to-offset", "7", "--partition", "0-0")[0] == (7, 0, 10, 3, 3)


# -- tail, replay and the shell ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_group_prints_what_one_broker_prints(broker: RunningBroker, codec: str) -> None:
    """The same lines as without a group, with the broker's id; and it goes on where it stopped, inside a batch."""
    topic = f"grouped-{codec}"
    fill(broker, topic, codec=codec)
    alone, _ = run(broker, "consume", "--topic", topic, "--exit-at-end", "--json")
    expected = [{**json.loads(line), "broker": 0} for line in alone.splitlines()]
    given = ("consume", "--topic", topic, "--group", topic)
    first, err = run(broker, *given, "--max-messages", "4", "--json")
    assert f"committed {topic}/0-0:4" in err
    second, err = run(broker, *given, "--exit-at-end", "--json")
    assert [json.loads(line) for line in (first + second).splitlines()] == expected
    assert f"committed {topic}/0-0:6" in err
    lines, _ = run(broker, "consume", "--topic", topic, "--group", f"{topic}-lines", "--exit-at-end")
    assert lines == "".join(f"value {number}\n" for number in range(5)) + "\n"
    template = "%k=%s %K %S %T %h %p %o|"
    shaped, _ = run(broker, "consume", "--topic", topic, "--group", f"{topic}-f", "--exit-at-end", "-f", template)
    assert shaped == run(broker, "consume", "--topic", topic, "--exit-at-end", "-f", template)[0]
    for form in ("offsets", "checksum"):
        shaped, _ = run(
            broker, "consume", "--topic", topic, "--group", f"{topic}-{form}", "--exit-at-end", "--format", form
        )
        assert len(shaped.splitlines()) == 6
    prefixed, _ = run(
        broker, "consume", "--topic", topic, "--group", f"{topic}-l", "--exit-at-end", "--length-prefixed"
    )
    assert prefixed.endswith("value 4\0\0\0\0")


def test_tail_shows_the_last_records_and_what_comes(broker: RunningBroker) -> None:
    fill(broker, "tailed")
    alone, _ = run(broker, "consume", "--topic", "tailed", "--exit-at-end", "--json")
    expected = [{**json.loads(line), "broker": 0} for line in alone.splitlines()]
    out, _ = run(broker, "tail", "tailed", "-n", "4", "--max-messages", "4", "--json")
    assert [json.loads(line) for line in out.splitlines()] == expected[2:]
    out, _ = run(broker, "tail", "tailed", "-n", "3", "--max-messages", "3")
    assert out == "value 3\nvalue 4\n\n"
    out, _ = run(broker, "tail", "tailed", "-n", "1", "--max-messages", "1", "--format", "offsets")
    assert out == "tailed\t0-0\t5\t\n"
    command = [
        sys.executable,
        "-m",
        "fastlog",
        "tail",
        "tailed",
        "-n",
        "0",
        "--max-messages",
        "2",
        "--brokers",
        broker.address,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as following:
        for number in range(6, 60):  # until it has begun to follow
            fill(broker, "tailed", 2, first=2 * number)
            try:
                out_bytes, _ = following.communicate(timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                continue
        assert following.returncode == 0
    first, second = out_bytes.splitlines()
    assert first.startswith(b"value ") and second == b""


def test_records_are_replayed_as_they_are(broker: RunningBroker, records: RecordBroker) -> None:
    """Also those with nothing but headers; into a topic that is made, one that is there, and not into one of 0.7."""
    records.create("played", 2, {"retention.ms": "-1", "segment.bytes": "54321"})
    fill(broker, "played", 30, codec="zstd")
    nothing = build([Record(None, None, -1), Record(None, None, 7, ((b"h", None),)), Record(b"", b"", 8)])
    assert records.append({("played", 1): nothing}, is_flushed=True)["played", 1].code == 0
    expected = sorted(stored(broker, "played"), key=str)
    for count in (1, 2):
        _, err = run(broker, "replay", "--input-topic", "played", "--output-topic", "again", "--compression", "lz4")
        assert "replayed 33 messages" in err and "33 acknowledged, 0 not" in err
        own = {name: one.value for name, one in records.settings("again").items() if one.is_own}
        assert own == {"retention.ms": "-1", "segment.bytes": "54321"}
        offsets, _ = run(broker, "topics", "offsets", "again", "--no-headers")
        assert offsets == f"again\t0\t{30 * count}\nagain\t1\t{3 * count}\n", "all of it is visible once it is replayed"
        found = stored(broker, "again")
        assert len(found) == 33 * count
    assert sorted((row for row in found if row[1] < (30, 3)[row[0]]), key=str) == expected


def test_the_pace_of_a_replay_is_that_of_the_records(broker: RunningBroker, records: RecordBroker) -> None:
    """Of both partitions together; what has no time goes with what is before it."""
    records.create("paced", 2, {"retention.ms": "-1"})
    times = ([1_700_000_000_000, -1, 1_700_000_000_600], [1_700_000_000_300])
    for partition, row in enumerate(times):
        batch = build([Record(b"%d" % number, b"x", each) for number, each in enumerate(row)])
        assert records.append({("paced", partition): batch}, is_flushed=True)["paced", partition].code == 0
    records.create("pace", 2, {"retention.ms": "-1"})
    arguments = ("--input-topic", "paced", "--output-topic", "pace", "--json")
    out, err = run(broker, "replay", *arguments, "--speed", "2")
    assert "times: by records, 2x" in err and "; 1 had no time;" in err
    assert json.loads(out)["without_time"] == 1
    assert json.loads(out)["seconds"] >= 0.3
    assert [(row[0], row[3]) for row in timed(broker, "pace")] == [(0, b"0"), (0, b"1"), (0, b"2"), (1, b"0")]
    _, err = run(broker, "replay", *arguments, "--speed", "2", "--times", "segments", code=2)
    assert "--times segments is for topics of Kafka 0.7" in err


def timed(broker: RunningBroker, topic: str) -> list[tuple[int, int, bytes | None, bytes | None, int]]:
    """Partition, offset, value, key and time of each record."""
    with RecordBroker([Address(broker.host, broker.port)], timeout=PATIENCE) as records:
        found = []
        for number in records.known_topics([topic])[topic].partitions:
            place, at = (topic, number), 0
            while at < records.offsets([place], LATEST)[place]:
                for end, rows in records_in(records.fetch({place: at})[place], at):
                    found += [(number, row.offset, row.value, row.key, row.timestamp) for row in rows]
                    at = end
        return found


def test_messages_are_replayed_as_records(broker: RunningBroker, records: RecordBroker) -> None:
    records.create("of-messages", 1, {})
    with fastlog.Producer(broker.address, acks="flushed") as producer:
        producer.send("a-log-of-messages", [b"a", b"b"])
    run(
        broker, "replay", "--input-topic", "a-log-of-messages", "--output-topic", "of-messages", "--compression", "zstd"
    )
    assert [(row[2], row[3]) for row in timed(broker, "of-messages")] == [(b"a", None), (b"b", None)]
    arguments = ("--input-topic", "of-messages", "--output-topic", "a-log-of-messages")
    _, err = run(broker, "replay", *arguments, code=2)
    assert "records cannot be replayed into 'a-log-of-messages'" in err
    arguments = ("--input-topic", "a-log-of-messages", "--output-topic", "old-again")
    _, err = run(broker, "replay", *arguments, "--speed", "1", "--times", "records", code=2)
    assert "--times records is for topics of records" in err


def test_the_shell_completes_topics_of_both_kinds(broker: RunningBroker, records: RecordBroker) -> None:
    """Not the broker's own."""
    records.create("completed-records", 1, {})
    with fastlog.Producer(broker.address, acks="flushed") as producer:
        producer.send("completed-messages", b"a")
    context = click.Context(click.Command("consume"))
    context.params = {"brokers": broker.address, "connect_timeout": PATIENCE}
    context.set_parameter_source("connect_timeout", ParameterSource.COMMANDLINE)
    for typed, found in (("completed-", {"completed-messages", "completed-records"}), ("__", set())):
        assert set(options.complete_topics(context, click.Option(["--topic"]), typed)) == found


def test_a_disk_that_is_full_is_said(broker: RunningBroker) -> None:
    fill(broker, "too-much")
    _, err = run(broker, "dump", "--topic", "too-much", "/dev/full", code=1)
    assert "No space left on device" in err and "make room there, then run it again" in err
