"""``fastlog produce`` for topics of record batches."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from fastlog import testing
from fastlog.record_batches import BatchHeader, batches
from fastlog.testing import RunningBroker
from tests.harness import command_process
from tests.harness.broker import KEPT, wait_until
from tests.harness.record_commands import CODECS, run, stored
from tests.harness.timing import PATIENCE


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with testing.broker(processors=1, properties=KEPT) as running:
        yield running


def produce(broker: RunningBroker, topic: str, data: bytes, *arguments: str, code: int = 0) -> str:
    """Stderr of ``fastlog produce``, which ends with that code."""
    given = ("--topic", topic, "--brokers", broker.address, "--acks", "flushed")  # so that whoever reads then sees it
    found, _, err = command_process.run("produce", *given, *arguments, data=data)
    assert found == code, (arguments, found, err)
    return err


@pytest.mark.parametrize("codec", CODECS)
def test_lines_become_records(broker: RunningBroker, codec: str) -> None:
    topic = f"lines-{codec}"
    run(broker, "topics", "create", topic, "--format", "records", "--partitions", "1")
    before = time.time() * 1000
    err = produce(
        broker, topic, b"k1;a;b\nk2;\nk3;" + b"c" * 200, "--parse-key", "--key-separator", ";",
        "-H", "n=x=y", "-H", "n=", "--compression", codec,
    )  # fmt: skip
    assert "produced 3 messages, 203 bytes" in err and "flushed (on the broker's disk), each once" in err
    headers = [("n", b"x=y"), ("n", b"")]
    assert stored(broker, topic) == [
        (0, 0, "", b"k1", b"a;b", headers),
        (0, 1, "", b"k2", b"", headers),
        (0, 2, "", b"k3", b"c" * 200, headers),
    ]
    (segment,) = broker.data_directory.glob(f"{topic}-0/*.log")
    header = BatchHeader.parse(segment.read_bytes())
    assert header.codec == CODECS.index(codec)
    assert before - 1 <= header.base_timestamp <= time.time() * 1000 + 1
    assert header.producer_id >= 0 and header.base_sequence == 0


def test_keys_go_where_confluent_kafka_has_them_go(broker: RunningBroker) -> None:
    for topic in ("theirs", "ours"):
        run(broker, "topics", "create", topic, "--format", "records", "--partitions", "7")
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(50):
        producer.produce("theirs", b"v", b"key %d" % number)
    assert producer.flush(PATIENCE) == 0
    produce(broker, "ours", b"".join(b"key %d\tv\n" % number for number in range(50)), "--parse-key")
    places = [{row[3]: row[0] for row in stored(broker, topic)} for topic in ("theirs", "ours")]
    assert places[0] == places[1] and len(places[0]) == 50


def test_lines_without_keys_go_anywhere_and_in_order(broker: RunningBroker) -> None:
    """A batch of lines to each partition in turn; or all to the one that is named."""
    run(broker, "topics", "create", "turns", "--format", "records", "--partitions", "3")
    produce(broker, "turns", b"".join(b"%d\n" % number for number in range(9000)), "--batch-bytes", "1KiB")
    rows = stored(broker, "turns")
    assert {row[0] for row in rows} == {0, 1, 2}
    for number in range(3):
        values = [int(row[4] or b"") for row in rows if row[0] == number]
        assert values == sorted(values)
    assert sorted(int(row[4] or b"") for row in rows) == list(range(9000))
    run(broker, "topics", "create", "named", "--format", "records", "--partitions", "3")
    produce(broker, "named", b"a\tx\nb\ty\n", "--parse-key", "--partition", "2")
    assert [(row[0], row[3]) for row in stored(broker, "named")] == [(2, b"a"), (2, b"b")]
    assert "no partition 3" in produce(broker, "named", b"a\n", "--partition", "3", code=2)


def test_the_limit_of_a_topic_is_kept(broker: RunningBroker) -> None:
    """Many short lines are cut into batches that the topic takes; a line that no batch can hold is left out."""
    run(
        broker,
        "topics",
        "create",
        "small",
        "--format",
        "records",
        "--partitions",
        "1",
        "--set",
        "max.message.bytes=2000",
    )
    lines = [b"%d" % number for number in range(3000)]
    err = produce(broker, "small", b"\n".join([*lines[:10], b"x" * 2000, *lines[10:]]), code=1)
    assert "produced 3000 messages" in err and "left out as too long: 1" in err and "line 11" in err
    assert [row[4] for row in stored(broker, "small")] == lines
    (segment,) = broker.data_directory.glob("small-0/*.log")
    sizes = [header.size_bytes for header, _ in batches(segment.read_bytes())]
    assert max(sizes) <= 2000 and len(sizes) > 10


def test_a_line_without_a_key_ends_it_behind_those_before(broker: RunningBroker) -> None:
    run(broker, "topics", "create", "keyless", "--format", "records", "--partitions", "1")
    err = produce(broker, "keyless", b"a\t1\nnone\nb\t2\n", "--parse-key", code=1)
    assert "line 2 has no key" in err and "produced 1 message," in err
    produce(broker, "keyless", b"none\nb\t2\n", "--parse-key", "--keyless", "any")
    assert [(row[3], row[4]) for row in stored(broker, "keyless")] == [(b"a", b"1"), (None, b"none"), (b"b", b"2")]


def test_what_is_for_the_other_kind_is_refused(broker: RunningBroker) -> None:
    run(broker, "topics", "create", "kind", "--format", "records", "--partitions", "1")
    assert "is a topic of records" in produce(broker, "kind", b"a\n", "--acks", "none", code=2)
    for wrong in (("-H", "a=b"), ("-Z",), ("--compression", "zstd"), ("--compression", "lz4")):
        assert "is no topic of records" in produce(broker, "kind07", b"a\n", *wrong, code=2)
    assert "contradicts" in produce(broker, "kind07", b"a\n", "--parse-key", "--partition", "0", code=2)
    assert "write --header name=value" in produce(broker, "kind", b"a\n", "-H", "a", code=2)
    assert "leave the others out" in produce(broker, "kind", b"a\n", "-K", ":", "--key-field", "1", code=2)
    assert stored(broker, "kind") == []


def test_settings_of_the_producer_hold_for_records(broker: RunningBroker) -> None:
    """Those of flags and of --property: a batch has as many lines as --batch-size says."""
    run(broker, "topics", "create", "set", "--format", "records", "--partitions", "1")
    given = ("--batch-size", "2", "--property", "queue.time=60000", "--sync", "-z", "gzip")
    lines = [b"%d" % number * 100 for number in range(5)]
    produce(broker, "set", b"\n".join(lines), *given)
    (segment,) = broker.data_directory.glob("set-0/*.log")
    found = [(header.record_count, header.codec) for header, _ in batches(segment.read_bytes())]
    assert found[0] == (2, 1) and found[-1] == (1, 1)
    assert [row[4] for row in stored(broker, "set")] == lines


def test_nulls_go_in_and_come_out(broker: RunningBroker) -> None:
    """As of kcat's -Z: what is empty is null, key and value; and is printed as NULL, by each way of reading."""
    run(broker, "topics", "create", "nulls", "--format", "records", "--partitions", "1")
    produce(broker, "nulls", b"k:v\nk:\n:v\n:\n", "-K", ":", "-Z")
    produce(broker, "nulls", b"\nw\n", "-Z")
    produce(broker, "nulls", b"k:\n", "-K", ":")
    expected = [(b"k", b"v"), (b"k", None), (None, b"v"), (None, None), (None, None), (None, b"w"), (b"k", b"")]
    assert [row[3:5] for row in stored(broker, "nulls")] == expected
    lines = "v\nNULL\nv\nNULL\nNULL\nw\n\n"
    given = ("consume", "--topic", "nulls", "--exit-at-end")
    assert run(broker, *given, "-Z")[0] == run(broker, *given, "-Z", "--group", "of-nulls")[0] == lines
    assert run(broker, "tail", "nulls", "-Z", "--max-messages", "7")[0] == lines
    assert run(broker, *given)[0] == run(broker, "tail", "nulls", "--max-messages", "7")[0] == lines.replace("NULL", "")
    assert run(broker, *given, "-Z", "-f", "%k=%s;", "-c", "4")[0] == "k=v;k=NULL;NULL=v;NULL=NULL;"
    for wrong in (("--format", "offsets"), ("--length-prefixed",)):
        assert "--null is for text" in run(broker, *given, "-Z", *wrong, code=2)[1]
        assert "--null is for text" in run(broker, "tail", "nulls", "-Z", *wrong, code=2)[1]


def test_one_key_for_all_and_only_so_many(broker: RunningBroker) -> None:
    """As kcat's -k and -c; a line's own key goes before."""
    run(broker, "topics", "create", "fixed", "--format", "records", "--partitions", "3")
    assert "produced 2 messages" in produce(broker, "fixed", b"a\nb\nc\n", "-k", "key", "-c", "2")
    produce(broker, "fixed", b"k\td\ne\n", "--parse-key", "-k", "key", "-p", "1")
    found = {row[4]: (row[0], row[3]) for row in stored(broker, "fixed")}
    assert found[b"a"] == found[b"b"] and found[b"a"][1] == b"key"
    assert (found[b"d"], found[b"e"], len(found)) == ((1, b"k"), (1, b"key"), 4)


def test_what_a_broker_refuses_is_told_by_its_lines(broker: RunningBroker) -> None:
    """A header makes one of three records too large for the topic: the others are stored, and it is named."""
    run(
        broker, "topics", "create", "narrow", "--format", "records", "--partitions", "1", "--set",
        "max.message.bytes=500",
    )  # fmt: skip
    lines = [b"1", b"x" * 370, b"3", b""]
    err = produce(broker, "narrow", b"\n".join(lines), "-k", "k", "-H", f"h={'y' * 100}", "--sync", code=1)
    assert "the broker refused 1 message with error 102" in err
    assert "not acknowledged: stdin, line 2" in err
    assert [row[4] for row in stored(broker, "narrow")] == [b"1", b"3"]


def test_lost_answers_store_nothing_twice() -> None:
    """What is sent again after the connection broke has its number, by which the broker knows it."""
    with testing.broker(processors=1, proxied=True) as own:
        front = own.front
        assert front is not None
        run(own, "topics", "create", "once", "--format", "records", "--partitions", "1")
        produced = threading.Event()
        lost: list[bytes] = []

        def lose_the_answer(data: bytes, from_server: bool) -> bytes:
            if not from_server and data[4:6] == b"\0\0":  # Produce
                produced.set()
            if from_server and produced.is_set() and not lost:
                lost.append(data)
                return b""
            return data

        front.on_data = lose_the_answer  # type: ignore[method-assign]
        command = [sys.executable, "-m", "fastlog", "produce", "--topic", "once", "--brokers", own.address]
        command += ["--acks", "flushed", "--connect-timeout", f"{PATIENCE}s"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as sending:
            try:
                assert sending.stdin is not None
                sending.stdin.write(b"first\n")
                sending.stdin.flush()
                wait_until("an answer is lost", lambda: bool(lost))
                front.cut()
                _, err = sending.communicate(b"second\n", timeout=PATIENCE)
            finally:
                sending.kill()
        assert sending.returncode == 0, err
        assert b"produced 2 messages" in err
        assert [row[4] for row in stored(own, "once")] == [b"first", b"second"]


def test_a_broker_that_stays_away_is_said() -> None:
    with testing.broker(processors=1) as own:
        run(own, "topics", "create", "away", "--format", "records", "--partitions", "1")
        command = [
            sys.executable, "-m", "fastlog", "produce", "--topic", "away", "--brokers", own.address,
            "--connect-timeout", "1s", "--property", "delivery.timeout.ms=1000",
        ]  # fmt: skip
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as sending:
            try:
                assert sending.stdin is not None
                (segment,) = own.data_directory.glob("away-0/*.log")
                sending.stdin.write(b"first\n")
                sending.stdin.flush()
                wait_until("the first is stored", lambda: b"first" in segment.read_bytes())
                own.stop()
                _, err = sending.communicate(b"second\n", timeout=PATIENCE)
            finally:
                sending.kill()
        assert sending.returncode == 3
        assert b"1 message was not acknowledged" in err and b"produced 1 message," in err
