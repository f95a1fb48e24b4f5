"""``fastlog replay`` on one broker: what it is told, where partitions go, and topics that are deleted meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest

import fastlog
from fastlog import testing
from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.consumer.fetched import MessageSet
from fastlog.consumer.simple import SimpleConsumer
from fastlog.record_batches import Record, build
from fastlog.testing import RunningBroker
from fastlog.tools import copy_topic
from fastlog.tools.replay import Speed
from fastlog.tools.replay_times import RateTimes
from tests.harness.command_line import Commands, Ran
from tests.harness.timing import PATIENCE

pytestmark = pytest.mark.slow

COUNT = 40
FETCH_BYTES = 100
"""A fetch brings a few of them."""


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with testing.broker(processors=1, flush_interval_messages=1) as running:
        yield running


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


def make(broker: RunningBroker, kind: str, topic: str, count: int, word: bytes = b"first") -> None:
    """A topic of one partition with so many records, or messages, of one size, each stored by itself."""
    values = [b"%s %04d" % (word, number) for number in range(count)]
    if kind == "messages":
        with fastlog.Producer(broker.address, acks="flushed") as producer:
            producer.send(topic, values, partition=0)
        return
    with RecordBroker([Address(broker.host, broker.port)], timeout=PATIENCE) as records:
        records.create(topic, 1, {})
        for value in values:
            assert records.append({(topic, 0): build([Record(None, value)])}, is_flushed=True)[topic, 0].code == 0


def once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, number: int, happens: Callable[[], None]) -> None:
    """Let something happen behind the call of that number."""
    real = getattr(owner, name)
    calls = iter(range(1, 1_000_000))

    def called(*arguments: object, **options: object) -> object:
        found = real(*arguments, **options)
        if next(calls) == number:
            happens()
        return found

    monkeypatch.setattr(owner, name, called)


@pytest.mark.parametrize("pace", ["full", "rate"])
@pytest.mark.parametrize("kind", ["records", "messages"])
@pytest.mark.parametrize("count", [None, 3, COUNT])
def test_a_topic_that_is_deleted_meanwhile_ends_the_replay(
    broker: RunningBroker, run: Commands, monkeypatch: pytest.MonkeyPatch, pace: str, kind: str, count: int | None
) -> None:
    """Also where it is made anew with fewer or as many in it: it is said, and exit code 1, whatever came then."""
    topic = f"gone-{kind}-{pace}-{count}"

    def happens() -> None:
        assert run("topics", "delete", "--brokers", broker.address, topic).code == 0
        if count is not None:
            make(broker, kind, topic, count, b"again")

    make(broker, kind, topic, COUNT)
    monkeypatch.setattr(copy_topic, "_FETCH_BYTES", FETCH_BYTES)
    if pace == "full":
        once(monkeypatch, SimpleConsumer, "fetch", 2, happens)
    else:
        once(monkeypatch, RateTimes, "of", 5, happens)
    options = ("--rate", "1000000") if pace == "rate" else ()
    ran = run(
        "replay", "--brokers", broker.address, "--input-topic", topic, "--output-topic", f"{topic}-copy", *options
    )
    what = "deleted" if count is None else "made anew"
    assert ran.code == 1 and f"was {what} while it was read; what came before was replayed" in ran.err, ran.err
    assert "replay it again, into a new topic" in ran.refused()[2]


def replay(run: Commands, broker: RunningBroker, source: str, target: str, *options: str) -> Ran:
    given = ("replay", "--brokers", broker.address, "--input-topic", source, "--output-topic", target)
    return run(*given, *options)


def payloads(broker: RunningBroker, topic: str, partition: int = 0) -> list[bytes | None]:
    with broker.consumer() as consumer:
        return [message.payload for message in consumer.messages(topic, partition)]


@pytest.mark.parametrize(
    ("text", "factor"),
    [("full", 0.0), ("1", 1.0), ("10x", 10.0), ("0.5×", 0.5), (" 2 ", 2.0), ("0.0001", 0.0001), ("1000000", 1e6)],
)
def test_a_speed_is_a_factor(text: str, factor: float) -> None:
    assert Speed().convert(text, None, None) == factor == Speed().convert(factor, None, None)


@pytest.mark.parametrize("text", ["fast", "0", "-1", "0.00009", "1000001", "nan", ""])
def test_what_is_no_speed(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is neither full nor a factor"):
        Speed().convert(text, None, None)


def test_what_contradicts_itself_is_refused(broker: RunningBroker, run: Commands) -> None:
    """Before anything is read or made."""
    make(broker, "messages", "asked", 3)
    for options, said in (
        (("--rate", "5", "--speed", "2"), "--rate contradicts --speed"),
        (("--to-brokers", broker.address, "--to-zookeeper", "127.0.0.1:1"), "--to-brokers contradicts --to-zookeeper"),
        (("--speed", "1", "--times", "records"), "--times records is for topics of records"),
    ):
        ran = replay(run, broker, "asked", "answered", *options)
        assert ran.code == 2 and said in ran.err, ran
    make(broker, "messages", "is-there", 1)
    ran = replay(run, broker, "asked", "is-there", "--compression", "zstd")
    assert ran.code == 2 and "--compression zstd is for topics of records, and is-there is none" in ran.err
    ran = replay(run, broker, "asked", "asked")
    assert ran.code == 2 and "'asked' cannot be replayed into itself" in ran.refused()[0]
    assert len(payloads(broker, "asked")) == 3 and payloads(broker, "is-there") == [b"first 0000"]


@pytest.mark.parametrize("options", [(), ("--rate", "1000000"), ("--rate", "200")])
@pytest.mark.parametrize("kind", ["records", "messages"])
def test_only_so_many_messages(
    broker: RunningBroker, run: Commands, kind: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the message, in order; the summary counts them."""
    source = "-".join(("some", kind, *options))
    make(broker, kind, source, 9)
    monkeypatch.setattr(copy_topic, "_FETCH_BYTES", FETCH_BYTES)
    ran = replay(run, broker, source, f"{source}-copy", "--messages", "4", "--json", *options)
    assert ran.code == 0 and "replayed 4 messages" in ran.err and "4 acknowledged, 0 not" in ran.err
    assert payloads(broker, f"{source}-copy") == [b"first %04d" % number for number in range(4)]
    (told,) = ran.rows
    assert (told["messages"], told["bytes"], told["delivered"], told["failed"]) == (4, 40, 4, 0)
    assert (told["input_topic"], told["output_topic"], told["acknowledged"]) == (source, f"{source}-copy", True)


def test_more_partitions_go_to_fewer(broker: RunningBroker, run: Commands) -> None:
    """Each to one of them, in turn; and to those of their numbers where there are as many."""
    with RecordBroker([Address(broker.host, broker.port)], timeout=PATIENCE) as records:
        for topic, count in (("three", 3), ("two", 2), ("more", 5)):
            records.create(topic, count, {})
        for number in range(3):
            data = build([Record(b"key", b"%d" % number, 7)])
            assert records.append({("three", number): data}, is_flushed=True)["three", number].code == 0
    ran = replay(run, broker, "three", "two")
    assert ran.code == 0 and "3 partitions go to 2: each to one of them" in ran.err
    assert [sorted(payloads(broker, "two", number)) for number in (0, 1)] == [[b"0", b"2"], [b"1"]]
    ran = replay(run, broker, "three", "more")
    assert ran.code == 0 and "partitions go to" not in ran.err
    assert [payloads(broker, "more", number) for number in range(5)] == [[b"0"], [b"1"], [b"2"], [], []]


def test_a_message_that_is_too_large_ends_it(broker: RunningBroker, run: Commands) -> None:
    make(broker, "messages", "large", 2)
    ran = replay(run, broker, "large", "large-copy", "--max-message-bytes", "9")
    assert ran.code == 1 and "a message of partition 0-0 does not fit into 'large-copy'" in ran.refused()[0]
    assert "raise max.message.size of its broker" in ran.refused()[2]


def test_an_end_that_does_not_become_visible_is_said(
    broker: RunningBroker, run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(broker, "messages", "unseen", 3)
    monkeypatch.setattr(copy_topic, "_CLOSE_SECONDS", -1.0)
    real = SimpleConsumer.fetch

    def nothing(self: SimpleConsumer, topic: str, partition: int, offset: int, *given: Any, **named: Any) -> Any:
        found = real(self, topic, partition, offset, *given, **named)
        return found if offset == 0 else MessageSet(topic, partition, offset, memoryview(b""))

    monkeypatch.setattr(SimpleConsumer, "fetch", nothing)
    monkeypatch.setattr(copy_topic, "_FETCH_BYTES", 25)
    ran = replay(run, broker, "unseen", "unseen-copy")
    assert ran.code == 1 and "unseen, partition 0-0 ends at 20, before offset 60" in ran.refused()[0], ran
    assert "not visible" in ran.refused()[1] and "fastlog topics describe unseen" in ran.refused()[2]


def test_what_is_replayed_is_visible_when_it_ends(run: Commands) -> None:
    """Of a broker that flushes only when it is asked to."""
    lazy = {"log.flush.interval": 1_000_000, "log.default.flush.interval.ms": 600_000}
    with testing.broker(processors=1, properties=lazy) as broker:
        make(broker, "messages", "lazy", COUNT)
        arguments = ("--input-topic", "lazy", "--output-topic", "again", "--brokers", broker.address)
        assert run("replay", *arguments).code == 0
        with SimpleConsumer(broker.host, broker.port) as consumer:
            ends = [consumer.get_offsets_before(topic, 0, fastlog.LATEST) for topic in ("lazy", "again")]
    assert ends[0] == ends[1] != [0]
