"""Handlers and encoder: every hook, in order, with what 0.7 lost delivered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from fastlog._segment import payloads
from fastlog.errors import ClosedError, ConfigError, DeliveryError, MessageTooLargeError, QueueFullError
from fastlog.producer import (
    CallbackHandler,
    DefaultEventHandler,
    Encoder,
    EventHandler,
    Producer,
    ProducerConfig,
    ProducerData,
    QueueItem,
    Sender,
    StringEncoder,
)
from fastlog.producer import batching as batching_module
from fastlog.producer import placing as placing_module
from fastlog.producer import waiting as waiting_module
from fastlog.producer._buffer import Quota
from fastlog.producer.batching import BatchQueue
from fastlog.producer.ledger import Ledger
from fastlog.producer.waiting import OneShotEvent
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stalled, stored
from tests.harness.fake_kafka import FakeKafka
from tests.harness.timing import PATIENCE, patch_time


class Recorder:
    """A list of what was called, by any thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __call__(self, name: str, what: Any = None) -> None:
        self.calls.append((name, what))

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


class Callbacks(CallbackHandler):
    """Notes every hook and changes what it may."""

    def __init__(self, note: Recorder) -> None:
        self.note = note

    def init(self, props: Mapping[str, str]) -> None:
        self.note("callback init", dict(props))

    def before_enqueue(self, item: QueueItem) -> QueueItem:
        self.note("before_enqueue", item.data)
        return QueueItem(item.data.upper(), item.topic, item.partition, item.broker)

    def after_enqueue(self, item: QueueItem, added: bool) -> None:
        self.note("after_enqueue", (item.data, added))

    def after_dequeuing_existing_data(self, item: QueueItem | None) -> Sequence[QueueItem]:
        self.note("after_dequeuing", item and item.data)
        return [] if item is None else [item, item] if item.data == "TWICE" else [item]

    def before_sending_data(self, batch: Sequence[QueueItem]) -> Sequence[QueueItem]:
        self.note("before_sending", [item.data for item in batch])
        return [item for item in batch if item.data != "NEVER"]

    def last_batch_before_close(self) -> Sequence[QueueItem]:
        self.note("last_batch")
        return [QueueItem("LAST", "t")]

    def close(self) -> None:
        self.note("callback close")


class Batches(EventHandler):
    """Notes batches instead of sending them."""

    def __init__(self, note: Recorder, release: OneShotEvent | None = None) -> None:
        self.note = note
        self.release = release

    def init(self, props: Mapping[str, str]) -> None:
        self.note("event init", dict(props))

    def handle(self, events: Sequence[QueueItem], sender: Sender, encoder: Encoder) -> None:
        if self.release is not None:
            self.release.wait(30)
        self.note("handle", [item.data for item in events])

    def close(self) -> None:
        self.note("event close")


class NowhereSender:
    """Refuses to be used."""

    def multi_send(self, sets: Iterable[tuple[str, int, int, Sequence[bytes]]]) -> None:
        raise AssertionError("nothing is sent here")


def batch_queue(
    note: Recorder, release: OneShotEvent | None = None, callback: bool = False, **settings: Any
) -> BatchQueue:
    config = ProducerConfig(broker_list="a:1", producer_type="async", **settings)
    ledger = Ledger(Quota(10, 1000), None)
    callbacks = Callbacks(note) if callback else None
    return BatchQueue(config, ledger, Batches(note, release), callbacks, StringEncoder(), NowhereSender())


def handled(note: Recorder) -> list[Any]:
    return [what for name, what in note.calls if name == "handle"]


def test_hook_points_in_order() -> None:
    """From construction to close: each hook at its place, its result used, the closing ones behind the last batch."""
    note = Recorder()
    with FakeBroker() as broker:
        with Producer(
            broker.address,
            producer_type="async",
            encoder=StringEncoder(),
            callback_handler=Callbacks(note),
            callback_handler_props="a=1,b=2",
            batch_messages=3,
        ) as producer:
            producer.send("t", ["one", "twice"])
            wait_until("the batch", lambda: "before_sending" in note.names())
            producer.send("t", "never")
        caller = [call for call in note.calls if "enqueue" in call[0]]
        others = [call for call in note.calls if "enqueue" not in call[0]]
        assert caller == [
            ("before_enqueue", "one"),
            ("after_enqueue", ("ONE", True)),
            ("before_enqueue", "twice"),
            ("after_enqueue", ("TWICE", True)),
            ("before_enqueue", "never"),
            ("after_enqueue", ("NEVER", True)),
        ]
        assert others == [
            ("callback init", {"a": "1", "b": "2"}),
            ("after_dequeuing", "ONE"),
            ("after_dequeuing", "TWICE"),
            ("before_sending", ["ONE", "TWICE", "TWICE"]),
            ("after_dequeuing", "NEVER"),
            ("before_sending", ["NEVER"]),
            ("last_batch", None),
            ("before_sending", ["LAST"]),
            ("callback close", None),
        ]
        assert [payloads(each) for each in broker.sets] == [[b"ONE", b"TWICE", b"TWICE"], [b"LAST"]]


def test_the_event_handler_comes_first_and_closes_before_the_callbacks() -> None:
    """init: event handler, callback handler; close in the same order, when nothing is left."""
    note = Recorder()
    queue = batch_queue(note, callback=True)
    queue.put(QueueItem("x", "t"))
    queue.stop()
    assert queue.finished.wait(30)
    assert note.names()[:2] == ["event init", "callback init"]
    assert note.names()[-5:] == ["handle", "last_batch", "handle", "event close", "callback close"]


def test_callbacks_are_closed_behind_an_event_handler_that_cannot_be(caplog: pytest.LogCaptureFixture) -> None:
    class Unclosable(Batches):
        def close(self) -> None:
            super().close()
            raise RuntimeError("not now")

    note = Recorder()
    config = ProducerConfig(broker_list="a:1", producer_type="async")
    ledger = Ledger(Quota(10, 1000), None)
    queue = BatchQueue(config, ledger, Unclosable(note), Callbacks(note), StringEncoder(), NowhereSender())
    queue.stop()
    assert queue.finished.wait(PATIENCE)
    assert note.names()[-2:] == ["event close", "callback close"]
    assert "not now" in caplog.text


def test_batches_of_07() -> None:
    """0.7's vector: batches of 5 and 11 events are 5, 5, and 1 on close."""
    note = Recorder()
    queue = batch_queue(note, batch_messages=5, queue_time_ms=60_000)
    for number in range(11):
        queue.put(QueueItem(number, "t"))
    queue.stop()
    assert queue.finished.wait(30)
    assert handled(note) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10]]


def test_the_queue_time_of_07() -> None:
    """0.7's vector: 3 events and a queue time of 200 ms are one batch of 3."""
    note = Recorder()
    queue = batch_queue(note, queue_time_ms=200)
    for number in range(3):
        queue.put(QueueItem(number, "t"))
    wait_until("the batch", lambda: handled(note))
    assert handled(note) == [[0, 1, 2]]
    queue.stop()
    assert queue.finished.wait(30)


def test_the_queue_time_holds_while_items_keep_coming() -> None:
    """Where 0.7 looked at the time only with an empty queue: a steady stream does not put a batch off."""
    note = Recorder()
    queue = batch_queue(note, queue_time_ms=50, batch_messages=10**6, queue_messages=10**6, callback=True)
    stop = OneShotEvent()

    def keep_sending() -> None:
        while not stop.is_set():
            queue.put(QueueItem("x", "t"))
            time.sleep(0.001)

    thread = threading.Thread(target=keep_sending)
    thread.start()
    try:
        wait_until("three batches", lambda: len(handled(note)) >= 3, within=3)
    finally:
        stop.set()
        thread.join()
    assert ("after_dequeuing", None) in note.calls
    queue.stop()
    assert queue.finished.wait(30)


def test_the_queue_time_is_over_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not before: what comes a millisecond earlier is of the same batch."""
    now = [1000.0]
    patch_time(monkeypatch, batching_module, monotonic=lambda: now[0])
    note = Recorder()
    queue = batch_queue(note, queue_time_ms=1_000_000, callback=True)

    def put(name: str) -> None:
        queue.put(QueueItem(name, "t"))
        wait_until("it is taken", lambda: ("after_dequeuing", name) in note.calls)

    put("FIRST")
    now[0] = 1999.999
    put("SECOND")
    put("THIRD")  # whoever takes it has looked whether the second one is due
    assert handled(note) == []
    now[0] = 2000.0
    put("LAST")
    wait_until("the batch", lambda: handled(note))
    assert handled(note) == [["FIRST", "SECOND", "THIRD", "LAST"]]
    queue.stop()
    assert queue.finished.wait(PATIENCE)


def test_the_queue_time_begins_anew_with_a_batch_that_was_full(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    patch_time(monkeypatch, batching_module, monotonic=lambda: now[0])
    note = Recorder()
    queue = batch_queue(note, queue_time_ms=1_000_000, batch_messages=3)

    def put(number: int) -> None:
        queue.put(QueueItem(number, "t"))
        wait_until("it is taken", lambda: queue.accepted == number and not len(queue))

    put(1)
    now[0] = 1500.0
    put(2)
    put(3)
    wait_until("it was full", lambda: handled(note) == [[1, 2, 3]])
    now[0] = 2400.0
    for number in (4, 5, 6):
        put(number)
    wait_until("the next one", lambda: len(handled(note)) > 1)
    assert handled(note) == [[1, 2, 3], [4, 5, 6]]
    queue.stop()
    assert queue.finished.wait(PATIENCE)


@pytest.mark.parametrize("settings", [{"queue_full": "raise"}, {"enqueue_timeout_ms": 0}, {"enqueue_timeout_ms": 20}])
def test_a_full_queue_raises_when_asked_to(settings: dict[str, Any]) -> None:
    """0.7's vector: a queue of 10 takes no 11th; the callback hears of the refusal."""
    note, release = Recorder(), OneShotEvent()
    queue = batch_queue(note, release, callback=True, queue_messages=10, batch_messages=1, **settings)
    queue.put(QueueItem("held", "t"))
    wait_until("the batch is being handled", lambda: len(queue) == 0)
    for number in range(10):
        queue.put(QueueItem(str(number), "t"))
    with pytest.raises(QueueFullError):
        queue.put(QueueItem("more", "t"))
    assert note.calls[-1] == ("after_enqueue", ("MORE", False))
    assert queue.dropped == 1
    release.set()
    queue.stop()
    assert queue.finished.wait(30)
    assert len(handled(note)) == 12  # with the last batch of the callbacks
    with pytest.raises(ClosedError):
        queue.put(QueueItem("late", "t"))


@pytest.mark.parametrize("with_handler", [False, True])
def test_room_is_waited_for_as_long_as_is_said(monkeypatch: pytest.MonkeyPatch, with_handler: bool) -> None:
    """To the millisecond, with handlers and without."""
    release = threading.Event()
    moments: list[float] = []
    here = threading.get_ident()

    def now() -> float:
        """Each look of this thread finds the next moment; at last the time is over."""
        if threading.get_ident() == here and moments:
            return moments.pop(0)
        return moments[0] if moments else 11_000.0

    with FakeBroker(hook=stalled(release)) as broker:
        producer = Producer(
            broker.address, producer_type="async", queue_messages=1, batch_messages=1, in_flight_bytes=100,
            enqueue_timeout_ms=10_000_000, event_handler=DefaultEventHandler() if with_handler else None,
        )  # fmt: skip
        producer.send("t", b"x" * 60)
        try:
            wait_until("the broker holds it back", lambda: broker.seen["ProduceAckRequest"])
            for module in (placing_module, waiting_module):
                patch_time(monkeypatch, module, monotonic=now)
            with pytest.raises(QueueFullError):
                for _ in range(10):  # some of them find room, at once or later
                    moments[:] = [1000.0, *[10_999.999] * 6]
                    producer.send("t", b"x" * 60)
            assert not moments
        finally:
            monkeypatch.undo()
            release.set()
            producer.close()


@pytest.mark.parametrize("callback", [True, False])
def test_who_waits_for_room_is_told_of_the_end(callback: bool) -> None:
    """It raises what a put behind the end raises, and the callback hears of it where there is one."""
    note, release = Recorder(), OneShotEvent()
    queue = batch_queue(note, release, callback=callback, queue_messages=1, batch_messages=1)
    queue.put(QueueItem("held", "t"))
    wait_until("the batch is being handled", lambda: len(queue) == 0)
    queue.put(QueueItem("fits", "t"))
    raised: list[BaseException] = []

    def put() -> None:
        try:
            queue.put(QueueItem("waits", "t"))
        except BaseException as error:
            raised.append(error)

    sender = threading.Thread(target=put)
    sender.start()
    wait_until("it waits", lambda: not callback or ("before_enqueue", "waits") in note.calls)
    time.sleep(0.05)  # without a callback nobody sees it wait; one that comes later is told the same
    queue.stop()
    sender.join(PATIENCE)
    assert [type(error) for error in raised] == [ClosedError]
    if callback:
        assert note.calls.count(("after_enqueue", ("WAITS", False))) == 1
    release.set()
    assert queue.finished.wait(30)


def test_a_full_queue_drops_with_a_count_or_waits() -> None:
    """``drop`` counts and goes on; ``block`` waits until there is room."""
    note, release = Recorder(), OneShotEvent()
    queue = batch_queue(note, release, queue_messages=1, batch_messages=1, queue_full="drop")
    queue.put(QueueItem("held", "t"))
    wait_until("the batch is being handled", lambda: len(queue) == 0)
    for _ in range(4):
        queue.put(QueueItem("x", "t"))
    assert queue.dropped == 3
    release.set()
    queue.stop()
    assert queue.finished.wait(30)

    note, release = Recorder(), OneShotEvent()
    queue = batch_queue(note, release, queue_messages=1, batch_messages=1)
    sender = threading.Thread(target=lambda: [queue.put(QueueItem(n, "t")) for n in range(20)])
    sender.start()
    wait_until("the queue is full", lambda: len(queue) == 1)
    assert sender.is_alive()
    release.set()
    sender.join(30)
    queue.stop()
    assert queue.finished.wait(30)
    assert handled(note) == [[number] for number in range(20)]
    assert queue.dropped == 0


def test_what_is_queued_while_a_batch_is_handled_whose_time_was_over_comes_before_the_end() -> None:
    """The thread found nothing more, handles what it has, and is told to stop meanwhile."""
    note, release = Recorder(), OneShotEvent()
    queue = batch_queue(note, release, callback=True, queue_time_ms=100)
    queue.put(QueueItem("FIRST", "t"))
    wait_until("its time is over", lambda: ("after_dequeuing", None) in note.calls)
    queue.put(QueueItem("LATE", "t"))
    queue.stop()
    release.set()
    assert queue.finished.wait(PATIENCE)
    found = [value for batch in handled(note) for value in batch]
    assert "LATE" in found[found.index("FIRST") :]
    assert queue.failed == 0


def test_a_close_between_the_look_for_room_and_the_queue_loses_nothing_silently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R-29: a signal handler closes the producer inside send(): the message that was not queued yet is refused."""
    with FakeBroker() as broker:
        producer = Producer(broker.address, producer_type="async", callback_handler=CallbackHandler())
        queue = producer._queue
        assert queue is not None
        look = queue._has_room

        def close_then(found: bool) -> bool:
            producer.close()
            return found

        monkeypatch.setattr(queue, "_has_room", lambda: close_then(look()))
        with pytest.raises(ClosedError):
            producer.send("t", b"x")
        stats = producer.stats()
        assert (stats.accepted, stats.delivered, stats.queued, stats.failed) == (0, 0, 0, 0)


def test_a_handler_that_fails_loses_its_batch_loudly() -> None:
    """The producer goes on with the next batch, and flush() says what was lost."""

    class Failing(EventHandler):
        def handle(self, events: Sequence[QueueItem], sender: Sender, encoder: Encoder) -> None:
            if events[0].data == "bad":
                raise RuntimeError("bad luck")
            sender.multi_send([(item.topic, -1, -1, [encoder.encode(item.data)]) for item in events])  # type: ignore[list-item]

    with FakeBroker() as broker:
        producer = Producer(broker.address, producer_type="async", event_handler=Failing(), encoder=StringEncoder())
        producer.send("t", "bad")
        with pytest.raises(DeliveryError, match=r"1 message was not delivered.*bad luck"):
            producer.flush(30)
        producer.send("t", "good")
        producer.flush(30)
        assert producer.stats().failed == 1
        producer.close()
        assert [payloads(each) for each in broker.sets] == [[b"good"]]


def test_a_handler_sends_all_of_a_batch_or_nothing() -> None:
    """One message that is too large keeps back those before it, whichever it is: no batch is half sent."""
    refused: list[MessageTooLargeError] = []

    class Sending(EventHandler):
        def handle(self, events: Sequence[QueueItem], sender: Sender, encoder: Encoder) -> None:
            with pytest.raises(MessageTooLargeError) as raised:
                sender.multi_send([("t", -1, -1, [b"1"]), ("t", -1, -1, [b"2", b"x" * 101, b"3"])])
            refused.append(raised.value)
            sender.multi_send([("t", -1, -1, [b"4"]), ("t", -1, -1, []), ("t", -1, -1, [b"x" * 100])])

    with FakeBroker() as broker:
        with Producer(
            broker.address, producer_type="async", event_handler=Sending(), max_message_bytes=100
        ) as producer:
            producer.send("t", b"an event")
        assert len(refused) == 1
        assert [one for each in broker.sets for one in payloads(each)] == [b"4", b"x" * 100]


def test_handlers_get_values_of_records_and_no_keys_of_them() -> None:
    """A key would be lost on the way through the queue; what stands before it in the call is not sent either."""
    with FakeKafka(2) as kafka:
        with Producer(kafka.address, producer_type="async", callback_handler=CallbackHandler()) as producer:
            for partition in (None, 1):
                with pytest.raises(ConfigError, match="keys of records are for a producer without"):
                    producer.send([ProducerData("t", [b"x"]), ProducerData("t", "k", [b"y"], partition=partition)])
            producer.send("t", [b"1", b"2"], partition=1)
            producer.send("t", b"3", partition=0)
        assert (kafka.values(0), kafka.values(1)) == ([b"3"], [b"1", b"2"])


def test_handlers_by_their_07_names() -> None:
    """event.handler, callback.handler and serializer.class as dotted paths, with their props."""
    with FakeBroker() as broker:
        properties = {
            "broker.list": f"0:{broker.address}",
            "producer.type": "async",
            "serializer.class": "kafka.serializer.StringEncoder",
            "event.handler": "kafka.producer.async.DefaultEventHandler",
            "event.handler.props": "a=b",
            "callback.handler": "fastlog.producer.hooks.CallbackHandler",
            "batch.size": "2",
        }
        with Producer(properties) as producer:
            producer.send("t", ["a", "b", "c"])
        assert [payloads(each) for each in broker.sets] == [[b"a", b"b"], [b"c"]]


def test_an_event_handler_alone_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    with FakeBroker() as broker:
        with Producer(broker.address, producer_type="async", event_handler=DefaultEventHandler()) as producer:
            producer.send("t", [b"a", b"b"])
        assert stored(broker) == [b"a", b"b"]
    assert not caplog.records


def test_handlers_need_a_queue() -> None:
    """A sync producer has none; nor can a single message be followed through a handler."""
    with pytest.raises(ConfigError, match="async"):
        Producer("a:1", callback_handler=CallbackHandler())
    with (
        Producer("a:1", producer_type="async", callback_handler=CallbackHandler()) as producer,
        pytest.raises(ConfigError, match="on_delivery"),
    ):
        producer.submit("t", b"x")
    told: list[object] = []
    with FakeBroker() as broker:
        with (
            Producer(broker.address, producer_type="async", callback_handler=CallbackHandler()) as producer,
            pytest.raises(ConfigError, match="nobody knows which message went where"),
        ):
            producer.send("t", b"x", on_delivery=told.append)
        assert (told, broker.sets) == ([], [])


def test_an_event_handler_without_handle_is_refused_when_it_is_made() -> None:
    """Not at the first batch, when messages are already on their way."""
    from fastlog.producer.hooks import EventHandler

    class Forgetful(EventHandler):
        pass

    with pytest.raises(TypeError, match="handle"):
        Forgetful()  # type: ignore[abstract]


def test_who_flushes_behind_the_end_does_not_wait() -> None:
    queue = batch_queue(Recorder())
    queue.stop()
    assert queue.finished.wait(PATIENCE)
    assert queue.flush().is_set()
