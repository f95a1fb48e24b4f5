"""R-1: KeyboardInterrupt at every moment of a call of a producer, one after the other; then the producer goes on.

What was interrupted may be sent or not, never twice; what is sent next arrives once, ``flush`` and ``close`` end in
time, and neither a thread nor a descriptor is left.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from fastlog.audit.events import SentEvent, decode
from fastlog.envelope import unwrap
from fastlog.errors import ClosedError, FastlogError
from fastlog.message import deep
from fastlog.producer import Producer, SyncProducer
from fastlog.producer.hooks import CallbackHandler
from tests.harness.broker import wait_until
from tests.harness.descriptors import count_descriptors
from tests.harness.fake_broker import FakeBroker
from tests.harness.moments import MOST_MOMENTS, Interrupt, interrupted_at
from tests.harness.timing import PATIENCE, sooner_than

Call = Callable[[Any, str], object]


pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # its descriptor is closed, which is counted


def is_interrupted(number: int, call: Callable[[], object]) -> bool:
    """Whether the call has so many moments, and ended at that one."""
    try:
        with interrupted_at(number):
            call()
    except Interrupt:
        return True
    return False


def payloads_of(broker: FakeBroker, topic: str) -> list[bytes]:
    """The values that are stored, those with envelopes without them."""
    found = [each.message.payload for (name, _), data in broker.logs.items() if name == topic for each in deep(data)]
    return [unwrap(payload)[1] if payload[:1] == b"\xfe" else payload for payload in found]


def counted(broker: FakeBroker, topic: str) -> int:
    """How many messages of a topic the monitoring events say were delivered."""
    events = [decode(payload) for payload in payloads_of(broker, "audit")]
    return sum(event.n for event in events if isinstance(event, SentEvent) and event.topic == topic)


def send(producer: Producer, topic: str) -> object:
    return producer.send(topic, b"interrupted")


def send_key(producer: Producer, topic: str) -> object:
    return producer.send(topic, b"interrupted", key="k")


def send_by_hand(producer: Producer, topic: str) -> object:
    return producer.send(topic, [b"interrupted"], partition=1, on_delivery=lambda told: None)


def submit(producer: Producer, topic: str) -> object:
    return producer.submit(topic, b"interrupted")


def send_and_flush(producer: Producer, topic: str) -> object:
    producer.send(topic, b"interrupted")
    return producer.flush()


SYNC = {"producer_type": "sync"}
ASYNC = {"producer_type": "async", "queue_time_ms": 0}
HOOKED = {**ASYNC, "callback_handler": CallbackHandler()}
AUDITED = {**ASYNC, "audit_topic": "audit", "audit_interval_ms": 60_000}

CALLS: dict[str, tuple[dict[str, Any], Call, bool]] = {
    # settings, the call, whether the topic is known before
    "a first send": (SYNC, send, False),
    "a send": (SYNC, send, True),
    "a first send with a key": (SYNC, send_key, False),
    "a send by hand": (SYNC, send_by_hand, True),
    "a first send, queued": (ASYNC, send, False),
    "a send with a callback, queued": (ASYNC, send_by_hand, False),
    "a first submit": (ASYNC, submit, False),
    "a submit": (ASYNC, submit, True),
    "a flush": (ASYNC, send_and_flush, True),
    "a send to handlers": (HOOKED, send, True),
    "a flush of handlers": (HOOKED, send_and_flush, True),
    "an audited send": (AUDITED, send_by_hand, True),
    "an audited submit": (AUDITED, submit, False),
}


def threads_of_producers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fastlog-producer")]


@pytest.mark.parametrize("name", CALLS)
def test_the_producer_goes_on_after_an_interrupt_at_any_moment(name: str) -> None:
    fields, call, is_known = CALLS[name]
    with FakeBroker(partitions=2) as broker:
        before = count_descriptors()
        for number in range(1, MOST_MOMENTS):
            topic = f"t{number}"
            producer = Producer(broker.address, **fields)
            if is_known:
                producer.send(topic, b"known")
                producer.flush()
            over = not is_interrupted(number, lambda p=producer, t=topic: call(p, t))  # type: ignore[misc]
            with sooner_than(PATIENCE / 2, f"stuck after the interrupt at moment {number}"):
                producer.send(topic, b"after", partition=(0, 1))
                with suppress(FastlogError):
                    producer.flush(PATIENCE)
                producer.close()
            found = payloads_of(broker, topic)
            assert found.count(b"after") == 1, number
            assert found.count(b"interrupted") <= 1, number
            stats = producer.stats()
            assert (stats.in_flight, stats.queued, stats.failed) == (0, 0, 0), number
            assert not threads_of_producers(), number
            if fields is AUDITED:
                assert 0 <= len(found) - counted(broker, topic) <= found.count(b"interrupted"), number
            if over:
                assert found.count(b"interrupted") == (1 if "interrupted" in str(call.__code__.co_consts) else 0)
                break
        gc.collect()
        wait_until("no descriptor is left", lambda: count_descriptors() <= before + 1)
        assert number > 3


def send_twice(producer: Producer, topic: str) -> object:
    producer.send(topic, b"interrupted")
    return producer.send(topic, b"interrupted", partition=1)


SLOW_HOOKED = {**HOOKED, "queue_time_ms": 60_000}
CLOSED: dict[str, tuple[dict[str, Any], Call]] = {
    "first sends": (SYNC, send_twice),
    "first sends, queued": ({**ASYNC, "queue_time_ms": 60_000}, send_twice),
    "first sends to handlers": (SLOW_HOOKED, send_twice),
    "a first submit": (ASYNC, submit),
    "a first flush": (ASYNC, send_and_flush),
    "audited sends": (AUDITED, send_twice),
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_handler_closes_the_producer_at_any_moment(name: str) -> None:
    """It waits for no thread that would wait for what was interrupted, and what was taken is delivered."""
    fields, call = CLOSED[name]
    with FakeBroker(partitions=2) as broker:
        for number in range(1, MOST_MOMENTS):
            topic = f"t{number}"
            producer = Producer(broker.address, **fields)
            closed: list[int] = []

            def close(producer: Producer = producer, closed: list[int] = closed, number: int = number) -> None:
                with sooner_than(PATIENCE / 2, f"close() in a handler at moment {number}"):
                    producer.close()
                closed.append(number)

            with suppress(ClosedError), interrupted_at(number, close):
                call(producer, topic)
            producer.close()
            stats = producer.stats()
            assert (stats.in_flight, stats.queued) == (0, 0), number
            assert stats.failed <= (call is submit), number  # its future says so
            assert fields is AUDITED or len(payloads_of(broker, topic)) == stats.delivered, number
            assert not threads_of_producers(), number
            if not closed:
                break
        assert number > 3


@pytest.mark.parametrize("fields", [SYNC, ASYNC, HOOKED, AUDITED], ids=["sync", "async", "handlers", "audited"])
def test_a_close_that_is_interrupted_at_any_moment_can_be_repeated(fields: dict[str, Any]) -> None:
    """Everything that was sent before is delivered by one of the two, and nothing twice."""
    with FakeBroker(partitions=2) as broker:
        before = count_descriptors()
        for number in range(1, MOST_MOMENTS):
            topic = f"t{number}"
            producer = Producer(broker.address, **{**fields, "queue_time_ms": 5000})
            producer.send(topic, [b"%d" % index for index in range(3)], partition=1)
            over = not is_interrupted(number, producer.close)
            with sooner_than(PATIENCE / 2, f"stuck after the interrupt at moment {number}"):
                producer.close()
            assert payloads_of(broker, topic) == [b"0", b"1", b"2"], number
            if fields is AUDITED:
                assert counted(broker, topic) == 3, number
            with pytest.raises(ClosedError):
                producer.send(topic, b"late")
            assert not threads_of_producers(), number
            if over:
                break
        gc.collect()
        wait_until("no descriptor is left", lambda: count_descriptors() <= before + 1)
        assert number > 3


@pytest.mark.parametrize("reconnects", [False, True])
def test_the_plain_producer_goes_on_after_an_interrupt_at_any_moment(reconnects: bool) -> None:
    """What follows half a request goes out on another connection."""
    fields = {"reconnect_interval_sends": 1} if reconnects else {}
    with FakeBroker() as broker:
        before = count_descriptors()
        for is_connected in (False, True):
            for number in range(1, MOST_MOMENTS):
                topic = f"t{number}{is_connected}"
                producer = SyncProducer("127.0.0.1", broker.port, **fields)  # type: ignore[arg-type]
                if is_connected:
                    producer.send(topic, b"known")
                over = not is_interrupted(number, lambda p=producer, t=topic: p.send(t, b"interrupted"))  # type: ignore[misc]
                with sooner_than(PATIENCE / 2, f"stuck after the interrupt at moment {number}"):
                    producer.send(topic, b"after")
                    producer.close()
                found = payloads_of(broker, topic)
                assert found.count(b"after") == 1, number
                assert found.count(b"interrupted") <= 1, number
                if over:
                    break
            assert number > 3
        gc.collect()
        wait_until("no descriptor is left", lambda: count_descriptors() <= before + 1)


def test_a_close_of_the_plain_producer_that_is_interrupted_can_be_repeated() -> None:
    with FakeBroker() as broker:
        before = count_descriptors()
        for number in range(1, MOST_MOMENTS):
            topic = f"t{number}"
            producer = SyncProducer("127.0.0.1", broker.port)
            producer.send(topic, b"x")
            over = not is_interrupted(number, producer.close)
            producer.close()
            wait_until("it has arrived", lambda t=topic: payloads_of(broker, t) == [b"x"])  # type: ignore[misc]
            with pytest.raises(ClosedError):
                producer.send(topic, b"late")
            if over:
                break
        assert number > 3
        gc.collect()
        wait_until("no descriptor is left", lambda: count_descriptors() <= before + 1)


def test_a_start_that_is_interrupted_while_its_thread_is_coming(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is made again, and then both threads come: one of them sends, and the other one ends without a word."""
    go, come = threading.Event(), threading.Semaphore(0)
    started: list[Callable[[], object]] = []
    start = threading._start_new_thread  # type: ignore[attr-defined]

    def begin(bootstrap: Any, arguments: tuple[()]) -> int:
        if bootstrap.__self__.name != "fastlog-producer-0":
            return int(start(bootstrap, arguments))
        started.append(bootstrap)

        def late() -> None:
            go.wait(PATIENCE)
            bootstrap()
            come.release()

        number = int(start(late if len(started) == 1 else bootstrap, arguments))
        if len(started) == 1:
            raise Interrupt
        return number

    monkeypatch.setattr(threading, "_start_new_thread", begin)
    with FakeBroker() as broker, Producer(broker.address) as producer:
        with pytest.raises(Interrupt):
            producer.send("t", b"interrupted")
        producer.send("t", b"after")
        go.set()
        assert come.acquire(timeout=PATIENCE)
        producer.send("t", b"later")
        assert len(started) == 2
        assert payloads_of(broker, "t")[-2:] == [b"after", b"later"]
    assert capfd.readouterr().err == ""
