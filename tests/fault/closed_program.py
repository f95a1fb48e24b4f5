"""The program whose signal handler closes clients in the middle of their work; it ends with some of them open."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from fastlog import Producer, SimpleConsumer, SyncProducer
from fastlog.errors import ClosedError
from fastlog.producer.hooks import CallbackHandler

HANG_SECONDS = 60.0
MOST_SECONDS = 20.0
EARLIEST_ALARM, LATEST_ALARM = 0.0005, 0.02


class Rounds:
    """Counts what was delivered: at least ``low`` messages have to be in the log, at most ``high``."""

    def __init__(self, port: int, topic: str, seed: str) -> None:
        self.violations: list[str] = []
        self.low = self.high = 0
        self._port = port
        self._topic = topic
        self._random = random.Random(seed)

    def one(self) -> None:
        """One client, closed from the handler while it works."""
        name = self._random.choice(sorted(_WORK))
        make, work = _WORK[name]
        client = make(self._port, self._random)
        spare = self._forgotten() if self._random.random() < 0.2 else []
        took: list[float] = []
        entered = threading.Event()

        def handler(*_: object) -> None:
            started = time.monotonic()
            client.close()
            if spare:
                spare.clear()
                gc.collect()  # __del__ of another one, inside the handler
            took.append(time.monotonic() - started)
            entered.set()

        sent = [0]
        helper = self._helper(client, entered, sent)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, self._random.uniform(EARLIEST_ALARM, LATEST_ALARM))
        try:
            while True:
                work(client, self._topic, sent)
        except ClosedError:
            pass
        except Exception as error:
            self.violations.append(f"{name} raised {error!r}")
        entered.wait(MOST_SECONDS)
        if helper is not None:
            helper.join(MOST_SECONDS)
            if helper.is_alive():
                self.violations.append(f"{name}: another thread still waits")
        if not took or max(took) > MOST_SECONDS:
            self.violations.append(f"{name}: close() in the handler took {took}")
        self._count(name, client, sent[0], 2 if helper is not None else 1)

    def _helper(self, client: Any, entered: threading.Event, sent: list[int]) -> threading.Thread | None:
        """Sometimes another thread uses the same producer."""
        if not isinstance(client, Producer) or self._random.random() < 0.7:
            return None

        def use() -> None:
            with contextlib.suppress(ClosedError):
                while not entered.is_set():
                    client.send(self._topic, b"y")
                    sent.append(1)

        thread = threading.Thread(target=use)
        thread.start()
        return thread

    def _forgotten(self) -> list[object]:
        """A producer with messages, in a cycle, so that only the collector finds it."""
        producer = Producer(f"127.0.0.1:{self._port}", producer_type="async")
        producer.send(self._topic, [b"z"] * 3)
        self.low += 3
        self.high += 3
        cycle: list[object] = [producer]
        cycle.append(cycle)
        return [cycle]

    def _count(self, name: str, client: Any, sent: int, threads: int) -> None:
        if isinstance(client, SyncProducer):
            self.low += sent
            self.high += sent + 1
        if not isinstance(client, Producer):
            return
        stats = client.stats()
        if stats.failed or stats.queued or stats.in_flight or stats.delivered < sent:
            self.violations.append(f"{name}: {sent} sends came back, {stats}")
        self.low += stats.delivered
        self.high += stats.delivered

    def leave_open(self) -> None:
        """Producers that the end of the program has to drain, and consumers in the middle of something."""
        global _left
        for kind in ("sync", "async"):
            producer = Producer(f"127.0.0.1:{self._port}", producer_type=kind)
            producer.send(self._topic, [b"last"] * 10)
            self.low += 10
            self.high += 10
            _left.append(producer)
        consumer = SimpleConsumer("127.0.0.1", self._port, fetch_bytes=50)
        found = consumer.messages("read", 0)
        next(found)
        _left += [consumer, found]


_left: list[object] = []


def _producer(**settings: Any) -> Callable[[int, random.Random], Producer]:
    def make(port: int, source: random.Random) -> Producer:
        return Producer(
            f"127.0.0.1:{port}",
            batch_messages=5,
            queue_messages=source.choice([5, 50, 10_000]),
            queue_time_ms=source.choice([0, 5, 5000]),
            **settings,
        )

    return make


def _consumer(**options: Any) -> Callable[[int, random.Random], SimpleConsumer]:
    return lambda port, source: SimpleConsumer(
        "127.0.0.1", port, fetch_bytes=source.choice([50, 1000, 10**6]), **options
    )


def _send(client: Any, topic: str, sent: list[int]) -> None:
    number = sent[0]
    client.send(topic, [b"x"] if number % 3 else b"x", key=str(number) if number % 2 else None)
    sent[0] += 1
    if sent[0] % 50 == 0:
        client.flush()


def _send_plainly(client: Any, topic: str, sent: list[int]) -> None:
    client.send(topic, b"x", 0)
    sent[0] += 1


def _iterate(how: str, wait: float | None) -> Callable[[Any, str, list[int]], None]:
    def work(client: Any, topic: str, sent: list[int]) -> None:
        for _ in getattr(client, how)("read", 0, 0, wait=wait):
            sent[0] += 1

    return work


def _fetch(client: Any, topic: str, sent: list[int]) -> None:
    client.fetch("read", sent[0] % 2, 0, wait=5)
    client.multifetch([("read", 0, 0), ("read", 0, 11)])
    client.get_offsets_before("read", 0, -1)
    sent[0] += 1


_WORK: dict[str, tuple[Callable[[int, random.Random], Any], Callable[[Any, str, list[int]], None]]] = {
    "sync": (_producer(), _send),
    "async": (_producer(producer_type="async"), _send),
    "async unacknowledged": (_producer(producer_type="async", acks="none"), _send),
    "async gzip": (_producer(producer_type="async", compression="gzip"), _send),
    "handlers": (_producer(producer_type="async", callback_handler=CallbackHandler()), _send),
    "SyncProducer": (lambda port, _: SyncProducer("127.0.0.1", port), _send_plainly),
    "messages": (_consumer(local="off"), _iterate("messages", 0.0)),
    "messages for ever": (_consumer(local="off"), _iterate("messages", None)),
    "batches": (_consumer(local="read"), _iterate("batches", 0.0)),
    "batches for ever": (_consumer(local="read"), _iterate("batches", None)),
    "arrays": (_consumer(local="map"), _iterate("numpy_batches", 0.0)),
    "fetch": (_consumer(local="off"), _fetch),
    "local fetch": (_consumer(local="read"), _fetch),
}


def main(told: dict[str, Any]) -> dict[str, Any]:
    """``rounds`` clients, then some more that stay open."""
    rounds = Rounds(told["port"], told["topic"], told["seed"])
    for _ in range(told["rounds"]):
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        rounds.one()
    rounds.leave_open()
    return {
        "rounds": told["rounds"],
        "promised": [rounds.low, rounds.high],
        "violations": rounds.violations,
    }


if __name__ == "__main__":
    logging.disable()  # what is broken off here is so on purpose; anything else that is said counts as a violation
    print(json.dumps(main(json.loads(sys.argv[1]))))
