"""The end of a producer: closed, forgotten, forked, interrupted; and calls in any order."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fastlog._segment import payloads
from fastlog.errors import (
    ClosedError,
    DeliveryError,
    FastlogError,
    ForkedError,
)
from fastlog.producer import Producer
from tests.harness.broker import wait_until
from tests.harness.descriptors import count_descriptors
from tests.harness.fake_broker import FakeBroker, stalled, stored


def test_a_closed_producer() -> None:
    """R-3: every call on it raises ClosedError, close() may be repeated, from many threads at once."""
    with FakeBroker() as broker:
        for kind in ("sync", "async"):
            producer = Producer(broker.address, producer_type=kind)
            producer.send("t", b"x")
            threads = [threading.Thread(target=producer.close) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
            producer.close()
            for call in (
                partial(producer.send, "t", b"x"),
                partial(producer.send, "new", b"x"),
                partial(producer.submit, "t", b"x"),
                producer.flush,
                producer.__enter__,
            ):
                with pytest.raises(ClosedError):
                    call()
            assert producer.stats().delivered == 1
        assert stored(broker) == [b"x", b"x"]


def test_close_gives_up_in_time_and_says_how_much() -> None:
    """Messages that a silent broker does not take are counted in the error; close() does not hang."""
    release = threading.Event()
    with FakeBroker(hook=stalled(release)) as broker:
        producer = Producer(broker.address, producer_type="async")
        producer.send("t", [b"x"] * 12)
        with pytest.raises(DeliveryError, match="12 messages") as caught:
            producer.close(0.1)
        assert caught.value.messages == 12
        release.set()


def test_a_forgotten_producer_delivers() -> None:
    """A producer that is garbage sends what it has first, and leaves no thread and no descriptor."""
    with FakeBroker() as broker:
        gc.collect()
        threads, descriptors = threading.active_count(), count_descriptors()
        producer = Producer(broker.address, producer_type="async")
        producer.send("t", [b"x"] * 10)
        del producer
        gc.collect()
        assert stored(broker) == [b"x"] * 10
        wait_until("threads gone", lambda: threading.active_count() <= threads + 3)  # the broker's own
        wait_until("descriptors gone", lambda: count_descriptors() <= descriptors + 3)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("fastlog-producer")]


def test_the_child_of_a_fork_is_told() -> None:
    """R-6: in the child every call raises ForkedError and close() is quiet; the parent's messages are not disturbed."""
    with FakeBroker() as broker:
        producer = Producer(broker.address, producer_type="async", queue_time_ms=50)
        producer.send("t", b"before")
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for call in (lambda: producer.send("t", b"child"), producer.flush):
                    try:
                        call()
                        os._exit(2)
                    except ForkedError:
                        pass
                producer.close()
                del producer
                gc.collect()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        producer.send("t", b"after")
        producer.close()
        assert stored(broker) == [b"before", b"after"]


def test_an_exception_in_the_block_is_the_one_that_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    """What close() could not deliver then goes to the log."""
    release = threading.Event()
    with FakeBroker(hook=stalled(release)) as broker:
        with (
            pytest.raises(KeyboardInterrupt),
            Producer(broker.address, producer_type="async") as producer,
        ):
            producer.send("t", b"x")
            raise KeyboardInterrupt
        release.set()
    assert "1 messages" in caplog.text


# --- any order of calls ---


class Calls(RuleBasedStateMachine):
    """R-3: whatever is called in whatever order, only fastlog's own exceptions come, and the counts stay right."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = FakeBroker().__enter__()
        self.sent = 0
        self.closed = False

    @initialize(kind=st.sampled_from(["sync", "async"]), acks=st.sampled_from([None, "none"]), own=st.booleans())
    def make(self, kind: str, acks: str | None, own: bool) -> None:
        self.broker.own = own
        self.producer = Producer(self.broker.address, producer_type=kind, acks=acks, batch_messages=3, queue_messages=5)

    @rule(values=st.lists(st.binary(max_size=20), max_size=9), key=st.none() | st.text(max_size=3))
    def send(self, values: list[bytes], key: str | None) -> None:
        self._call(partial(self.producer.send, "t", values, key=key), len(values))

    @rule(value=st.binary(max_size=20))
    def send_one(self, value: bytes) -> None:
        self._call(partial(self.producer.send, "t", value), 1)

    @rule(value=st.binary(max_size=20))
    def submit(self, value: bytes) -> None:
        self._call(partial(self.producer.submit, "t", value), 1)

    @rule()
    def send_nonsense(self) -> None:
        with pytest.raises((TypeError, FastlogError)):
            self.producer.send("a/b", object())

    @rule()
    def flush(self) -> None:
        self._call(partial(self.producer.flush, 10), 0)
        if not self.closed:
            assert self.producer.stats().delivered == self.sent

    @precondition(lambda self: self.sent > 5)
    @rule()
    def close(self) -> None:
        self.producer.close()
        self.closed = True
        assert self.producer.stats().delivered == self.sent

    @rule()
    def stats(self) -> None:
        wait_until("what was submitted first is in its buffer", lambda: not self.producer._routes.is_held())
        stats = self.producer.stats()
        assert (stats.accepted, stats.failed, stats.dropped) == (self.sent, 0, 0)

    def _call(self, call: Callable[[], object], messages: int) -> None:
        if self.closed:
            with pytest.raises(ClosedError):
                call()
        else:
            call()
            self.sent += messages

    def teardown(self) -> None:
        if hasattr(self, "producer"):
            self.producer.close()
            wait_until("everything arrived", lambda: sum(map(len, map(payloads, self.broker.sets))) == self.sent)
        self.broker.__exit__()


TestCalls = Calls.TestCase
TestCalls.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
