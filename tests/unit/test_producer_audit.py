"""A producer with envelopes, and what it tells the audit topic: of every message whether it was delivered, once."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from types import FrameType
from typing import Any, cast

import pytest

from fastlog import message
from fastlog.audit.events import SentEvent, decode
from fastlog.envelope import Envelope, server_id_of, unwrap
from fastlog.errors import (
    ClosedError,
    ConfigError,
    DeliveryError,
    FastlogError,
    InvalidTopicError,
    MessageTooLargeError,
    QueueFullError,
    TransportError,
)
from fastlog.producer import (
    DefaultEventHandler,
    Producer,
    ProducerConfig,
    ProducerData,
    StringEncoder,
    SyncProducer,
    auditing,
)
from fastlog.producer._buffer import Quota
from fastlog.producer._stamp import Stamp
from fastlog.producer.auditing import FailedNumbers, Reporter, Sending, Stamps
from fastlog.producer.ledger import Ledger
from fastlog.producer.router import Router
from fastlog.producer.rows import RowSender
from fastlog.wire import requests as rq
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stalled, stored
from tests.harness.timing import PATIENCE
from tests.unit.test_producer_refusals import refusal

SERVER = server_id_of("web-1")


def payloads(broker: FakeBroker, topic: str = "t") -> list[bytes]:
    """Of all partitions, wrappers opened."""
    found = []
    for (name, _), log in sorted(broker.logs.items()):
        if name == topic:
            found += [one.message.payload for one in message.deep(log)]
    return found


def unwrapped(broker: FakeBroker, topic: str = "t") -> list[tuple[Envelope, bytes]]:
    return [unwrap(payload) for payload in payloads(broker, topic)]


def events(broker: FakeBroker) -> list[SentEvent]:
    """Each once, however often it was sent."""
    found = {}
    for payload in payloads(broker, "audit"):
        event = decode(payload)
        assert event is not None
        found[event.producer_id, event.seq] = event
    return list(found.values())


def claimed(found: Iterable[SentEvent]) -> Counter[tuple[int, int]]:
    """How often each (producer, number) is said to be delivered; checks what every event has to keep to."""
    told: Counter[tuple[int, int]] = Counter()
    for event in found:
        assert (event.server, event.server_id) == ("web-1", SERVER)
        failed = {number for low, high in event.failed for number in range(low, high + 1)}
        numbers = set(range(event.first, event.last + 1)) - failed
        assert event.n == len(numbers)
        told.update((event.producer_id, number) for number in numbers)
    return told


def arrived(broker: FakeBroker, topic: str = "t") -> Counter[tuple[int, int]]:
    """How often each (producer, number) is in the log."""
    found: Counter[tuple[int, int]] = Counter()
    for envelope, _ in unwrapped(broker, topic):
        identity = envelope.deduplication_id
        assert identity is not None
        found[int.from_bytes(identity[1:9], "big"), int.from_bytes(identity[9:], "big")] += 1
    return found


def audited(broker: FakeBroker, **fields: Any) -> Producer:
    fields = {"audit_interval_ms": 600_000, "queue_time_ms": 1, **fields}
    return Producer(f"localhost:{broker.port}", server="web-1", audit_topic="audit", **fields)


@pytest.mark.parametrize("producer_type", ["sync", "async"])
@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("fields", [{"envelope": True}, {"audit_topic": "audit"}], ids=["plain", "audited"])
def test_every_way_of_sending_wraps_once(producer_type: str, compression: str, fields: dict[str, Any]) -> None:
    """A value, a list, ProducerData, a future; with and without keys; the second time on the compiled path."""
    with FakeBroker(partitions=3) as broker:
        address = f"localhost:{broker.port}"
        with Producer(
            address, server="web-1", producer_type=producer_type, compression=compression, queue_time_ms=1, **fields
        ) as producer:
            for _ in range(2):
                producer.send("t", b"one")
                producer.send("t", b"keyed", key="k")
                producer.send("t", [b"a", b"b"], key=b"l")
                producer.send("t", [b"c", b""])
                producer.send([ProducerData("t", 5, b"data"), ProducerData("t", bytearray(b"other"))])
                producer.submit("t", b"future", key="f").result(10)
        found = Counter((envelope.key, value) for envelope, value in unwrapped(broker))
        expected = [(None, b"one"), (b"k", b"keyed"), (b"l", b"a"), (b"l", b"b"), (None, b"c"), (None, b"")]
        expected += [(None, b"data"), (None, b"other"), (b"f", b"future")]
        assert found == Counter(expected * 2)
        assert {envelope.server_id for envelope, _ in unwrapped(broker)} == {SERVER}
        if "audit_topic" in fields:
            assert arrived(broker) == claimed(events(broker)) == Counter(dict.fromkeys(arrived(broker), 1))


def test_without_envelopes_nothing_is_wrapped() -> None:
    with FakeBroker() as broker:
        with Producer(f"localhost:{broker.port}") as producer:
            producer.send("t", b"one")
        assert stored(broker) == [b"one"]


def test_an_encoder_comes_before_the_envelope_and_not_before_events() -> None:
    with FakeBroker() as broker:
        with audited(broker, encoder=StringEncoder()) as producer:
            producer.send("t", "ä")
        assert [value for _, value in unwrapped(broker)] == ["ä".encode()]
        assert [event.n for event in events(broker)] == [1]


def test_the_server_has_a_name_and_a_number() -> None:
    with FakeBroker() as broker:
        with Producer(f"localhost:{broker.port}", server="web-1", server_id=9) as producer:
            producer.send("t", b"one")
        with Producer({"broker.list": f"0:localhost:{broker.port}", "envelope": "true"}) as producer:
            producer.send("t", b"two")
        first, second = (envelope.server_id for envelope, _ in unwrapped(broker))
        assert first == 9
        assert second == server_id_of(socket.gethostname())


@pytest.mark.parametrize(
    "fields",
    [
        {"audit_topic": "a/b"},
        {"audit_window_ms": 1000},
        {"audit_interval_ms": 1000},
        {"server_id": 2**32},
        {"envelope": True, "event_handler": DefaultEventHandler(), "producer_type": "async"},
        {"audit_topic": "a", "event_handler": DefaultEventHandler(), "producer_type": "async"},
    ],
)
def test_settings_that_contradict(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Producer("localhost:1", **fields)


def test_the_envelope_counts_for_the_size() -> None:
    """The largest value that fits, and one byte more, which gets no number."""
    with FakeBroker() as broker, audited(broker, max_message_bytes=100, producer_type="async") as producer:
        room = 100 - 15 - 18
        for _ in range(2):
            producer.send("t", bytes(room))
            with pytest.raises(MessageTooLargeError):
                producer.send("t", bytes(room + 1))
            with pytest.raises(MessageTooLargeError):
                producer.send("t", [b"", bytes(room + 1)])
            producer.send("t", [bytes(room)] * 2)
        producer.flush()
        assert sorted(number for _, number in arrived(broker)) == list(range(6))


@pytest.mark.parametrize("producer_type", ["sync", "async"])
def test_each_topic_and_window_is_counted(producer_type: str) -> None:
    """Several reports of one window add up; windows are those of the times in the messages, whatever the clock does."""
    with FakeBroker() as broker:

        def is_reported(topic: str) -> bool:
            return claimed(event for event in events(broker) if event.topic == topic) == arrived(broker, topic)

        with audited(broker, audit_window_ms=1000, audit_interval_ms=50, producer_type=producer_type) as producer:
            for shift in (0, 600_000, -600_000):
                for topic in ("t", "u"):
                    producer.send(topic, b"first")
                    assert producer._stamps is not None
                    producer._stamps.by_topic[topic].shift_ms = shift
                    producer.send(topic, [b"x"] * 5)
                    producer.flush()
                wait_until("all is reported", lambda: all(map(is_reported, ("t", "u"))))
        found = events(broker)
        for topic in ("t", "u"):
            mine = [event for event in found if event.topic == topic]
            assert claimed(mine) == arrived(broker, topic)
            by_window: Counter[int] = Counter()
            for event in mine:
                assert event.window_ms == 1000
                by_window[event.window_start] += event.n
            assert by_window == Counter(envelope.time_ms // 1000 * 1000 for envelope, _ in unwrapped(broker, topic))
            assert [event.seq for event in mine] == list(range(len(mine)))
            assert len({event.producer_id for event in mine}) == 1
        assert len({event.producer_id for event in found}) == 2


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_messages_that_failed_are_not_claimed(compression: str) -> None:
    """A broker that refuses every third request of the topic: exactly the others are counted."""
    refused = [0]

    def hook(request: rq.Request) -> bytes | None:
        if not isinstance(request, wire07.ProduceAckRequest) or request.topic != "t":
            return None
        refused[0] += 1
        return refusal(request, 2) if refused[0] % 3 == 0 else None

    with FakeBroker(hook=hook) as broker:
        failed = []
        with audited(broker, compression=compression) as producer:
            for number in range(20):
                try:
                    producer.send("t", [b"%d" % number] * 3)
                except FastlogError:
                    failed.append(number)
        assert failed == list(range(2, 20, 3))
        found = events(broker)
        assert claimed(found) == arrived(broker)
        assert [low for event in found for low, _ in event.failed] == [3 * number for number in failed]
        assert {high - low for event in found for low, high in event.failed} == {2}


def test_what_the_queue_refuses_is_not_claimed() -> None:
    """A full queue that raises, one that drops, and a list of which a part is in it when the time is over."""
    for policy, fields in (("raise", {}), ("drop", {}), ("block", {"enqueue_timeout_ms": 1})):
        release = threading.Event()
        with FakeBroker(hook=stalled(release)) as broker:
            producer = audited(
                broker, producer_type="async", queue_full=policy, queue_messages=10, in_flight_bytes=1, **fields
            )
            full = 0
            for _ in range(40):
                try:
                    producer.send("t", [b"x"] * 3)
                except QueueFullError:
                    full += 1
            assert full or producer.stats().dropped
            release.set()
            producer.close()
            assert claimed(events(broker)) == arrived(broker)
            assert 9 <= sum(arrived(broker).values()) < 120


RANGES = [
    ([], [], [[(0, 9, [])], [(10, 19, [])]], []),
    ([(0, 1)], [], [[(0, 9, [(0, 0)])], [(10, 19, [])]], []),
    ([(9, 10), (10, 11)], [], [[(0, 9, [(9, 9)])], [(10, 19, [(10, 10)])]], []),
    ([(10, 12), (20, 21)], [], [[(0, 9, [])], [(10, 19, [(10, 11)])]], [(20, 20)]),
    ([(8, 11)], [], [[(0, 9, [(8, 9)])], [(10, 19, [(10, 10)])]], []),
    ([(0, 20)], [], [[(0, 9, [(0, 9)])], [(10, 19, [(10, 19)])]], []),
    ([(19, 22), (25, 27)], [3], [[(0, 9, [(3, 3)])], [(10, 19, [(19, 19)])]], [(19, 21), (25, 26)]),
    ([(1, 3), (5, 8)], [6], [[(0, 9, [(1, 2), (5, 7)])], [(10, 19, [])]], []),
    ([(1, 2), (4, 6), (6, 8)], [3], [[(0, 9, [(1, 1), (3, 7)])], [(10, 19, [])]], []),
    ([], [1, 4, 7], [[(0, 6, [(1, 1), (4, 4)]), (7, 9, [(7, 7)])], [(10, 19, [])]], []),
    ([(4, 6)], [1, 8, 12, 14, 16, 18],
     [[(0, 7, [(1, 1), (4, 5)]), (8, 9, [(8, 8)])], [(10, 15, [(12, 12), (14, 14)]), (16, 19, [(16, 16), (18, 18)])]],
     []),
]  # fmt: skip


@pytest.mark.parametrize(("voids", "failed", "expected", "kept"), RANGES)
def test_what_failed_is_left_out_of_the_runs_that_it_is_in(
    voids: list[tuple[int, int]],
    failed: list[int],
    expected: list[list[tuple[int, int, list[tuple[int, int]]]]],
    kept: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also out of both when the window changed in the middle of it; what no run needs any more is forgotten."""
    monkeypatch.setattr(auditing, "_FAILED_RANGES", 2)
    config = ProducerConfig(broker_list="localhost:1", server="web-1", audit_topic="audit")
    numbers = FailedNumbers("audit")
    numbers.by_topic["t"] = {(number, number) for number in failed}
    reporter = Reporter(config, Stamps(config), numbers, cast(Router, None), Ledger(Quota(10, 10), None))
    stamp = Stamp("t", SERVER, 7, 1000, True)
    for low, behind in voids:
        stamp.void(low, behind - low)
    found = [reporter._count(stamp, 1000 * start, start, start + 10) for start in (0, 10)]
    assert [[(event.first, event.last, list(event.failed)) for event in part] for part in found] == expected
    assert sum(event.n for part in found for event in part) == 20 - len(
        {number for low, behind in [*voids, *[(one, one + 1) for one in failed]] for number in range(low, behind)}
        & set(range(20))
    )
    assert sorted(numbers.by_topic["t"]) == kept


def test_a_report_waits_for_what_is_on_its_way() -> None:
    """While answers are missing nothing is claimed, however often a report is due."""
    release = threading.Event()
    with FakeBroker(after=stalled(release)) as broker:
        producer = audited(broker, producer_type="async", audit_interval_ms=10)
        producer.send("t", [b"x"] * 5)
        wait_until("the messages", lambda: ("t", 0) in broker.logs)
        assert producer._reporter is not None
        assert not threading.Event().wait(0.1)
        assert events(broker) == []
        release.set()
        wait_until("a report", lambda: events(broker) != [])
        producer.close()
        assert claimed(events(broker)) == arrived(broker)


def test_a_report_that_cannot_wait_for_them_claims_nothing() -> None:
    """What is on its way when its time is over may fail yet, as here; the next report says so."""
    release = threading.Event()

    def hook(request: rq.Request) -> bytes | None:
        if not isinstance(request, wire07.ProduceAckRequest) or request.topic != "t":
            return None
        assert release.wait(PATIENCE)
        return refusal(request, 2)

    with FakeBroker(hook=hook) as broker:
        producer = audited(broker, producer_type="async")
        try:
            producer.send("t", [b"x"] * 5)
            assert producer._reporter is not None
            with pytest.raises(TransportError, match="still on their way"):
                producer._reporter._report(time.monotonic())
        finally:
            release.set()
        with pytest.raises(DeliveryError):
            producer.close()
        assert sum(claimed(events(broker)).values()) == 0
        assert [event.failed for event in events(broker)] == [[(0, 4)]]


def test_an_event_that_was_refused_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    """With the same number, so that it counts once; the log says what becomes of it."""
    refused = [0]

    def hook(request: rq.Request) -> bytes | None:
        if not isinstance(request, wire07.ProduceAckRequest) or request.topic != "audit":
            return None
        refused[0] += 1
        return refusal(request, 2) if refused[0] <= 2 else None

    with FakeBroker(hook=hook) as broker:
        with audited(broker, audit_interval_ms=10) as producer:
            producer.send("t", [b"x"] * 5)
            wait_until("a report", lambda: events(broker) != [])
            producer.flush()  # a monitoring event that failed is nobody's failure
        assert refused[0] >= 3
        assert [event.seq for event in events(broker)] == [0]
        assert claimed(events(broker)) == arrived(broker)
    assert "counts are kept for the next report topic=audit: " in caplog.text


def test_an_interrupt_while_numbers_are_given_says_nothing_more() -> None:
    """Whatever there is of what holds them goes in silence: nobody sees a second exception."""

    def is_interrupted(number: int) -> bool:
        left = number

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal left
            if frame.f_code is not Sending.__init__.__code__:
                return None
            left -= event == "line"
            if event == "line" and left == 0:
                raise KeyboardInterrupt
            return trace

        outer = sys.gettrace()
        sys.settrace(trace)
        try:
            Sending(stamp, [b"x"], None)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(outer)
        return False

    said: list[object] = []
    stamp = Stamp("t", 1, 2, 1000, True)
    before, sys.unraisablehook = sys.unraisablehook, said.append
    try:
        lines = next(number for number in itertools.count() if not is_interrupted(number + 1))
        gc.collect()
    finally:
        sys.unraisablehook = before
    assert lines > 3
    assert said == []
    assert stamp.take_voids() == [(0, 1)]  # the last one was not interrupted, and sent nothing


def test_a_signal_handler_may_finish_what_is_being_finished() -> None:
    """At any line of it; nobody waits for a lock that the interrupted call holds."""
    config = ProducerConfig(broker_list="a:1", audit_topic="audit")

    def finish(number: int) -> bool:
        """Whether there are so many lines; in a thread, which hangs where a signal handler would."""
        reporter = Reporter(config, Stamps(config), FailedNumbers("audit"), None, Ledger(Quota(1, 1), None))  # type: ignore[arg-type]
        left = number

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal left
            left -= event == "line"
            if event == "line" and left == 0:
                reporter.finish(0.0)
            return trace

        def work() -> None:
            sys.settrace(trace)
            reporter.finish(0.0)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"it hangs at line {number}"
        return left <= 0

    assert next(number for number in itertools.count(1) if not finish(number)) > 5


def test_requests_that_are_sent_again_count_once() -> None:
    """Connections break when a request was stored and before it is answered: the log has it twice, the report once."""
    stored_sets = [0]

    def after(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest) and request.topic == "t":
            stored_sets[0] += 1
            if stored_sets[0] in (2, 5):
                raise ConnectionError
        return None

    with FakeBroker(after=after) as broker:
        with audited(broker, producer_type="async") as producer:
            for _ in range(10):
                producer.send("t", [b"x"] * 3)
                producer.flush()
        twice = arrived(broker)
        assert sorted(twice.values())[-6:] == [2] * 6
        assert claimed(events(broker)) == Counter(dict.fromkeys(twice, 1))


def test_compressed_sets_that_are_too_large() -> None:
    with FakeBroker() as broker:
        with audited(
            broker, producer_type="async", compression="gzip", max_message_bytes=1000, batch_messages=100
        ) as producer:
            producer.send("t", b"small")
            producer.flush()
            told = []
            for _ in range(3):
                producer.send("t", [os.urandom(960)], on_delivery=told.append)
            producer.flush()
            assert [type(item.error) for item in told] == [MessageTooLargeError] * 3
        assert claimed(events(broker)) == arrived(broker)
        assert sum(event.n for event in events(broker)) == 1


def test_plain_senders_refuse_envelopes() -> None:
    """They would leave them out without a word."""
    fields: dict[str, Any] = {"envelope": True}
    with pytest.raises(ConfigError):
        SyncProducer("localhost", 1, **fields)
    with pytest.raises(ConfigError):
        RowSender(ProducerConfig(broker_list="localhost:1", producer_type="async", audit_topic="audit"))


def test_a_closed_producer_claims_nothing_more() -> None:
    with FakeBroker() as broker:
        producer = audited(broker)
        producer.send("t", b"x")
        producer.close()
        with pytest.raises(ClosedError):
            producer.send("t", b"y")
        producer.close()
        assert [event.n for event in events(broker)] == [1]


def test_numbers_that_were_given_when_the_end_was_found_are_void_once() -> None:
    """Of one message, and of a list."""
    with FakeBroker() as broker:
        producer = audited(broker, producer_type="async")
        producer.send("t", b"x")
        producer.flush()
        (link,) = producer._router.links.values()
        link.outbox.close()
        for value in (b"1", [b"2", b"3"], [b"4"]):
            with pytest.raises(ClosedError):
                producer.send("t", value)
        stamps = producer._placing._stamps
        assert stamps is not None
        found = stamps.of("t")
        assert found is not None and found.take_voids() == [(1, 2), (2, 4), (4, 5)]
        with contextlib.suppress(FastlogError):
            producer.close()


def test_a_topic_that_cannot_be() -> None:
    with FakeBroker() as broker, audited(broker) as producer, pytest.raises(InvalidTopicError):
        producer.send("a/b", b"x")
