"""The audit from end to end: real brokers, programs that die, and the command's verdict."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest

import fastlog.testing
from fastlog import Producer
from fastlog.audit import Auditor
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError, StorageError, TransportError
from fastlog.testing import RunningBroker
from fastlog.zkpaths import PartitionId
from tests.fault.programs import ROOT, environment
from tests.harness.audit import audit, consumer_of, copy_topic, totals
from tests.harness.broker import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def brokers() -> Iterator[list[RunningBroker]]:
    with fastlog.testing.cluster(2, partitions=2) as running:
        yield running


@pytest.fixture
def source(brokers: list[RunningBroker]) -> RunningBroker:
    return brokers[0]


@pytest.fixture
def names(fastlog_topic: str) -> tuple[str, str]:
    """A topic and its audit topic, for one test."""
    return fastlog_topic, f"audit-{fastlog_topic}"


def sent(address: str, names: tuple[str, str], count: int = 1000, **fields: Any) -> None:
    fields = {"audit_window_ms": 1000, "producer_type": "async", "server": "web-1", **fields}
    with Producer(address, audit_topic=names[1], **fields) as producer:
        for number in range(count):
            producer.send(names[0], b"%d" % number)


def test_nothing_is_wrong(brokers: list[RunningBroker], names: tuple[str, str]) -> None:
    """Two brokers; producers of both types, with keys, with compression, with clocks that are minutes apart."""
    topic, audit_topic = names
    addresses = ",".join(broker.address for broker in brokers)
    for shift, fields in (
        (0, {"producer_type": "sync"}),
        (-300_000, {"producer_type": "async", "compression": "gzip"}),
        (400_000, {"producer_type": "async", "compression": "snappy", "audit_interval_ms": 20}),
    ):
        with Producer(addresses, audit_topic=audit_topic, **fields) as producer:
            producer.send(topic, b"first")
            assert producer._stamps is not None
            producer._stamps.by_topic[topic].shift_ms = shift
            for number in range(100):
                producer.send(topic, [b"x"] * 3, key=str(number))
                producer.send(topic, b"y")
    code, rows, _ = audit("--brokers", addresses, "--audit-topic", audit_topic)
    assert code == 0
    assert {(row["topic"], row["stage"], row["state"]) for row in rows} == {(topic, "brokers", "ok")}
    assert totals(rows)["sent"] == totals(rows)["received"] == 3 * 401
    assert len(rows) >= 3


def test_one_of_many_is_lost_and_another_is_there_twice(brokers: list[RunningBroker], names: tuple[str, str]) -> None:
    """In the same window, so that its count is right; found, and named."""
    source, target = brokers
    topic, audit_topic = names
    sent(source.address, names, 200_000, audit_window_ms=2**31 - 1)
    assert copy_topic(source.address, target.address, topic, lost=[123_456], twice=[7]) == 200_000
    copy_topic(source.address, target.address, audit_topic)
    code, rows, said = audit("--brokers", target.address, "--audit-topic", audit_topic)
    assert code == 1
    (row,) = rows
    assert (row["sent"], row["received"], row["missing"], row["duplicates"]) == (200_000, 200_000, 1, 1)
    assert row["state"] == "missing+duplicate"
    (gap,) = row["gaps"]
    assert gap["first"] == gap["last"]
    assert f"number {gap['first']} of producer {gap['producer_id']} on web-1" in said
    # The source itself is whole, and so is what it has as a stage behind itself.
    code, rows, _ = audit("--brokers", source.address, "--audit-topic", audit_topic, "--problems")
    assert (code, rows) == (0, [])


def test_duplicates_alone_are_no_gap(brokers: list[RunningBroker], names: tuple[str, str]) -> None:
    source, target = brokers
    sent(source.address, names, audit_window_ms=2**31 - 1)
    copy_topic(source.address, target.address, names[0], twice=[0, 999])
    copy_topic(source.address, target.address, names[1])
    arguments = ("--brokers", target.address, "--audit-topic", names[1])
    code, rows, _ = audit(*arguments)
    assert (code, [row["state"] for row in rows], totals(rows)["duplicates"]) == (0, ["duplicate"], 2)
    assert audit(*arguments, "--strict")[0] == 1


def test_a_killed_producer_leaves_no_gap(source: RunningBroker, names: tuple[str, str]) -> None:
    """What it had no time to report is unreported; what it had is ok."""
    program = """
        import sys
        from fastlog import Producer
        producer = Producer(sys.argv[1], producer_type="async", audit_topic=sys.argv[3], audit_interval_ms=50,
                            audit_window_ms=100)
        for number in range(10**9):
            producer.send(sys.argv[2], b"x" * 20)
            if number % 10_000 == 0:
                print(number, flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", dedent(program), source.address, *names],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
    )
    try:
        with consumer_of(source.address) as consumer:

            def is_reported() -> bool:
                metadata = consumer.metadata([names[1]])
                return metadata is not None and any(item.log_end for item in metadata.topics[0].partitions)

            wait_until("a report", is_reported, 20)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    code, rows, _ = audit("--brokers", source.address, "--audit-topic", names[1])
    assert code == 0
    found = totals(rows)
    assert found["sent"] > 0
    assert found["received"] == found["sent"] + found["unreported"]
    assert {row["state"] for row in rows} <= {"ok", "unreported"}


def test_a_stage_of_consumers_that_restart(source: RunningBroker, names: tuple[str, str]) -> None:
    """They publish before they commit: one that begins again at its commit counts again what is counted, no harm."""
    topic, audit_topic = names
    sent(source.address, names, 5000)
    for number in range(2):
        committed = 0
        for _ in range(50):  # lives that end behind a commit, and once more between publishing and a commit
            with Producer(source.address) as producer, consumer_of(source.address) as consumer:
                auditor = Auditor("load", producer, audit_topic, window_ms=1000)
                end = True
                for step, batch in enumerate(consumer.numpy_batches(topic, number, committed, fetch_bytes=20_000)):
                    auditor.count(batch)
                    auditor.publish()
                    if step == 1:
                        end = False
                        break
                    committed = batch.next_offset
            if end:
                break
        assert end
    code, rows, _ = audit("--brokers", source.address, "--audit-topic", audit_topic, "--grace", "0")
    assert code == 0
    assert {(row["stage"], row["state"]) for row in rows} == {("brokers", "ok"), ("load", "ok")}
    assert totals(rows, "load")["received"] == 5000


def test_a_stage_that_has_not_seen_all(source: RunningBroker, names: tuple[str, str]) -> None:
    """Pending until the grace is over; then missing, there and not in the brokers."""
    topic, audit_topic = names
    sent(source.address, names, 1000, audit_window_ms=2**31 - 1)
    with Producer(source.address) as producer, consumer_of(source.address) as consumer:
        auditor = Auditor("load", producer, audit_topic)
        batches = [batch for number in range(2) for batch in consumer.numpy_batches(topic, number, fetch_bytes=2500)]
        skipped = len(batches.pop())
        for part in (batches[::2], batches[1::2]):
            for batch in part:  # events for each partition of the audit topic, so that every report ages
                auditor.count(batch)
                auditor.publish()
                auditor.publish()
            time.sleep(0.05)  # so old are the reports behind which the second part comes
    arguments = ("--brokers", source.address, "--audit-topic", audit_topic)
    assert audit(*arguments, "--grace", "40s")[0] == 0
    code, rows, _ = audit(*arguments)
    assert (code, {row["stage"]: row["state"] for row in rows}) == (0, {"brokers": "ok", "load": "pending"})
    code, rows, _ = audit(*arguments, "--grace", "0")
    assert (code, {row["stage"]: row["state"] for row in rows}) == (1, {"brokers": "ok", "load": "missing"})
    assert totals(rows, "load")["missing"] == skipped > 0


def test_another_cluster_is_a_stage(brokers: list[RunningBroker], names: tuple[str, str]) -> None:
    """Reports are read there as well, and each counts once."""
    source, target = brokers
    sent(source.address, names, 1000)
    copy_topic(source.address, target.address, names[0], lost=[500])
    copy_topic(source.address, target.address, names[1])
    arguments = ("--brokers", source.address, "--stage", f"copy={target.address}", "--audit-topic", names[1])
    code, rows, _ = audit(*arguments, "--grace", "0s", "--topic", names[0])
    assert code == 1
    assert totals(rows) == {**totals(rows, "copy"), "received": 1000, "missing": 0}
    assert totals(rows, "copy")["missing"] == 1
    code, rows, _ = audit(*arguments)
    assert (code, totals(rows, "copy")["pending"]) == (0, 1)
    code, rows, err = audit(*arguments, "--topic", "nobody-has-it")
    assert (code, rows) == (0, []) and "no producer has reported on nobody-has-it" in err


def test_what_retention_removed_is_no_gap(names: tuple[str, str]) -> None:
    """Whole segments are gone while the reports are still there."""
    topic, audit_topic = names
    settings: dict[str, Any] = {"log_file_size": 100_000, "log_cleanup_interval_mins": 0.01}
    settings["topic_log_retention_size"] = f"{topic}:150000"
    with fastlog.testing.broker(partitions=2, **settings) as broker:
        sent(broker.address, names, 20_000)
        with consumer_of(broker.address) as consumer:

            def is_trimmed() -> bool:
                metadata = consumer.metadata([topic])
                return metadata is not None and all(item.log_start for item in metadata.topics[0].partitions)

            wait_until("old segments are gone", is_trimmed, 30)
        code, rows, _ = audit("--brokers", broker.address, "--audit-topic", audit_topic)
        found = totals(rows)
        assert (code, found["missing"]) == (0, 0)
        assert found["expired"] + found["received"] == found["sent"] == 20_000
        assert found["expired"] > 0


def test_messages_without_numbers_are_unreported(source: RunningBroker, names: tuple[str, str]) -> None:
    with Producer(source.address, envelope=True) as producer:
        producer.send(names[0], [b"x"] * 4)
    with Producer(source.address) as producer:
        producer.send(names[0], [b"x"] * 4)
    sent(source.address, names, 10)
    arguments = ("--brokers", source.address, "--audit-topic", names[1])
    code, rows, said = audit(*arguments)
    assert (code, totals(rows)["unreported"], totals(rows)["missing"]) == (0, 4, 0)
    assert audit(*arguments, "--strict")[0] == 1
    assert f"4 messages of {names[0]} at brokers have no envelope" in said


def test_what_is_no_event_is_passed_over(source: RunningBroker, names: tuple[str, str]) -> None:
    with Producer(source.address) as producer:
        producer.send(names[1], [b"hello", b"{}"])
    sent(source.address, names, 10)
    code, rows, said = audit("--brokers", source.address, "--audit-topic", names[1])
    assert (code, totals(rows)["sent"]) == (0, 10)
    assert "1 message was passed over in" in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--brokers", "{address}", "--audit-topic", "nobody-reports"), 2),
        (("--brokers", "{address},{address}"), 2),
        (("--brokers", "{address}", "--zookeeper", "localhost:1"), 2),
        (("--brokers", "{address}", "--stage", "copy"), 2),
        (("--brokers", "{address}", "--stage", "a={address}", "--stage", "a={address}"), 2),
        (("--brokers", "127.0.0.1:1", "--connect-timeout", "1"), 3),
    ],
)
def test_what_cannot_be_audited(source: RunningBroker, arguments: tuple[str, ...], code: int) -> None:
    found, rows, said = audit(*(item.format(address=source.address) for item in arguments))
    assert (found, rows) == (code, []), said


# -- auditors ----------------------------------------------------------------------------------------------------------


class Forwarded:
    """What a mirror tells its observer."""

    def __init__(self, topic: str, data: bytes, error: Exception | None = None) -> None:
        self.source = TopicPartition(topic, PartitionId(0, 0))
        self.data = memoryview(data)
        self.error = error


def test_a_mirror_that_tells_what_it_forwards(source: RunningBroker, names: tuple[str, str]) -> None:
    """Compressed sets stay closed; what is told twice was stored twice; what was left out is not there."""
    topic, audit_topic = names
    with Producer(source.address, audit_topic=audit_topic, compression="gzip") as producer:
        producer.send(topic, [b"x"] * 1000, partition=0)
    with Producer(source.address) as producer, consumer_of(source.address) as consumer:
        auditor = Auditor("mirror", producer, audit_topic)
        run = bytes(consumer.fetch(topic, 0, 0, wait=20).data)
        auditor(Forwarded(topic, run))  # type: ignore[arg-type]
        auditor(Forwarded(topic, run, StorageError("x")))  # type: ignore[arg-type]
        auditor.keep()
    arguments = ("--brokers", source.address, "--audit-topic", audit_topic, "--grace", "0")
    code, rows, _ = audit(*arguments)
    assert (code, {row["stage"]: row["state"] for row in rows}) == (0, {"brokers": "ok", "mirror": "ok"})
    with Producer(source.address) as producer:
        again = Auditor("mirror", producer, audit_topic)
        again(Forwarded(topic, run))  # type: ignore[arg-type]
        again(Forwarded(topic, run))  # type: ignore[arg-type]
        again.keep()
    code, rows, _ = audit(*arguments)
    assert totals(rows, "mirror")["duplicates"] == 1000
    assert totals(rows, "mirror")["missing"] == 0


def test_counts_that_could_not_be_published_come_with_the_next(source: RunningBroker, names: tuple[str, str]) -> None:
    topic, audit_topic = names
    sent(source.address, names, 10)
    with Producer(source.address) as good, consumer_of(source.address) as consumer:
        bad = Producer("127.0.0.1:1", connect_timeout_ms=100)
        auditor = Auditor("load", bad, audit_topic)
        for number in range(2):
            for batch in consumer.numpy_batches(topic, number):
                auditor.count(batch)
        with pytest.raises(TransportError):
            auditor.publish()
        bad.close()
        auditor._producer = good
        auditor.publish()
    _, rows, _ = audit("--brokers", source.address, "--audit-topic", audit_topic, "--grace", "0")
    assert totals(rows, "load")["received"] == 10


def test_batches_that_come_again_are_no_duplicates(source: RunningBroker, names: tuple[str, str]) -> None:
    """Of the same partition; several threads count at once."""
    topic, _ = names
    sent(source.address, names, 500)
    auditor = Auditor("load")

    def work() -> None:
        with consumer_of(source.address) as consumer:
            for number in range(2):
                for batch in consumer.numpy_batches(topic, number):
                    auditor.count(batch)
                auditor.count(consumer.fetch(topic, number, 0))

    work()
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cells = auditor.tallies()[topic].cells()
    assert (sum(cell[3] for cell in cells), sum(cell[4] for cell in cells)) == (500, 0)


def test_auditors_that_cannot_be(source: RunningBroker) -> None:
    with pytest.raises(ConfigError):
        Auditor("")
    with pytest.raises(ConfigError):
        Auditor("x", window_ms=0)
    with pytest.raises(ConfigError):
        Auditor("x").publish()
    with Producer(source.address, envelope=True) as producer, pytest.raises(ConfigError):
        Auditor("x", producer)
    with Producer(source.address, audit_topic="audit") as producer:
        Auditor("x", producer)


@pytest.mark.java
def test_brokers_are_found_by_zookeeper(names: tuple[str, str]) -> None:
    audit_topic = names[1]
    with (
        fastlog.testing.zookeeper() as zookeeper,
        fastlog.testing.broker(zk_connect=zookeeper.connect, broker_id=3, partitions=2) as broker,
    ):
        sent(broker.address, names, 100)
        arguments = ("--zookeeper", zookeeper.connect, "--audit-topic", audit_topic)
        wait_until("it has registered", lambda: audit(*arguments)[0] == 0, 30)
        code, rows, _ = audit(*arguments, "--stage", f"again=zk:{zookeeper.connect}", "--grace", "0")
        assert (code, totals(rows)["received"], totals(rows, "again")["received"]) == (0, 100, 100)
