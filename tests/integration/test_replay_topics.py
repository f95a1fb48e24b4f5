"""``fastlog replay`` on one broker: of topics that are deleted, or made anew, while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import fastlog
from fastlog import testing
from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.consumer.simple import SimpleConsumer
from fastlog.record_batches import Record, build
from fastlog.testing import RunningBroker
from fastlog.tools import copy_topic
from fastlog.tools.replay_times import RateTimes
from tests.harness.command_line import Commands
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
