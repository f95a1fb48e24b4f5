"""The queue of a producer with handlers: no wake-up is lost, hooks that fail harm one batch, and the counts add up."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from fastlog.errors import DeliveryError
from fastlog.producer import CallbackHandler, DefaultEventHandler, Producer
from fastlog.producer.hooks import QueueItem
from fastlog.producer.waiting import LocklessCondition
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stored
from tests.harness.timing import PATIENCE, sooner_than

LONG_MS = 3_600_000
HOOKS = ["before_enqueue", "after_enqueue", "after_dequeuing_existing_data", "before_sending_data"]
ERRORS = [ValueError("of the program"), SystemExit(3), None]


class Wild(CallbackHandler):
    """Raises in one of its hooks, or returns None there, when it is told to."""

    def __init__(self, hook: str) -> None:
        self.hook = hook
        self.error: BaseException | None = None
        self.wild = False
        self.closed = 0

    def _do(self, hook: str, answer: Any) -> Any:
        if self.wild and hook == self.hook:
            if self.error is not None:
                raise self.error
            return None
        return answer

    def before_enqueue(self, item: QueueItem) -> QueueItem:
        return self._do("before_enqueue", item)  # type: ignore[no-any-return]

    def after_enqueue(self, item: QueueItem, added: bool) -> None:
        self._do("after_enqueue", None)

    def after_dequeuing_existing_data(self, item: QueueItem | None) -> Sequence[QueueItem]:
        return self._do("after_dequeuing_existing_data", [] if item is None else [item])  # type: ignore[no-any-return]

    def before_sending_data(self, batch: Sequence[QueueItem]) -> Sequence[QueueItem]:
        return self._do("before_sending_data", batch)  # type: ignore[no-any-return]

    def last_batch_before_close(self) -> Sequence[QueueItem]:
        return self._do("last_batch_before_close", [])  # type: ignore[no-any-return]

    def close(self) -> None:
        self.closed += 1
        self._do("close", None)


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        (hook, error)
        for hook in [*HOOKS, "last_batch_before_close", "close"]
        for error in ERRORS
        if error is not None or hook != "before_enqueue"  # what is put into the queue is that hook's to say
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value),
)
def test_a_hook_that_fails_harms_what_it_had_in_hand(hook: str, error: BaseException | None) -> None:
    """The next messages arrive, flush() tells of what was lost, close() ends, and the closing hooks are called."""
    wild = Wild(hook)
    wild.error = error
    lost = hook == "before_sending_data"
    with FakeBroker() as broker, sooner_than(PATIENCE / 2):
        producer = Producer(broker.address, producer_type="async", callback_handler=wild, queue_time_ms=LONG_MS)
        wild.wild = hook in HOOKS
        for number in range(2):
            if hook in HOOKS[:2] and error is not None:
                with pytest.raises(type(error)):
                    producer.send("t", b"%d" % number)
            else:
                producer.send("t", b"%d" % number)
            if lost:
                with pytest.raises(DeliveryError, match="1 message was not delivered"):
                    producer.flush(PATIENCE)
            else:
                producer.flush(PATIENCE)
        wild.wild = hook not in HOOKS
        for number in range(2, 5):
            producer.send("t", b"%d" % number)
        producer.flush(PATIENCE)
        first = 2 if lost or (hook == "before_enqueue") else 0
        assert stored(broker) == [b"%d" % number for number in range(first, 5)]
        stats = producer.stats()
        accepted = 5 if lost else 5 - first
        assert (stats.accepted, stats.failed, stats.queued, stats.in_flight) == (accepted, 2 if lost else 0, 0, 0)
        producer.close()
        assert wild.closed == 1


def test_messages_that_a_handler_adds_hide_none_that_is_lost() -> None:
    """What close() could not deliver is told though as many came that were in no queue."""

    class Adds(CallbackHandler):
        def after_dequeuing_existing_data(self, item: QueueItem | None) -> Sequence[QueueItem]:
            return [] if item is None else [item, item]

    release = threading.Event()

    class Stalls(DefaultEventHandler):
        def handle(self, events: Sequence[QueueItem], sender: Any, encoder: Any) -> None:
            if events[0].data == b"stall":
                release.wait(PATIENCE)
            super().handle(events, sender, encoder)

    with FakeBroker() as broker:
        producer = Producer(
            broker.address,
            producer_type="async",
            callback_handler=Adds(),
            event_handler=Stalls(),
            queue_time_ms=LONG_MS,
            batch_messages=2,
        )
        for _ in range(3):
            producer.send("t", b"x")
        producer.flush(PATIENCE)
        assert stored(broker) == [b"x"] * 6
        for _ in range(3):
            producer.send("t", b"stall")
        with pytest.raises(DeliveryError, match=r"(1 message was|[23] messages were) given up"):
            producer.close(0.05)
        release.set()


@pytest.mark.parametrize("queue_time_ms", [0, LONG_MS])
def test_each_thing_that_is_asked_of_it_wakes_it(queue_time_ms: int) -> None:
    """Nothing else does: the queue time is an hour, or there is none. In a row, so that it sleeps before each."""
    with FakeBroker() as broker, sooner_than(PATIENCE / 2):
        producer = Producer(
            broker.address,
            producer_type="async",
            callback_handler=CallbackHandler(),
            queue_time_ms=queue_time_ms,
            batch_messages=2,
        )
        queue = producer._queue
        assert queue is not None

        def asleep() -> None:
            wait_until("it sleeps", lambda: bool(queue._work._waiters))

        for number in range(5):
            asleep()
            producer.send("t", b"%d" % (2 * number))
            if number % 2:
                asleep()
            producer.send("t", b"%d" % (2 * number + 1))  # the second one fills the batch
            wait_until("the batch is handled", lambda n=number: queue.handled == 2 * n + 2)  # type: ignore[misc]
        asleep()
        producer.send("t", b"10")
        asleep()
        producer.flush()
        assert stored(broker) == [b"%d" % number for number in range(11)]
        asleep()
        producer.close()


def test_whoever_is_woken_finds_what_it_is_woken_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has looked, and sleeps again or has ended, before whoever woke it does anything else."""
    with FakeBroker() as broker, sooner_than(PATIENCE / 2):
        producer = Producer(
            broker.address, producer_type="async", callback_handler=CallbackHandler(), queue_time_ms=LONG_MS
        )
        queue = producer._queue
        assert queue is not None
        really = LocklessCondition.notify_all

        def notify_all(condition: LocklessCondition) -> None:
            really(condition)
            if condition is queue._work:
                wait_until("it has looked", lambda: bool(condition._waiters) or not queue._thread.is_alive())

        monkeypatch.setattr(LocklessCondition, "notify_all", notify_all)
        wait_until("it sleeps", lambda: bool(queue._work._waiters))
        for number in range(3):
            producer.send("t", b"%d" % number)
            wait_until("it is taken", lambda n=number: queue._taken == n + 1)  # type: ignore[misc]
            producer.flush(PATIENCE / 4)
        assert stored(broker) == [b"0", b"1", b"2"]
        producer.close(PATIENCE / 4)
        assert not queue._thread.is_alive()


def test_without_a_queue_time_an_idle_thread_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at its queue when something comes, and not all the while."""
    with (
        FakeBroker() as broker,
        Producer(
            broker.address, producer_type="async", callback_handler=CallbackHandler(), queue_time_ms=0
        ) as producer,
    ):
        producer.send("t", b"x")
        producer.flush()
        queue = producer._queue
        assert queue is not None
        waits = LocklessCondition.wait_for
        turns: list[float] = []

        def counted(condition: LocklessCondition, predicate: Any, seconds: float = -1.0) -> bool:
            if condition is queue._work:
                turns.append(seconds)
            return waits(condition, predicate, seconds)

        wait_until("it sleeps", lambda: bool(queue._work._waiters))
        monkeypatch.setattr(LocklessCondition, "wait_for", counted)
        for number in range(3):
            producer.send("t", b"%d" % number)
            wait_until("it is sent", lambda n=number: len(stored(broker)) == n + 2)  # type: ignore[misc]
            wait_until("it sleeps", lambda: bool(queue._work._waiters))
        assert turns[-1] < 0
        assert len(turns) <= 6


@pytest.mark.parametrize(("size", "blocks"), [(1, 3), (4, 3)])
def test_senders_that_wait_for_room_go_on_one_by_one(size: int, blocks: int) -> None:
    """Also when all that the queue held is in one batch that is being handled."""
    release = threading.Semaphore(0)

    class Slow(DefaultEventHandler):
        def handle(self, events: Sequence[QueueItem], sender: Any, encoder: Any) -> None:
            assert release.acquire(timeout=PATIENCE)
            super().handle(events, sender, encoder)

    with FakeBroker() as broker, sooner_than(PATIENCE / 2):
        producer = Producer(
            broker.address,
            producer_type="async",
            event_handler=Slow(),
            queue_time_ms=LONG_MS,
            queue_messages=size,
            batch_messages=1,
        )
        threads = [
            threading.Thread(target=lambda n=n: producer.send("t", b"%d" % n), daemon=True)
            for n in range(size + 1 + blocks)
        ]
        for thread in threads:
            thread.start()
        queue = producer._queue
        assert queue is not None
        wait_until("some wait", lambda: len(queue._room._waiters) == blocks)
        assert len(queue) == size
        for left in range(blocks - 1, -1, -1):
            release.release()
            wait_until("one went on", lambda left=left: len(queue._room._waiters) == left)  # type: ignore[misc]
        for _ in threads:
            release.release()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        producer.close()
        assert sorted(stored(broker)) == sorted(b"%d" % n for n in range(len(threads)))
