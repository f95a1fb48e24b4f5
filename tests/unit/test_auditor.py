"""An auditor: what it counts, to the message, and what it has told the audit topic when ``publish`` returns."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import fastlog.audit
from fastlog import Producer, message
from fastlog._segment import pack
from fastlog.audit import Auditor
from fastlog.audit.events import SeenDuplicates, SeenEvent, decode
from fastlog.consumer._delivery import Place
from fastlog.consumer.fetched import MessageSet
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.stream import StreamArrays
from fastlog.errors import ConfigError, DeliveryError, FastlogError, InvalidMessageError, StorageError, TransportError
from fastlog.mirror import Forwarded
from fastlog.mirror.pieces import TargetPartition
from fastlog.wire import requests as rq
from fastlog.zkpaths import PartitionId
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stalled, stored
from tests.unit.test_producer_refusals import refusal
from tests.unit.test_tally import PAGE, payload

WINDOW_MS = 1000
SIZE = len(pack([payload(1, 0)]))


def numbers(*found: int, producer: int = 1, time_ms: int = 0) -> bytes:
    """A message set with these numbers of a producer; each message has the same size."""
    return bytes(pack([payload(producer, number, time_ms) for number in found]))


def batch_of(data: bytes, offset: int = 0, *, topic: str = "t", partition: int = 0, arrays: bool) -> Any:
    """What a fetch gives, as a message set or as arrays."""
    found = MessageSet(topic, partition, offset, memoryview(data))
    return found.to_numpy() if arrays else found


def counts(auditor: Auditor, topic: str = "t") -> tuple[int, int]:
    """Messages and duplicates of a topic over all windows."""
    cells = auditor.tallies()[topic].cells()
    return sum(cell[3] for cell in cells), sum(cell[4] for cell in cells)


def events(broker: FakeBroker, topic: str = "audit") -> list[SeenEvent]:
    """What the audit topic holds, in order."""
    found = [decode(item) for item in stored(broker, topic)]
    assert all(isinstance(event, SeenEvent) for event in found)
    return found  # type: ignore[return-value]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


def producer_of(broker: FakeBroker, **fields: Any) -> Producer:
    return Producer(f"localhost:{broker.port}", **{"queue_time_ms": 1, **fields})


# -- counting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize("codec", [0, 1])
def test_a_batch_counts_each_message_in_it(arrays: bool, codec: int) -> None:
    """Compressed sets are opened; several windows, and messages without an envelope."""
    auditor = Auditor("load", window_ms=WINDOW_MS)
    data = message.encode_set([payload(1, number, 400 * number) for number in range(6)] + [b"plain"], codec)
    auditor.count(batch_of(bytes(data), arrays=arrays))
    tally = auditor.tallies()["t"]
    assert Counter({cell[2]: cell[3] for cell in tally.cells()}) == {0: 3, 1000: 2, 2000: 1}
    assert (tally.messages, tally.unwrapped, tally.seen(1, 0, 5)) == (7, 1, 6)


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize(("back", "duplicates"), [(SIZE, 0), (1, 0), (0, 2), (-1, 2)])
def test_what_begins_before_the_end_of_the_last_batch_was_read_before(arrays: bool, back: int, duplicates: int) -> None:
    """From the end on the same numbers are there a second time."""
    auditor = Auditor("load", window_ms=WINDOW_MS)
    auditor.count(batch_of(numbers(0, 1, 2), 100, arrays=arrays))
    end = 100 + 3 * SIZE
    auditor.count(batch_of(numbers(1, 2), end - back, arrays=arrays))
    assert counts(auditor) == (3 + duplicates, duplicates)


@pytest.mark.parametrize("arrays", [False, True])
def test_reading_again_in_smaller_steps_is_no_duplicate(arrays: bool) -> None:
    """The end that was reached stays, whatever was read again since; what comes behind it is new."""
    auditor = Auditor("load", window_ms=WINDOW_MS)
    auditor.count(batch_of(numbers(0, 1, 2, 3), 0, arrays=arrays))
    for index in range(4):
        auditor.count(batch_of(numbers(index), index * SIZE, arrays=arrays))
    auditor.count(batch_of(numbers(3), 4 * SIZE, arrays=arrays))
    assert counts(auditor) == (5, 1)


def test_a_partition_that_begins_at_zero_has_no_past() -> None:
    """Neither the first batch of it, nor one that is empty."""
    auditor = Auditor("load", window_ms=WINDOW_MS)
    auditor.count(batch_of(b"", arrays=True))
    auditor.count(batch_of(numbers(0, 0), arrays=True))
    assert counts(auditor) == (2, 1)


@pytest.mark.parametrize("arrays", [False, True])
def test_partitions_of_several_brokers_are_told_apart(arrays: bool) -> None:
    """By ``source``, by number and by topic; in each of them the message is there once more."""
    auditor = Auditor("load", window_ms=WINDOW_MS)
    for source in ("one", "two"):
        for partition in (0, 1):
            for topic in ("t", "u"):
                for _ in range(2):
                    given = batch_of(numbers(5), topic=topic, partition=partition, arrays=arrays)
                    auditor.count(given, source=source)
    assert counts(auditor) == counts(auditor, "u") == (4, 3)


def test_a_batch_of_a_group_knows_its_broker() -> None:
    """Its own source counts, not the one that is given."""
    auditor = Auditor("load", window_ms=WINDOW_MS)
    for number in (0, 1):
        array = batch_of(numbers(5), arrays=True)
        fields = {field.name: getattr(array, field.name) for field in dataclasses.fields(array)}
        given = StreamArrays(**fields, place=Place(TopicPartition("t", PartitionId(number, 0)), 0))
        auditor.count(given, source="the same")
    assert counts(auditor) == (2, 1)


def test_a_run_counts_each_time_and_the_audit_topic_never() -> None:
    auditor = Auditor("mirror", topic="told", window_ms=WINDOW_MS)
    data = bytes(message.encode_set([payload(1, number) for number in range(4)], 1))
    auditor.count_run("t", data)
    auditor.count_run("t", memoryview(data))
    auditor.count_run("told", data)
    assert counts(auditor) == (8, 4)
    assert list(auditor.tallies()) == ["t"]


def test_what_is_before_damage_was_counted() -> None:
    auditor = Auditor("mirror", window_ms=WINDOW_MS)
    damaged = bytearray(numbers(7))
    damaged[-1] ^= 1
    with pytest.raises(InvalidMessageError):
        auditor.count_run("t", numbers(1, 2) + bytes(damaged) + numbers(3))
    assert counts(auditor) == (2, 0)
    auditor.count_run("t", numbers(3))
    assert counts(auditor) == (3, 0)


def test_what_a_mirror_left_out_is_not_counted() -> None:
    auditor = Auditor("mirror", window_ms=WINDOW_MS)
    source = TopicPartition("t", PartitionId(0, 0))
    run = Forwarded("a", source, 0, SIZE, memoryview(numbers(1)), 1, TargetPartition(0, 0), 0)
    auditor(run._replace(error=StorageError("no")))
    assert auditor.tallies() == {}
    auditor(run)
    assert counts(auditor) == (1, 0)


# -- telling -----------------------------------------------------------------------------------------------------------


def test_an_event_says_who_has_seen_what(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        auditor = Auditor("load", producer, window_ms=WINDOW_MS)
        assert auditor.stage == "load"
        auditor.count_run("t", numbers(0, 3, 3, time_ms=2500))
        before = time.time_ns() // 1_000_000
        auditor.publish()
        after = time.time_ns() // 1_000_000
    (event,) = events(broker)
    assert (event.stage, event.topic, event.server, event.window_ms) == ("load", "t", socket.gethostname(), 1000)
    assert event.duplicates == [SeenDuplicates(1, 2000, 1)]
    ((producer_id, server_id, number, bits),) = event.pages
    assert (producer_id, server_id, number) == (1, 5, 0)
    assert int.from_bytes(bits, "little") == 0b1001
    assert before <= event.time_ms <= after


def test_each_counter_has_a_number_of_its_own(broker: FakeBroker) -> None:
    """That its events can hold; and the name that it was given."""
    with producer_of(broker) as producer:
        for _ in range(30):
            auditor = Auditor("load", producer, "told", window_ms=WINDOW_MS, server="here")
            auditor.count_run("t", numbers(0))
            auditor.publish()
    found = events(broker, "told")
    assert len({event.counter_id for event in found}) == 30
    assert {event.server for event in found} == {"here"}


def test_only_what_is_new_is_told(broker: FakeBroker) -> None:
    """Nothing twice, and nothing at all while nothing has changed; counts of duplicates are those so far."""
    with producer_of(broker) as producer:
        auditor = Auditor("load", producer, window_ms=WINDOW_MS)
        auditor.publish()
        assert stored(broker, "audit") == []
        auditor.count_run("t", numbers(0, 0) + numbers(PAGE, producer=2))
        for _ in range(2):
            auditor.publish()
        auditor.count_run("t", numbers(0) + numbers(1, 1, time_ms=1000) + numbers(PAGE + 1, producer=2))
        for _ in range(2):
            auditor.keep()
    auditor.publish()  # and a producer that is closed is asked for nothing
    first, second = events(broker)
    assert sorted(page[:3] for page in first.pages) == [(1, 5, 0), (2, 5, 1)]
    assert first.duplicates == [SeenDuplicates(1, 0, 1)]
    assert sorted(second.duplicates) == [SeenDuplicates(1, 0, 2), SeenDuplicates(1, 1000, 1)]
    assert sorted(page[:3] for page in second.pages) == [(1, 5, 0), (2, 5, 1)]


def test_duplicates_alone_are_news(broker: FakeBroker) -> None:
    """Of one window after another, each with what it has so far."""
    with producer_of(broker) as producer:
        auditor = Auditor("load", producer, window_ms=WINDOW_MS)
        auditor.count_run("t", numbers(0, time_ms=0) + numbers(1, time_ms=WINDOW_MS))
        for time_ms, number in ((0, 0), (WINDOW_MS, 1), (0, 0)):
            auditor.publish()
            auditor.count_run("t", numbers(number, time_ms=time_ms))
        auditor.publish()
    assert [event.duplicates for event in events(broker)] == [
        [], [SeenDuplicates(1, 0, 1)], [SeenDuplicates(1, WINDOW_MS, 1)], [SeenDuplicates(1, 0, 2)],
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "parts"), [(40, [40]), (41, [40, 1]), (80, [40, 40])])
def test_an_event_has_no_more_pages_than_fit_a_message(broker: FakeBroker, count: int, parts: list[int]) -> None:
    """At the worst, when nothing of them can be compressed; each page is in one of them."""
    with producer_of(broker) as producer:
        auditor = Auditor("load", producer, window_ms=WINDOW_MS)
        auditor.count_run("t", b"".join(numbers(7, producer=number) for number in range(count)))
        auditor.publish()
        auditor.publish()
    found = events(broker)
    assert [len(event.pages) for event in found] == parts
    assert sorted(page[0] for event in found for page in event.pages) == list(range(count))


@pytest.mark.parametrize(("count", "parts"), [(5000, [5000]), (5001, [5000, 1])])
def test_an_event_has_no_more_duplicates_than_fit_a_message(broker: FakeBroker, count: int, parts: list[int]) -> None:
    with producer_of(broker) as producer:
        auditor = Auditor("load", producer, window_ms=1)
        auditor.count_run("t", pack([payload(1, number, number) for number in range(count) for _ in range(2)]))
        auditor.publish()
        auditor.publish()
    found = events(broker)
    assert [len(event.duplicates) for event in found] == parts
    assert [len(event.pages) for event in found] == [1, 0][: len(parts)]
    assert sorted(item.window_start for event in found for item in event.duplicates) == list(range(count))


def test_what_comes_while_it_is_told_is_told_next(broker: FakeBroker) -> None:
    """Of the same page and of the same window."""
    with producer_of(broker) as producer:
        auditor = Auditor("load", producer, window_ms=WINDOW_MS)
        auditor.count_run("t", numbers(0, 0))
        once = [numbers(1, 1)]

        def meanwhile(request: rq.Request) -> bytes | None:
            if isinstance(request, wire07.ProduceAckRequest) and once:
                auditor.count_run("t", once.pop())
            return None

        broker.hook = meanwhile
        auditor.publish()
        auditor.publish()
    first, second = events(broker)
    assert (first.duplicates, second.duplicates) == ([SeenDuplicates(1, 0, 1)], [SeenDuplicates(1, 0, 2)])
    assert [int.from_bytes(event.pages[0].bits, "little") for event in (first, second)] == [0b1, 0b11]


def test_counting_goes_on_while_the_audit_topic_is_slow_and_a_second_publish_waits(broker: FakeBroker) -> None:
    release = threading.Event()
    broker.hook = stalled(release)
    with producer_of(broker) as producer:
        auditor = Auditor("load", producer, window_ms=WINDOW_MS)
        auditor.count_run("t", numbers(0))
        threads = [threading.Thread(target=auditor.publish, daemon=True) for _ in range(2)]
        try:
            threads[0].start()
            wait_until("it is on its way", lambda: broker.seen["ProduceAckRequest"] == 1)
            auditor.count_run("t", numbers(1))
            threads[1].start()
            threads[1].join(0.1)
            assert threads[1].is_alive()  # what it has to wait for is not known to be stored
        finally:
            release.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    assert [int.from_bytes(event.pages[0].bits, "little") for event in events(broker)] == [0b1, 0b11]


def refusing(times: int) -> Any:
    """A hook that refuses so many requests of the audit topic."""
    left = [times]

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest) and request.topic == "audit" and left[0]:
            left[0] -= 1
            return refusal(request, 2)
        return None

    return hook


@pytest.mark.parametrize("fields", [{}, {"producer_type": "async"}], ids=["sync", "async"])
def test_what_was_refused_is_told_the_next_time(broker: FakeBroker, fields: dict[str, Any]) -> None:
    broker.hook = refusing(2)
    with producer_of(broker, **fields) as producer:
        auditor = Auditor("load", producer, window_ms=WINDOW_MS)
        auditor.count_run("t", numbers(0, 4, 4))
        for _ in range(2):
            with pytest.raises(FastlogError):
                auditor.publish()
            assert stored(broker, "audit") == []
        auditor.publish()
        auditor.publish()
    (event,) = events(broker)
    assert (len(event.pages), event.duplicates) == (1, [SeenDuplicates(1, 0, 1)])


def test_what_a_callback_of_the_producer_hears_of_is_not_taken_for_told(broker: FakeBroker) -> None:
    """Where the program has a callback, nothing else says that a message was not delivered."""
    broker.hook = refusing(1)
    heard: list[Any] = []
    with Producer(
        f"localhost:{broker.port}", producer_type="async", queue_time_ms=1, on_delivery=heard.append
    ) as producer:
        auditor = Auditor("load", producer, window_ms=WINDOW_MS)
        auditor.count_run("t", numbers(0))
        with pytest.raises(FastlogError):
            auditor.publish()
        auditor.publish()
    assert len(events(broker)) == 1


def test_a_flush_by_somebody_else_takes_no_failure_away(broker: FakeBroker) -> None:
    """Two stages may share a producer; whichever waits first is not the one that is told."""
    broker.hook = refusing(1)
    with producer_of(broker, producer_type="async") as producer:
        auditor = Auditor("load", producer, window_ms=WINDOW_MS)
        auditor.count_run("t", numbers(0))
        flush = producer.flush

        def taken() -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(producer, "flush", flush)
                with contextlib.suppress(DeliveryError):
                    producer.flush()
            flush()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(producer, "flush", taken)
            with pytest.raises(FastlogError):
                auditor.publish()
        auditor.publish()
    assert len(events(broker)) == 1


def test_what_a_full_queue_drops_is_not_taken_for_told(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    broker.hook = stalled(release)
    fields = {"producer_type": "async", "queue_full": "drop", "queue_messages": 1, "in_flight_bytes": 1}
    with producer_of(broker, **fields) as producer:
        auditor = Auditor("load", producer, window_ms=WINDOW_MS)
        auditor.count_run("t", numbers(0))
        producer.send("other", b"on its way")
        wait_until("it is on its way", lambda: broker.seen["ProduceAckRequest"] == 1)
        producer.send("other", b"in the queue")
        flush = producer.flush

        def flushed() -> None:
            release.set()
            flush()

        monkeypatch.setattr(producer, "flush", flushed)
        with pytest.raises(TransportError, match="queue"):
            auditor.publish()
        auditor.publish()
    assert len(events(broker)) == 1


def test_a_broker_that_comes_back_is_told(broker: FakeBroker) -> None:
    """It breaks the connection, after it has stored the event and before; the same page comes as often as it takes."""
    breaks = ["before", "after"]

    def breaking(when: str) -> Any:
        def hook(request: rq.Request) -> None:
            if isinstance(request, wire07.ProduceAckRequest) and breaks[:1] == [when]:
                breaks.pop(0)
                raise ConnectionError

        return hook

    broker.hook, broker.after = breaking("before"), breaking("after")
    with producer_of(broker, num_retries=0) as producer:
        auditor = Auditor("load", producer, window_ms=WINDOW_MS)
        auditor.count_run("t", numbers(0))
        for _ in range(3):
            with contextlib.suppress(FastlogError):
                auditor.publish()
        auditor.publish()
    assert not breaks
    assert [event.pages for event in events(broker)] == 2 * [events(broker)[0].pages]


# -- what cannot be ----------------------------------------------------------------------------------------------------


def test_what_an_auditor_cannot_be_made_of(broker: FakeBroker) -> None:
    for stage, window_ms in (("", 1), ("x", 0), ("x", -5)):
        with pytest.raises(ConfigError):
            Auditor(stage, window_ms=window_ms)
    Auditor("x", window_ms=1)
    with pytest.raises(ConfigError, match="without a producer"):
        Auditor("x").publish()
    address = f"localhost:{broker.port}"
    with Producer(address, envelope=True) as producer, pytest.raises(ConfigError, match="envelopes"):
        Auditor("x", producer)
    with Producer(address, audit_topic="audit") as producer:
        Auditor("x", producer)
        with pytest.raises(ConfigError, match="envelopes"):
            Auditor("x", producer, "elsewhere")


def test_the_package_gives_the_auditor_and_no_other_names() -> None:
    assert fastlog.audit.Auditor is Auditor
    with pytest.raises(AttributeError, match="Auditors"):
        _ = fastlog.audit.Auditors


def test_what_the_package_gives_is_what_it_names() -> None:
    """Not what its modules have imported for themselves."""
    for name in ("no_such_name", "threading"):
        with pytest.raises(AttributeError, match=f"module 'fastlog.audit' has no attribute '{name}'"):
            getattr(fastlog.audit, name)
